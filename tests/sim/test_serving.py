"""`serve` for hours of a pretended fleet's life, with commits, webhooks and everything that breaks: it never ends by itself, brings the fleet to
rest when the faults end, and keeps nothing of what it has been through.

``make sim HOURS=…`` plays as many hours as one likes; `make test` a few.
"""

import asyncio
import gc
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

import pytest

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Prepared
from llmgw.controller.passes.values import PassResult
from llmgw.controller.serving.attempt import Attempted
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.loop import Loop
from llmgw.controller.serving.pauses import Pace
from llmgw.controller.serving.snapshot import HELD, Event, PassEnded, Snapshot, Snapshots
from llmgw.model.record import Outcome
from llmgw.model.report import Observed
from llmgw.model.struct import replace
from tests.sim.commits import GPUS, FleetWish, NodeWish, edited, first_wish, unfrozen
from tests.sim.controllers import broken
from tests.sim.deeds import DEEDS, FATE
from tests.sim.gitstore import git_stores
from tests.sim.history import faults_end, look_closely
from tests.sim.loop import START, VirtualLoop, run
from tests.sim.making import event_of
from tests.sim.store import OpenStore
from tests.sim.world import World

HOUR = 3600.0
FILES = Path("/proc/self/fd")
GAPS = (5.0, 30.0, 120.0, 400.0)
"""Seconds between two things that happen."""
REST = 1800.0
"""Seconds in which the fleet must have come to rest when nothing breaks any more."""
HELD_BACK = (PassResult, Prepared, Observed, Attempted)
"""What a pass makes, all of it large. The newest is kept, and the one before, to compare them."""
MOST_HELD = 4
CODE = (type, ModuleType, BuiltinFunctionType, CodeType, logging.Logger)
FEW = 200
"""Objects: counts of how passes and steps ended, of which a long life has seen more kinds."""
TURNS = 5
"""Looks of `serve` at whether somebody else has finished a pass."""
MOST_PASSES = 120
"""In an hour, give or take: every fault and commit leads to some, and nothing to a flood of them. An engine that gets ready or
ends leads to one more each time."""


def _held() -> Counter[type]:
    gc.collect()
    return Counter(type(one) for one in gc.get_objects() if type(one) in HELD_BACK)


def _weight(root: object) -> int:
    """How many objects it keeps alive, without code and without the pretended world behind the seams."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, CODE) or type(one).__module__.startswith("tests."):
            continue
        seen.add(id(one))
        todo += (one.__closure__ or ()) if isinstance(one, FunctionType) else gc.get_referents(one)
    return len(seen)


class Day:
    """One `serve` in one world, and what it kept at each hour's end. ``opened`` gives it its record store, in memory if nothing is
    said."""

    def __init__(self, seed: int, *, opened: OpenStore | None = None) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.opened = opened
        self.loop: Loop | None = None  # the newest
        self.hints = Hints()
        self.snapshots = Snapshots(Snapshot(started=START, version="0", fleet="sim", holder="ann@desk"))
        self.stop = Halt()
        self.ends: Counter[str] = Counter()
        self.by_hand = 0  # passes that somebody made beside it
        self.starts = 0  # of engines
        self.tasks: list[int] = []
        self.files: list[int] = []
        self.threads: list[int] = []
        self.weights: list[int] = []  # of what lived through everything, and of one that has just begun
        self.violations: list[str] = []
        self.actions: tuple[str, ...] = ()
        self.before = _held()  # by tests that ran earlier in this process

    def told(self, event: Event) -> None:
        if isinstance(event, PassEnded):
            self.ends[event.last.ended] += 1

    def serve(
        self, world: World, machine: str, *, crash_in: int | None = None
    ) -> "asyncio.Task[PassResult | None]":
        async def work(fleet: Fleet, links: Links, halt: Halt) -> None:
            self.loop = Loop(
                replace(fleet, transports=links.transports),
                pace=Pace(poll=30.0, jitter=3.0, resync=300.0),
                snapshots=self.snapshots,
                hints=self.hints,
                rng=self.rng,
                observers=(self,),
            )
            await self.loop.run(self.stop)

        return world.controllers.begin(machine, work, crash_in=crash_in)

    async def live(self, hours: int) -> None:
        wish = first_wish(self.rng)
        world = self._world(wish)
        try:
            serving = self.serve(world, "ann@desk")
            for _ in range(hours):
                until = world.loop.elapsed + HOUR
                while world.loop.elapsed < until:
                    if self.rng.random() < 0.3:
                        wish = self._changed(wish)
                        world.commits.add(wish)
                    if self.rng.random() < 0.3:
                        self.hints.hint("webhook", "webhook forge")
                    kind = self.rng.choice((*FATE, "rotate secret"))
                    self.by_hand += kind == "rotate secret"
                    event = event_of(self.rng, kind, gaps=GAPS)
                    world.told(f"EVENT {event}")
                    await DEEDS[event.kind](world, event)
                    await asyncio.sleep(event.gap)
                    assert not serving.done(), "it ended by itself"
                    if world.violations:
                        break
                self._weigh()
            if not world.violations:
                await self._rests(world)
            await self._ends(serving)
            self.stop = Halt()
            serving = self.serve(world, "ann@desk")
            await asyncio.sleep(REST)
            self.weights.append(_weight(self.loop))
            await self._ends(serving)
        finally:
            self.starts = sum(len(node.machine.starts) for node in world.nodes.values())
            self.violations = world.violations
            self.actions = tuple(world.actions)
            world.close()

    def _world(self, wish: FleetWish) -> World:
        """With every machine that may become a node."""
        others = (NodeWish(name=name, gpus=gpus) for name, gpus in GPUS.items() if wish.node(name) is None)
        return World(self.rng, wish, machines=(*wish.nodes, *others), allow_prune=False, opened=self.opened)

    def _changed(self, wish: FleetWish) -> FleetWish:
        """Whoever freezes changes lets them go on some time later: a fleet that stands still shows nothing."""
        _, wish = edited(self.rng, wish)
        return unfrozen(wish) if self.rng.random() < 0.2 else wish

    async def _ends(self, serving: "asyncio.Task[PassResult | None]") -> None:
        self.stop.now(Outcome.INTERRUPTED, "the day is over")
        await asyncio.wait({serving}, timeout=600)
        assert serving.done(), "it does not stop"

    def _weigh(self) -> None:
        held = _held() - self.before
        self.tasks.append(len(asyncio.all_tasks()))
        self.files.append(len(list(FILES.iterdir())))
        self.threads.append(threading.active_count())
        assert max(held.values(), default=0) <= MOST_HELD, f"it keeps what passes made: {held}"

    async def _rests(self, world: World) -> None:
        """By nothing but `serve` itself."""
        faults_end(world)
        world.commits.add(unfrozen(world.commits.wishes[-1]))
        await asyncio.sleep(REST)
        await look_closely(world)
        self.weights = [_weight(self.loop)]
        last = self.snapshots.now.last_pass
        assert last is not None
        if last.code not in (0, 6) or self.snapshots.now.source_error:
            world.violate(f"serve is not well: {last}")


class TwoControllers(Day):
    """Two machines serve one fleet; each dies now and then and comes back. That only one commands at a time is for the world's
    invariants to say."""

    async def live(self, hours: int) -> None:
        wish = first_wish(self.rng)
        world = self._world(wish)
        machines = ("ann@desk", "bob@laptop")
        serving = {machine: self.serve(world, machine) for machine in machines}
        try:
            while world.loop.elapsed < hours * HOUR and not world.violations:
                wish = self._changed(wish)
                world.commits.add(wish)
                machine = self.rng.choice(machines)
                if serving[machine].done():
                    calls = self.rng.choice((None, self.rng.randint(1, 600)))
                    serving[machine] = self.serve(world, machine, crash_in=calls)
                elif self.rng.random() < 0.4:
                    world.controllers.running[serving[machine]].die()
                await asyncio.sleep(self.rng.choice(GAPS))
            for machine in machines:
                if serving[machine].done():
                    serving[machine] = self.serve(world, machine)
            if not world.violations:
                await self._rests(world)
            self.stop.now(Outcome.INTERRUPTED, "the day is over")
            await asyncio.wait(serving.values(), timeout=600)
        finally:
            self.violations = world.violations
            self.actions = tuple(world.actions)
            world.close()


@contextmanager
def errors_are_telling(day: Day) -> Iterator[None]:
    """That steps fail is what faults are for, and `serve` logs it; an exception that nobody expected is another matter."""

    class Broke(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, BaseException):
                day.violations.append(f"{record.getMessage()}: {broken(error)}")

    logger = logging.getLogger("llmgw.serve")
    handler = Broke()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2))
def test_serve_lives_through_everything_and_keeps_nothing(seed: int, request: pytest.FixtureRequest) -> None:
    hours: int = request.config.getoption("--sim-hours")
    day = Day(seed)
    threads, files = threading.active_count(), len(list(FILES.iterdir()))
    with errors_are_telling(day):
        run(day.live(hours), VirtualLoop())
    told = [f"seed {seed}:", *day.violations[:10], "The last actions:", *day.actions[-40:]]
    assert not day.violations, "\n".join(told)
    passes = day.ends.total()
    assert hours * 12 <= passes <= hours * MOST_PASSES + 2 * day.starts, day.ends
    assert day.ends["done"] + day.ends["accepted"] >= hours
    assert day.ends[HELD] <= TURNS * day.by_hand
    assert max(day.tasks[1:]) <= max(day.tasks[0], 60), f"tasks at each hour's end: {day.tasks}"
    old, new = day.weights
    assert old <= new + FEW, f"one that lived through it keeps {old} objects, one that has just begun {new}"
    assert threading.active_count() <= threads
    assert len(list(FILES.iterdir())) <= files


@pytest.mark.timeout(7200)
def test_serve_over_git_keeps_no_descriptor_and_no_thread(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    hours: int = max(request.config.getoption("--sim-hours") // 4, 2)
    with git_stores(tmp_path) as stores:
        day = Day(3, opened=stores)
        with errors_are_telling(day):
            run(day.live(hours), VirtualLoop())
    assert not day.violations, "\n".join((*day.violations[:10], "The last actions:", *day.actions[-40:]))
    assert day.ends["done"] + day.ends["accepted"] >= hours
    assert max(day.files[1:]) <= day.files[0], f"descriptors at each hour's end: {day.files}"
    assert max(day.threads[1:]) <= day.threads[0], f"threads at each hour's end: {day.threads}"


@pytest.mark.timeout(7200)
def test_of_two_that_serve_one_fleet_one_commands_and_the_other_takes_over(
    request: pytest.FixtureRequest,
) -> None:
    hours: int = max(request.config.getoption("--sim-hours") // 2, 1)
    day = TwoControllers(0)
    with errors_are_telling(day):
        run(day.live(hours), VirtualLoop())
    assert not day.violations, "\n".join((*day.violations[:10], "The last actions:", *day.actions[-40:]))
    assert day.ends["done"] + day.ends["accepted"] >= hours
