"""A history: a fleet, what people and fate do to it, and the peace afterwards in which everything must settle."""

import asyncio
from collections.abc import Collection, Iterable
from random import Random

from llmgw import __version__
from llmgw.model.ids import key_id
from llmgw.model.plan import Action, Plan, StepKind
from llmgw.model.struct import Struct, replace
from tests.sim.commits import LOADED, FleetWish, ModelWish, NodeWish, first_name, unfrozen
from tests.sim.deeds import DEEDS, LOOK_EVERY, Event, agent_again
from tests.sim.loop import DeadlockError, VirtualLoop, run
from tests.sim.store import OpenStore
from tests.sim.world import LAST_ACTIONS, World

PASSES = 160
"""Forty minutes: a broken spec is tried three times before it is given up, and a failed job rests for a minute."""
STAYS = 120.0
"""Seconds that peace must last to be believed: an engine that exits now and then is well in between."""
QUIET = 900.0


class History(Struct):
    """``seed`` draws what the events leave open: delays, and how engines behave."""

    seed: int
    start: FleetWish
    events: tuple[Event, ...]
    allow_prune: bool

    @property
    def machines(self) -> tuple[NodeWish, ...]:
        """Every machine that is ever a node, as it is first spoken of."""
        wishes = (self.start, *(event.wish for event in self.events if event.wish is not None))
        found: dict[str, NodeWish] = {}
        for wish in wishes:
            for node in wish.nodes:
                found.setdefault(node.name, node)
        return tuple(found.values())


class Ran(Struct):
    """How it went. ``digest`` sums up everything that happened, ``calls`` counts what a life did to the world, ``versions``
    are those of the record."""

    history: History
    draw: int
    violations: tuple[str, ...]
    actions: tuple[str, ...]
    digest: str
    calls: int
    versions: tuple[str, ...]

    def story(self, last: int = LAST_ACTIONS) -> str:
        """Everything one needs to look into a failure."""
        lines = ["What went wrong:", *(f"  {text}" for text in self.violations[:10])]
        lines += ["", "The fleet:", *(f"  {node}" for node in self.history.start.nodes)]
        lines += [f"  {model}" for model in self.history.start.models]
        lines += ["", "The events:", *(f"  {event}" for event in self.history.events)]
        lines += ["", f"The last {last} actions:", *(f"  {action}" for action in self.actions[-last:])]
        return "\n".join(lines)


# ---- run ---------------------------------------------------------------------------------------------


def play(history: History, *, draw: int = 0, opened: OpenStore | None = None) -> Ran:
    """Ends early at the first violation. Another ``draw`` leaves the events as they are, and draws the rest anew. ``opened``
    gives each machine its record store, in memory if nothing is said."""
    worlds: list[World] = []
    broken = ""
    try:
        run(_play(history, draw, opened, worlds), VirtualLoop())
    except DeadlockError as lost:
        broken = f"nothing can ever happen again: {lost}"
    world = worlds[0]
    return Ran(
        history=history,
        draw=draw,
        violations=(*world.violations, *([broken] if broken else [])),
        actions=tuple(world.actions),
        digest=world.digest(),
        calls=world.calls,
        versions=tuple(written.version for written in world.store.written),
    )


async def _play(history: History, draw: int, opened: OpenStore | None, worlds: list[World]) -> None:
    world = World(
        Random(history.seed * 7919 + 1 + draw),
        history.start,
        machines=history.machines,
        allow_prune=history.allow_prune,
        opened=opened,
    )
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


def faults_end(world: World) -> None:
    """Whatever was broken is whole again; who was down comes up. Engines that hang hang on: their agents must see to it."""
    world.told("PEACE")
    world.store.trouble = ""
    for node in world.nodes.values():
        node.line.cuts.clear()
        node.line.delay = 0.0
        node.line.echo = None
        node.line.hears.set()
        node.line.speaks.set()
        node.contents.full = False
        node.machine.foreign.clear()
        node.machine.strangers.clear()
        node.machine.gpus = tuple(replace(gpu, health=()) for gpu in node.machine.gpus)
        node.trouble_with_jobs = 0
        node.crash_at_work = 0
        if node.agent is not None:
            node.agent.crash_in(0)
        node.come_up()


async def _peace(world: World) -> None:
    """Faults end, and so does a freeze; passes go on until nothing is left to do."""
    faults_end(world)
    wish = world.commits.wishes[-1]
    if wish != unfrozen(wish):
        world.commits.add(unfrozen(wish))
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
            quiet = quiet and not any(node.at_work() for node in world.nodes.values())
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
        for start in node.machine.starts[begun[name] :]:
            if first_name(world.invariants.specs[start[1]].model) not in _never_at_rest(world):
                world.violate(f"{name}: a process was started while everything had settled: {start}")


def _never_at_rest(world: World) -> set[str]:
    """What ends by itself again and again is tried ever less often, and never left for good."""
    return {it.name for past in world.commits.wishes for it in past.models if it.manner == "exits later"}


async def _nothing_to_do(world: World, when: str) -> None:
    plan = (await world.controllers.look()).plan
    tried = _never_at_rest(world)
    _nothing_planned(world, plan, tried, when)
    blocked = {first_name(change.model) for change in plan.blocked if change.model is not None} | tried
    record, wish = world.store.record, world.commits.wishes[-1]
    managed = record.replicas.keys() if record is not None else frozenset()
    serving = {name: found & managed for name, found in world.invariants.serving().items()}
    for model in wish.models:
        there = len(serving.get(model.name, set()))
        if model.name not in blocked and there != model.replicas:
            world.violate(
                f"{when}: {there} of {model.replicas} replicas of {model.name} serve, and nothing is blocked"
            )
    _have_the_newest_key(world, {it.name for it in wish.models} - blocked, when)
    _agents_are_right(world, {first_name(it.address.removeprefix("node/")) for it in plan.blocked}, when)
    _have_their_adapters(world, (it for it in wish.models if it.name not in blocked), when)
    for name, there_still in serving.items():
        if there_still and wish.model(name) is None and name not in blocked:
            world.violate(f"{when}: {name} is not in Git and serves on")
    if not blocked:
        world.invariants.empty(
            {name for name in world.nodes if name not in {it.name for it in wish.nodes if not it.drain}}, when
        )


def _have_the_newest_key(world: World, models: Collection[str], when: str) -> None:
    """A rotation has come to its end: nothing depends on an earlier secret, but for what it can't replace."""
    record, secret = world.store.record, world.controllers.secret
    newest = key_id(secret.make())
    replicas = record.replicas.values() if record is not None else ()
    others = [it for it in replicas if first_name(it.model) not in models]
    for replica in replicas:
        if replica not in others and replica.spec.key_id != newest:
            world.violate(
                f"{when}: {replica.id} has a key from {replica.spec.key_id}, and the secret is {newest}"
            )
    if record is not None and not others and not record.forgotten and (kept := sorted(secret.kept())):
        world.violate(f"{when}: the secrets {kept} are kept, and nothing needs them")


def _agents_are_right(world: World, blocked: Collection[str], when: str) -> None:
    wish = world.commits.wishes[-1]
    for it in wish.nodes:
        agent, called = world.nodes[it.name].info, wish.called(it.name)
        if it.name in blocked or agent is None:
            continue
        if agent.node != called:
            world.violate(f"{when}: the agent of {called} calls itself {agent.node}")
        if agent.version != __version__ and not wish.agents:
            world.violate(f"{when}: the agent of {called} is {agent.version}")


def _nothing_planned(world: World, plan: Plan, tried: Collection[str], when: str) -> None:
    """But for ``tried``, and what is dropped along with their commands."""
    commands = [it for it in plan.commands if first_name(it.model or "") not in tried]
    along = len(commands) < len(plan.commands) and all(it.kind is StepKind.FORGET for it in commands)
    for step in () if along else commands:
        world.violate(f"{when}: {step.id} is to be done: {step.reason}")
    for change in plan.changes:
        if change.action is not Action.BLOCKED and first_name(change.model or "") not in tried:
            world.violate(f"{when}: {change.action.value} {change.address}: {change.reason}")
    for text in plan.waiting:
        if first_name(text.removeprefix("model/").partition("/")[0]) not in tried:
            world.violate(f"{when}: waits: {text}")


def _have_their_adapters(world: World, models: Iterable[ModelWish], when: str) -> None:
    """Engines themselves, not what their agents say."""
    wanted = {it.name: sorted(it.adapters[:LOADED]) for it in models if it.adapters is not None}
    for name, node in world.nodes.items():
        for process in node.machine.living():
            shard = process.order.shard
            asked = wanted.get(first_name(shard.partition("-")[0]))
            if asked is not None and shard.endswith("-r0") and sorted(process.adapters) != asked:
                world.violate(
                    f"{when}: {shard} on {name} has the adapters {[*process.adapters]}, not {asked}"
                )
