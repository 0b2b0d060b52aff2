"""A history: a fleet, what people and fate do to it, and the peace afterwards in which everything must settle.

All of it follows from one number. Run one by hand: ``python -m tests.sim.history SEED``.
"""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from llmgw.model.plan import Action
from tests.sim.commits import (
    LOADED,
    FleetWish,
    ModelWish,
    edited,
    first_wish,
    with_adapters,
    with_gangs,
)
from tests.sim.deeds import APPLIES, DEEDS, FATE, LOOK_EVERY, Event, agent_again
from tests.sim.loop import DeadlockError, VirtualLoop, run
from tests.sim.world import LAST_ACTIONS, World

PASSES = 160
"""Forty minutes: a broken spec is tried three times before it is given up, and a failed job rests for a minute."""
STAYS = 120.0
"""Seconds that peace must last to be believed: an engine that exits now and then is well in between."""
QUIET = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    seed: int
    start: FleetWish
    events: tuple[Event, ...]
    allow_prune: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How it went. ``digest`` sums up everything that happened."""

    history: History
    violations: tuple[str, ...]
    actions: tuple[str, ...]
    digest: str
    calls: int

    def story(self, last: int = LAST_ACTIONS) -> str:
        """Everything one needs to look into a failure."""
        lines = [
            f"seed {self.history.seed}: run it again with python -m tests.sim.history {self.history.seed}"
        ]
        lines += ["", "What went wrong:", *(f"  {text}" for text in self.violations[:10])]
        lines += ["", "The fleet:", *(f"  {node}" for node in self.history.start.nodes)]
        lines += [f"  {model}" for model in self.history.start.models]
        lines += ["", "The events:", *(f"  {event}" for event in self.history.events)]
        lines += ["", f"The last {last} actions:", *(f"  {action}" for action in self.actions[-last:])]
        return "\n".join(lines)


# ---- made from a number ------------------------------------------------------------------------------


def make(seed: int) -> History:
    """Scenes: somebody changes their mind, something breaks, somebody applies, something breaks meanwhile."""
    rng = Random(seed)
    start = wish = first_wish(rng)
    events = [Event(kind="settle a while", seconds=rng.choice((0.1, 40.0, 120.0, 120.0)))]
    for _ in range(rng.randint(4, 8)):
        if rng.random() < 0.8:
            text, wish = edited(rng, wish)
            events.append(Event(kind="commit", text=text, wish=wish, gap=rng.choice((0.0, 0.0, 3.0))))
        if rng.random() < 0.5:
            events.append(_event(rng, rng.choice(FATE), gaps=(0.0, 0.0, 0.5, 3.0)))
        events.append(_event(rng, rng.choice(APPLIES), gaps=(0.0, 0.5, 3.0, 10.0)))
        if rng.random() < 0.5:
            events.append(_event(rng, rng.choice(FATE), gaps=(0.0, 0.5, 3.0, 40.0)))
        if rng.random() < 0.5:
            kind = rng.choice(("settle a while", "apply", "apply twice"))
            events.append(_event(rng, kind, gaps=(0.0, 10.0, 40.0, 130.0)))
    history = History(seed=seed, start=start, events=tuple(events), allow_prune=rng.random() < 0.7)
    return _with_gangs(history) if seed % 3 == 1 else history


def _with_gangs(history: History) -> History:
    events = (
        replace(event, wish=with_gangs(event.wish)) if event.wish is not None else event
        for event in history.events
    )
    return replace(history, start=with_gangs(history.start), events=tuple(events))


def adapted(history: History) -> History:
    """The same history of a fleet whose models have LoRA adapters, others at each commit."""
    events, turn = [], 1
    for event in history.events:
        if event.wish is not None:
            turn += 1
            events.append(replace(event, wish=with_adapters(event.wish, turn)))
        else:
            events.append(event)
    return replace(history, start=with_adapters(history.start, 1), events=tuple(events))


def _event(rng: Random, kind: str, *, gaps: Sequence[float]) -> Event:
    seconds = {
        "apply": rng.choice((0.0, 0.0, 0.2, 3.0)),  # 0: until it has ended
        "apply crashes": 0.0,
        "apply twice": rng.choice((0.0, 0.1, 1.0, 5.0)),
        "apply waits": rng.choice((20.0, 200.0, 600.0)),
        "apply sleeps": rng.choice((5.0, 118.0, 125.0, 150.0)),
        "settle a while": rng.choice((45.0, 120.0)),
        "store trouble": rng.choice((2.0, 30.0, 200.0)),
        "kill agent": rng.choice((0.5, 5.0, 60.0)),
        "restart agent": rng.choice((0.5, 5.0)),
        "reboot": rng.choice((20.0, 90.0)),
        "partition": rng.choice((5.0, 60.0, 400.0)),
        "disk full": rng.choice((10.0, 60.0, 300.0)),
        "gpu sick": rng.choice((20.0, 200.0)),
        "stranger": rng.choice((20.0, 200.0)),
        "clock jumps": rng.choice((3.0, 60.0, 300.0)),
        "slow line": rng.choice((20.0, 120.0)),
    }.get(kind, 0.0)
    crashes = kind in ("apply crashes", "apply sleeps", "apply waits") or (
        kind == "apply twice" and rng.random() < 0.4
    )
    calls = rng.choice((rng.randint(1, 12), rng.randint(1, 90)))
    return Event(
        kind="apply" if kind == "apply crashes" else kind,
        node=rng.randint(1, 4),
        seconds=seconds,
        calls=calls if kind in FATE or crashes else 0,
        at_work=rng.random() < 0.7,
        gap=rng.choice(gaps),
    )


# ---- run ---------------------------------------------------------------------------------------------


def play(history: History) -> Ran:
    """Ends early at the first violation."""
    worlds: list[World] = []
    broken = ""
    try:
        run(_play(history, worlds), VirtualLoop())
    except DeadlockError as lost:
        broken = f"nothing can ever happen again: {lost}"
    world = worlds[0]
    return Ran(
        history=history,
        violations=(*world.violations, *([broken] if broken else [])),
        actions=tuple(world.actions),
        digest=world.digest(),
        calls=world.calls,
    )


async def _play(history: History, worlds: list[World]) -> None:
    world = World(Random(history.seed * 7919 + 1), history.start, allow_prune=history.allow_prune)
    worlds.append(world)
    try:
        for event in history.events:
            world.told(f"EVENT {event}")
            await DEEDS[event.kind](world, event)
            await asyncio.sleep(event.gap)
            if world.violations:
                break
        if not world.violations:
            await _peace(world)
    finally:
        world.close()


async def _peace(world: World) -> None:
    """Faults end; passes go on until nothing is left to do."""
    world.told("PEACE")
    world.store.trouble = ""
    for node in world.nodes.values():
        node.line.cuts.clear()
        node.line.delay = 0.0
        node.contents.full = False
        node.machine.foreign.clear()
        node.machine.strangers.clear()
        node.machine.gpus = tuple(replace(gpu, health=()) for gpu in node.machine.gpus)
        node.trouble_with_jobs = 0
        node.crash_at_work = 0
        if node.agent is not None:
            node.agent.crash_in(0)
        node.come_up()
    running = list(world.controllers.running)
    if running:
        _, late = await asyncio.wait(running, timeout=600)
        if late:
            world.violate(f"{len(late)} passes did not end within 10 minutes")
    for index, node in enumerate(world.nodes.values()):
        if index % 2 == 0:
            agent_again(world, 1.0, node)
    if await settled(world):
        await look_closely(world)


async def settled(world: World) -> bool:
    seen: list[str] = []
    settled_before = False
    for _ in range(PASSES):
        task = world.controllers.begin("ann@desk")
        await asyncio.wait({task})
        if world.violations:
            return False
        result = task.result()
        if result is not None:
            plan = result.plan
            quiet = not plan.commands and not plan.waiting
            if quiet and settled_before:
                return True
            if quiet:
                await asyncio.sleep(STAYS)
            settled_before = quiet
            seen = [step.id for step in plan.commands] + list(plan.waiting)
        await asyncio.sleep(LOOK_EVERY)
    world.violate(f"not settled after {PASSES} passes: {'; '.join(seen)}")
    return False


async def look_closely(world: World) -> None:
    await _nothing_to_do(world, "settled")
    world.invariants.at_the_end()
    begun = {name: len(node.machine.starts) for name, node in world.nodes.items()}
    await asyncio.sleep(QUIET)
    await _nothing_to_do(world, "a quarter of an hour later")
    for name, node in world.nodes.items():
        if len(node.machine.starts) != begun[name]:
            world.violate(
                f"{name}: processes were started while everything had settled: {node.machine.starts[-1]}"
            )


async def _nothing_to_do(world: World, when: str) -> None:
    plan = (await world.controllers.look()).plan
    for step in plan.commands:
        world.violate(f"{when}: {step.id} is to be done: {step.reason}")
    for change in plan.changes:
        if change.action is not Action.BLOCKED:
            world.violate(f"{when}: {change.action.value} {change.address}: {change.reason}")
    for text in plan.waiting:
        world.violate(f"{when}: waits: {text}")
    blocked = {change.model for change in plan.blocked}
    serving = world.invariants.serving()
    wish = world.commits.wishes[-1]
    for model in wish.models:
        there = len(serving.get(model.name, set()))
        if model.name not in blocked and there != model.replicas:
            world.violate(
                f"{when}: {there} of {model.replicas} replicas of {model.name} serve, and nothing is blocked"
            )
    _have_their_adapters(world, (it for it in wish.models if it.name not in blocked), when)
    for name in serving:
        if wish.model(name) is None and name not in blocked:
            world.violate(f"{when}: {name} is not in Git and serves on")


def _have_their_adapters(world: World, models: Iterable[ModelWish], when: str) -> None:
    """Engines themselves, not what their agents say."""
    wanted = {it.name: sorted(it.adapters[:LOADED]) for it in models if it.adapters is not None}
    for name, node in world.nodes.items():
        for process in node.machine.living():
            shard = process.order.shard
            asked = wanted.get(shard.partition("-")[0])
            if asked is not None and shard.endswith("-r0") and sorted(process.adapters) != asked:
                world.violate(
                    f"{when}: {shard} on {name} has the adapters {[*process.adapters]}, not {asked}"
                )


if __name__ == "__main__":
    for number in sys.argv[1:]:
        ran = play(make(int(number)))
        print(ran.story(4000) if ran.violations else f"seed {number}: well, {ran.calls} calls")  # noqa: T201
