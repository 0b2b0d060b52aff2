"""A history: a fleet, what people and fate do to it, and the peace afterwards in which everything must settle.

All of it follows from one number. Run one by hand: ``python -m tests.sim.history SEED``.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from llmgw.controller.nodes.memory import Cut
from llmgw.model.claims import GpuClaim
from llmgw.model.facts import GpuProcess
from llmgw.model.manifest import GIB
from llmgw.model.plan import Action
from tests.sim.commits import PORTS, FleetWish, edited, first_wish, with_gangs
from tests.sim.controllers import SLEEPS
from tests.sim.loop import DeadlockError, VirtualLoop, run
from tests.sim.node import SimNode
from tests.sim.world import LAST_ACTIONS, World

LOOK_EVERY = 15.0
"""Seconds between passes while things settle, as `apply --wait` looks."""
PASSES = 160
"""Forty minutes: a broken spec is tried three times before it is given up, and a failed job rests for five minutes."""
STAYS = 120.0
"""Seconds that peace must last to be believed: an engine that exits now and then is well in between."""
QUIET = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that people or fate do, and how long until the next. Which node is meant counts modulo their number."""

    kind: str
    node: int = 0
    seconds: float = 0.0
    calls: int = 0
    at_work: bool = False  # the calls count from when there is something to do
    gap: float = 0.0
    text: str = ""
    wish: FleetWish | None = None

    def __str__(self) -> str:
        told = [self.kind]
        if self.kind in FAULTS:
            told.append(f"node{self.node}")
        told += [f"for {self.seconds:.1f} s"] if self.seconds else []
        told += [f"at call {self.calls}{' of its work' if self.at_work else ''}"] if self.calls else []
        told += [self.text] if self.text else []
        return f"{' '.join(told)}, then {self.gap:.1f} s"


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


# ---- what happens ------------------------------------------------------------------------------------


async def _commit(world: World, event: Event) -> None:
    assert event.wish is not None
    world.commits.add(event.wish)


async def _apply(world: World, event: Event) -> None:
    machine = ("ann@desk", "bob@laptop")[event.node % 2]
    task = world.controllers.begin(machine, crash_in=event.calls or None, at_work=event.at_work)
    await asyncio.wait({task}, timeout=event.seconds or None)


async def _apply_waits(world: World, event: Event) -> None:
    """`apply --wait`, until it has settled or somebody has had enough."""
    machine = ("ann@desk", "bob@laptop")[event.node % 2]
    crash_in = event.calls if event.calls % 3 == 0 else None
    await asyncio.wait({world.controllers.begin(machine, crash_in=crash_in, waits=event.seconds)})


async def _apply_twice(world: World, event: Event) -> None:
    first = world.controllers.begin("ann@desk", crash_in=event.calls or None, at_work=event.at_work)
    await asyncio.sleep(event.seconds)
    second = world.controllers.begin("bob@laptop")
    await asyncio.wait({first, second})


async def _apply_sleeps(world: World, event: Event) -> None:
    """One machine falls asleep in the middle of its apply; another goes on meanwhile."""
    sleeper = world.controllers.begin("ann@desk", freeze_in=event.calls, at_work=event.at_work)
    await asyncio.sleep(event.seconds)
    for _ in range(3):
        await asyncio.wait({world.controllers.begin("bob@laptop")})
        await asyncio.sleep(20.0)
    await asyncio.wait({sleeper}, timeout=SLEEPS)


async def _settle_a_while(world: World, event: Event) -> None:
    """As `apply --wait` would for some minutes."""
    end = world.loop.elapsed + event.seconds
    while world.loop.elapsed < end:
        await asyncio.wait({world.controllers.begin("ann@desk")})
        await asyncio.sleep(LOOK_EVERY)


async def _crash_agent(world: World, event: Event) -> None:
    node = _node(world, event)
    if event.at_work:
        node.crash_at_work = event.calls
    elif node.agent is not None:
        node.agent.crash_in(event.calls)


async def _kill_agent(world: World, event: Event) -> None:
    node = _node(world, event)
    node.kill_agent()
    _later(world, event.seconds, node)


async def _restart_agent(world: World, event: Event) -> None:
    node = _node(world, event)
    await node.close_agent()
    _later(world, event.seconds, node)


async def _reboot(world: World, event: Event) -> None:
    node = _node(world, event)
    node.reboot()
    world.loop.call_later(event.seconds, node.come_up)
    if event.calls % 2:
        _later(world, event.seconds + 1, node)


async def _engine_dies(world: World, event: Event) -> None:
    living = _node(world, event).machine.living()
    if living:
        process = living[event.calls % len(living)]
        _node(world, event).machine.end(process, None, 11)


async def _cut(world: World, event: Event) -> None:
    cut = Cut.AFTER if event.calls % 2 else Cut.BEFORE
    _node(world, event).line.cuts.extend([cut] * (1 + event.calls % 3))


async def _partition(world: World, event: Event) -> None:
    line = _node(world, event).line
    line.go_down()
    world.loop.call_later(event.seconds, lambda: line.come_back() if _node(world, event).up else None)


async def _disk_full(world: World, event: Event) -> None:
    contents = _node(world, event).contents
    contents.full = True
    world.loop.call_later(event.seconds, lambda: setattr(contents, "full", False))


async def _slow_line(world: World, event: Event) -> None:
    line = _node(world, event).line
    line.delay = 1.0 + event.calls % 40
    world.loop.call_later(event.seconds, lambda: setattr(line, "delay", 0.0))


async def _gpu_sick(world: World, event: Event) -> None:
    machine = _node(world, event).machine
    if not machine.gpus:
        return
    place = event.calls % len(machine.gpus)
    well = machine.gpus

    def heal() -> None:
        machine.gpus = well

    machine.gpus = tuple(
        replace(gpu, health=("Xid 79",)) if index == place else gpu for index, gpu in enumerate(well)
    )
    world.loop.call_later(event.seconds, heal)


async def _stranger(world: World, event: Event) -> None:
    """Somebody runs something by hand: on a GPU that is free, and on a port that nobody holds."""
    machine = _node(world, event).machine
    held = {
        claim.uuid
        for shard in world.invariants.engines(_node(world, event))
        for claim in _claims(world, shard)
    }
    free = [gpu for gpu in machine.gpus if gpu.uuid not in held]
    if free:
        theirs = GpuProcess(pid=77, user="eve", memory=30 * GIB)
        machine.foreign[free[event.calls % len(free)].uuid] = theirs
        world.loop.call_later(event.seconds, machine.foreign.clear)
    port = PORTS.from_port + event.calls % 4
    if not any(port in process.ports for process in machine.living()):
        machine.strangers[port] = 77
        world.loop.call_later(event.seconds, machine.strangers.clear)


def _claims(world: World, shard: str) -> tuple[GpuClaim, ...]:
    spec = world.invariants.specs.get(shard)
    return spec.claims.gpus if spec is not None else ()


async def _clock_jumps(world: World, event: Event) -> None:
    """As when somebody sets it; every machine has the same."""
    world.clock.step += timedelta(seconds=event.seconds if event.calls % 2 else -event.seconds)


async def _jobs_fail(world: World, event: Event) -> None:
    _node(world, event).trouble_with_jobs = 1 + event.calls % 5


async def _store_trouble(world: World, event: Event) -> None:
    world.store.trouble = "unreachable" if event.calls % 2 else "answers get lost"
    world.loop.call_later(event.seconds, lambda: setattr(world.store, "trouble", ""))


def _node(world: World, event: Event) -> SimNode:
    return list(world.nodes.values())[event.node % len(world.nodes)]


def _later(world: World, seconds: float, node: SimNode) -> None:
    """Its init system starts the agent again."""

    def again() -> None:
        if node.up and not node.agent_alive() and node.fleet is not None:
            world.spawn(node.start_agent(node.fleet))

    world.loop.call_later(seconds, again)


Do = Callable[[World, Event], Awaitable[None]]
FAULTS: Mapping[str, Do] = {
    "crash agent": _crash_agent,
    "kill agent": _kill_agent,
    "restart agent": _restart_agent,
    "reboot": _reboot,
    "engine dies": _engine_dies,
    "cut line": _cut,
    "partition": _partition,
    "disk full": _disk_full,
    "slow line": _slow_line,
    "jobs fail": _jobs_fail,
    "gpu sick": _gpu_sick,
    "stranger": _stranger,
}
DEEDS: Mapping[str, Do] = {
    "commit": _commit,
    "apply": _apply,
    "apply waits": _apply_waits,
    "apply twice": _apply_twice,
    "apply sleeps": _apply_sleeps,
    "settle a while": _settle_a_while,
    "store trouble": _store_trouble,
    "clock jumps": _clock_jumps,
    **FAULTS,
}


FATE = (*FAULTS, "store trouble", "clock jumps")
APPLIES = (
    "apply waits",
    "apply",
    "apply",
    "apply",
    "apply crashes",
    "apply crashes",
    "apply twice",
    "apply sleeps",
)

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
            _later(world, 1.0, node)
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
    for name in serving:
        if wish.model(name) is None and name not in blocked:
            world.violate(f"{when}: {name} is not in Git and serves on")


if __name__ == "__main__":
    for number in sys.argv[1:]:
        ran = play(make(int(number)))
        print(ran.story(4000) if ran.violations else f"seed {number}: well, {ran.calls} calls")  # noqa: T201
