"""What people and fate do in a history, one function each."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from llmgw.controller.nodes.memory import Cut
from llmgw.controller.passes.custody import adopting, forgetting
from llmgw.model.claims import GpuClaim
from llmgw.model.facts import GpuProcess
from llmgw.model.manifest import GIB
from llmgw.model.struct import Struct, replace
from tests.sim.commits import OLD_AGENT, PORTS, FleetWish
from tests.sim.controllers import SLEEPS
from tests.sim.node import SimNode
from tests.sim.world import World

LOOK_EVERY = 15.0
"""Seconds between passes while things settle, as `apply --wait` looks."""


class Event(Struct):
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
    work = world.controllers.until_settled(event.seconds)
    await asyncio.wait({world.controllers.begin(machine, work, crash_in=crash_in)})


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


async def _apply_sleeps_alone(world: World, event: Event) -> None:
    """A lid is closed over an apply, and opened again; nobody else has applied meanwhile."""
    await asyncio.wait({world.controllers.begin("ann@desk", freeze_in=event.calls, at_work=event.at_work)})


async def _settle_a_while(world: World, event: Event) -> None:
    """As `apply --wait` would for some minutes."""
    end = world.loop.elapsed + event.seconds
    while world.loop.elapsed < end:
        await asyncio.wait({world.controllers.begin("ann@desk")})
        await asyncio.sleep(LOOK_EVERY)


async def _replace(world: World, event: Event) -> None:
    """Somebody wants new copies though nothing changed."""
    models = world.commits.wishes[-1].models
    if models:
        model = models[event.calls % len(models)].name
        called = world.commits.wishes[-1].called(model)
        work = world.controllers.once_with(replaced=(f"model/{called}",))
        await asyncio.wait({world.controllers.begin("ann@desk", work)})


async def _target(world: World, event: Event) -> None:
    """Somebody applies one change of many, though changes may be frozen."""
    wish = world.commits.wishes[-1]
    things = [f"model/{wish.called(it.name)}" for it in wish.models]
    things += [f"node/{wish.called(it.name)}" for it in wish.nodes]
    target = things[event.calls % len(things)]
    work = world.controllers.once_with(targets=(target,), override="it burns" if event.node % 2 else "")
    await asyncio.wait({world.controllers.begin("ann@desk", work)})


async def _forget(world: World, event: Event) -> None:
    """Somebody takes a replica out of management; it runs on."""
    record = world.store.record
    replicas = sorted(record.replicas) if record is not None else []
    if replicas:
        custody = forgetting(replicas[event.calls % len(replicas)], why="to look into it")
        await asyncio.wait({world.controllers.begin("ann@desk", world.controllers.takes(custody))})


async def _adopt(world: World, event: Event) -> None:
    record = world.store.record
    forgotten = sorted(record.forgotten) if record is not None else []
    if forgotten:
        work = world.controllers.takes(adopting(forgotten[event.calls % len(forgotten)]))
        await asyncio.wait({world.controllers.begin("bob@laptop", work)})


async def _prune_unrecorded(world: World, event: Event) -> None:
    work = world.controllers.once_with(prune_unrecorded=True)
    await asyncio.wait({world.controllers.begin("ann@desk", work)}, timeout=event.seconds or None)


async def _rotate_secret(world: World, event: Event) -> None:
    """Whoever keeps the secret makes another, and hands it to the others some time later."""
    keeper, other = (world.controllers.machines[name] for name in ("ann@desk", "bob@laptop"))
    work = world.controllers.rotates
    await asyncio.wait({world.controllers.begin(keeper.holder, work, crash_in=event.calls or None)})
    world.loop.call_later(event.seconds, lambda: world.controllers.hand_over(keeper, other))


async def _older_agent(world: World, event: Event) -> None:
    """As a former llmgw has left it: the controllers have been upgraded since."""
    node = _node(world, event)
    await node.close_agent()
    node.version = OLD_AGENT
    agent_again(world, event.seconds, node)


async def _crash_agent(world: World, event: Event) -> None:
    node = _node(world, event)
    if event.at_work:
        node.crash_at_work = event.calls
    elif node.agent is not None:
        node.agent.crash_in(event.calls)


async def _kill_agent(world: World, event: Event) -> None:
    node = _node(world, event)
    node.kill_agent()
    agent_again(world, event.seconds, node)


async def _restart_agent(world: World, event: Event) -> None:
    node = _node(world, event)
    await node.close_agent()
    agent_again(world, event.seconds, node)


async def _reboot(world: World, event: Event) -> None:
    node = _node(world, event)
    node.reboot()
    world.loop.call_later(event.seconds, node.come_up)
    if event.calls % 2:
        agent_again(world, event.seconds + 1, node)


async def _engine_dies(world: World, event: Event) -> None:
    living = _node(world, event).machine.living()
    if living:
        process = living[event.calls % len(living)]
        _node(world, event).machine.end(process, None, 11)


async def _engine_hangs(world: World, event: Event) -> None:
    """Some come to themselves soon, others never do."""
    serving = [it for it in _node(world, event).machine.living() if it.script.ready_after is not None]
    if not serving:
        return
    node, process = _node(world, event), serving[event.calls % len(serving)]
    node.hang(process)
    if event.calls % 3:
        world.loop.call_later(event.seconds, lambda: node.thaw(process))


async def _wipe(world: World, event: Event) -> None:
    """The machine is installed anew: it has the same name and address, and remembers nothing."""
    node = _node(world, event)
    node.wipe()
    world.loop.call_later(event.seconds, node.come_up)


async def _cut(world: World, event: Event) -> None:
    cut = Cut.AFTER if event.calls % 2 else Cut.BEFORE
    _node(world, event).line.cuts.extend([cut] * (1 + event.calls % 3))


async def _partition(world: World, event: Event) -> None:
    line = _node(world, event).line
    line.go_down()
    world.loop.call_later(event.seconds, lambda: line.come_back() if _node(world, event).up else None)


async def _one_way(world: World, event: Event) -> None:
    """Only one direction of the line works, and no connection breaks of it: either nothing arrives until it works again, or
    everything does and no answer comes back."""
    line = _node(world, event).line
    way = line.hears if event.calls % 2 else line.speaks
    way.clear()
    world.loop.call_later(event.seconds, way.set)


async def _said_twice(world: World, event: Event) -> None:
    """Each command comes again, when much else may have come in between."""
    line = _node(world, event).line
    line.echo = (0.0, 0.3, 5.0, 40.0)[event.calls % 4]
    world.loop.call_later(event.seconds, lambda: setattr(line, "echo", None))


async def _disk_full(world: World, event: Event) -> None:
    contents = _node(world, event).contents
    contents.full = True
    world.loop.call_later(event.seconds, lambda: setattr(contents, "full", False))


async def _slow_line(world: World, event: Event) -> None:
    line = _node(world, event).line
    line.delay = 1.0 + event.calls % 40
    world.loop.call_later(event.seconds, lambda: setattr(line, "delay", 0.0))


async def _orders_come_late(world: World, event: Event) -> None:
    """The next pass looks over a fast line, and what it orders then is on its way for long; whoever comes after it is faster."""
    line = _node(world, event).line

    def slow() -> None:
        line.delay = 5.0 + event.calls % 40
        world.loop.call_later(event.seconds, lambda: setattr(line, "delay", 0.0))

    world.store.at_next_intent.append(slow)


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
    """As when somebody sets the clock that every machine goes by."""
    world.set_clocks(_ahead_or_back(event))


async def _node_clock_jumps(world: World, event: Event) -> None:
    world.set_clocks(_ahead_or_back(event), _node(world, event).clock)


async def _controller_clock_jumps(world: World, event: Event) -> None:
    world.set_clocks(_ahead_or_back(event), world.controllers.machines["bob@laptop"].clock)


def _ahead_or_back(event: Event) -> float:
    return event.seconds if event.calls % 2 else -event.seconds


async def _jobs_fail(world: World, event: Event) -> None:
    _node(world, event).trouble_with_jobs = 1 + event.calls % 5


async def _store_trouble(world: World, event: Event) -> None:
    world.store.trouble = "unreachable" if event.calls % 2 else "answers get lost"
    world.loop.call_later(event.seconds, lambda: setattr(world.store, "trouble", ""))


def _node(world: World, event: Event) -> SimNode:
    return list(world.nodes.values())[event.node % len(world.nodes)]


def agent_again(world: World, seconds: float, node: SimNode) -> None:
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
    "older agent": _older_agent,
    "reboot": _reboot,
    "engine dies": _engine_dies,
    "engine hangs": _engine_hangs,
    "wipe": _wipe,
    "cut line": _cut,
    "one way": _one_way,
    "said twice": _said_twice,
    "node clock jumps": _node_clock_jumps,
    "partition": _partition,
    "disk full": _disk_full,
    "slow line": _slow_line,
    "orders come late": _orders_come_late,
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
    "apply sleeps alone": _apply_sleeps_alone,
    "settle a while": _settle_a_while,
    "store trouble": _store_trouble,
    "replace": _replace,
    "target": _target,
    "forget": _forget,
    "adopt": _adopt,
    "prune unrecorded": _prune_unrecorded,
    "rotate secret": _rotate_secret,
    "clock jumps": _clock_jumps,
    "controller clock jumps": _controller_clock_jumps,
    **FAULTS,
}

HANDS = (
    "replace",
    "replace",
    "target",
    "target",
    "forget",
    "adopt",
    "prune unrecorded",
    *["rotate secret"] * 3,
)
"""What people ask for beside commits."""
FATE = (*FAULTS, "store trouble", "clock jumps", "controller clock jumps")
APPLIES = (
    "apply waits",
    "apply",
    "apply",
    "apply",
    "apply crashes",
    "apply crashes",
    "apply twice",
    "apply sleeps",
    "apply sleeps alone",
)
