"""What an earlier agent left: each order is looked at before the first report, and its shard goes on from what is
found. Nothing is started or stopped here."""

import asyncio
from collections.abc import Mapping
from datetime import datetime

from llmgw.agent.seams import Running
from llmgw.agent.shards import autopsy, late
from llmgw.agent.shards.orders import SAFE_SHARD, Found, StoredOrder
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import LIVE, Adopted, Event, Exited, Rebooted, Resumed, StopAsked
from llmgw.core.lifecycle import newborn
from llmgw.model.claims import Claims
from llmgw.model.ids import ReplicaId, ShardId, parse_replica_id, parse_shard_id
from llmgw.model.launch import ENGINE, LaunchSpec, Probes, Process
from llmgw.model.report import Exit, ShardState
from llmgw.model.struct import Struct, field, replace
from llmgw.wire.codec import CodecError

ITS_ORDER = "its order"
"""As what is lost of a shard of which only the name is known."""


class Adoption(Struct):
    """A shard to go on with: its order, what is still running, what to tell the table first."""

    order: StoredOrder
    events: tuple[Event, ...]
    running: tuple[Running, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""


async def look(order: StoredOrder, around: Surroundings) -> Adoption:
    kept = await _secrets(order, around)
    secrets = kept or {}
    # Also of an order that needs none: what can't be read would be in the way of its next launch.
    missing = kept is None or late.secrets_used(order.spec) - set(secrets)
    return replace(await _look(order, around, secrets), lost="its secrets" if missing else "")


class Legacy(Struct):
    """Everything that an earlier agent left. ``unreadable``: shard -> what is wrong with its order, to be told as long as it
    is so; ``strays``: the same of shards that stand in no order and of which processes run."""

    adoptions: tuple[Adoption, ...]
    unreadable: Mapping[str, str]
    strays: Mapping[str, str]


async def legacy(around: Surroundings) -> Legacy:
    found = await around.orders.load()
    looked = await asyncio.gather(*(look(order, around) for order in found.orders))
    unreadable = {shard: _unreadable(shard, why) for shard, why in found.unreadable.items()}
    known = {str(order.spec.shard) for order in found.orders}
    nameless = [
        Adoption(order=orphan(shard, why, around), events=(), lost=ITS_ORDER)
        for shard, why in unreadable.items()
        if SAFE_SHARD.match(shard) and shard not in known
    ]
    strays = [
        await _stray(shard, around)
        for shard in await around.spawner.strays(frozenset(known | set(unreadable)))
    ]
    return Legacy(
        adoptions=(*looked, *nameless, *strays),
        unreadable=unreadable,
        strays={one.order.spec.shard: one.order.life.reason for one in strays},
    )


async def only(shard: ShardId, found: Found, around: Surroundings) -> Adoption | None:
    """Of all that an earlier agent left this one shard; None: there is no such shard."""
    if order := next((one for one in found.orders if one.spec.shard == shard), None):
        return await look(order, around)
    if not SAFE_SHARD.match(shard):
        return None
    if why := found.unreadable.get(shard):
        return Adoption(order=orphan(shard, _unreadable(shard, why), around), events=(), lost=ITS_ORDER)
    return await _stray(shard, around) if await around.spawner.remaining(shard) else None


def _unreadable(shard: str, why: str) -> str:
    return f"the order of shard {shard} can't be read: {why}: stop the shard or start it anew"


async def _stray(shard: str, around: Surroundings) -> Adoption:
    """An engine goes on until its order comes again, or a stop; without an engine nobody can want what runs, and nobody
    else will ever end it."""
    spawner = around.spawner
    left = await spawner.describe(await spawner.remaining(shard))
    engine = isinstance(await spawner.find(shard, ENGINE, around.status_file(shard, ENGINE)), Running)
    what = "start it anew or stop it" if engine else "ended"
    order = orphan(shard, f"{left} of shard {shard} is running, and its order is gone: {what}", around)
    if engine:
        return Adoption(order=order, events=(), lost=ITS_ORDER)
    return Adoption(order=order, events=(StopAsked(reason="left without its engine"),))


async def running_already(spec: LaunchSpec, around: Surroundings) -> tuple[Running, ...]:
    """The processes of an order that comes for what runs: its agent has lost the order, and the name holds the digest
    of all that decides how it runs. Empty unless its engine is among them."""
    found = [
        await around.spawner.find(spec.shard, process.name, around.status_file(spec.shard, process))
        for process in spec.processes
    ]
    running = tuple(one for one in found if isinstance(one, Running))
    return running if any(one.process == ENGINE for one in running) else ()


async def _look(order: StoredOrder, around: Surroundings, secrets: Mapping[str, str]) -> Adoption:
    here = around.settings.boot_id
    if order.boot_id != here:
        return Adoption(
            order=replace(order, boot_id=here, processes=()), events=(Rebooted(),), secrets=secrets
        )
    shard = order.spec.shard
    found = {
        process.name: await around.spawner.find(
            shard,
            process.name,
            around.status_file(shard, process),
            known=next((one for one in order.processes if one.process == process.name), None),
        )
        for process in order.spec.processes
    }
    running = tuple(one for one in found.values() if isinstance(one, Running))
    engine = found.get(ENGINE)
    if isinstance(engine, Running):
        lost = [
            await _lost_sidecar(order, found, process, around, secrets) for process in order.spec.processes
        ]
        events: tuple[Event, ...] = (Adopted(), *(one for one in lost if one is not None))
        return Adoption(order=order, events=events, running=running, secrets=secrets)
    recorded = next((one for one in order.processes if one.process == ENGINE), None)
    evidence = autopsy.NOTHING_SEEN
    if engine is not None and recorded is not None:
        evidence = await around.evidence(engine, recorded, order.spec)
    ended = _without_engine(order, engine, around, secrets, evidence)
    return Adoption(order=order, events=ended, running=running, secrets=secrets)


async def _lost_sidecar(
    order: StoredOrder,
    found: Mapping[str, Running | Exit | None],
    process: Process,
    around: Surroundings,
    secrets: Mapping[str, str],
) -> Exited | None:
    """The end, unseen, of one that the engine can't do without. All were started before it."""
    seen = found[process.name]
    recorded = next((one for one in order.processes if one.process == process.name), None)
    if process.optional or isinstance(seen, Running) or (seen is None and recorded is None):
        return None
    exit_ = seen or Exit(
        at=around.clock.now(), process=process.name, detail="nothing is known of it after the agent's restart"
    )
    evidence = await around.evidence(exit_, recorded, order.spec) if recorded else autopsy.NOTHING_SEEN
    output = around.logs.since(order.spec.shard, process.name, 0, most=autopsy.READ)
    return Exited(exit=autopsy.explain(exit_, autopsy.mask(output, secrets.values()), evidence))


async def _secrets(order: StoredOrder, around: Surroundings) -> Mapping[str, str] | None:
    """None: they can't be read. What runs needs none."""
    try:
        return await around.orders.secrets(order.spec.shard)
    except CodecError:
        return None


def _without_engine(
    order: StoredOrder,
    found: Exit | None,
    around: Surroundings,
    secrets: Mapping[str, str],
    evidence: autopsy.Evidence,
) -> tuple[Event, ...]:
    life = order.life
    exit_ = found
    if exit_ is not None and life.state is ShardState.STARTING and exit_.at < life.since:
        exit_ = None  # an earlier start's: the agent died before it could start this one
    if exit_ is None and life.state in LIVE and any(one.process == ENGINE for one in order.processes):
        exit_ = Exit(at=around.clock.now(), detail="nothing is known of it after the agent's restart")
    if exit_ is None:
        return (Resumed(),)
    output = around.logs.since(order.spec.shard, ENGINE, 0, most=autopsy.READ)
    ended = Exited(exit=autopsy.explain(exit_, autopsy.mask(output, secrets.values()), evidence))
    if life.state in LIVE or life.state is ShardState.DRAINING:
        return (ended,)
    return (ended, Resumed()) if life.state is ShardState.STOPPING else (Resumed(),)


def orphan(shard: str, why: str, around: Surroundings) -> StoredOrder:
    """A shard of which only the name is known: its order is lost or unreadable. It can be stopped and forgotten."""
    return nameless(shard, why, now=around.clock.now(), boot_id=around.settings.boot_id)


def nameless(shard: str, why: str, *, now: datetime, boot_id: str) -> StoredOrder:
    life = newborn(now)
    failed = replace(life, state=ShardState.FAILED, reason=why, deadline=None, last_error=why)
    parsed = parse_shard_id(shard)
    replica, rank = parsed if parsed is not None else (ReplicaId(shard), 0)
    name = parse_replica_id(replica)
    spec = LaunchSpec(
        shard=ShardId(shard),
        replica=replica,
        rank=rank,
        ranks=rank + 1,
        model=name.prefix if name else shard,
        profile="",
        served_name="",
        spec_digest="",
        address="",
        leader_address="",
        processes=(Process(name=ENGINE, argv=()),),
        probes=Probes(port=None),
        claims=Claims(),
    )
    return StoredOrder(spec=spec, life=failed, fence=None, boot_id=boot_id)
