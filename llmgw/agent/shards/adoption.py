"""What an earlier agent left: each order is looked at before the first report, and its shard goes on from what is
found. Nothing is started or stopped here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llmgw.agent.seams import Running
from llmgw.agent.shards import autopsy, late
from llmgw.agent.shards.orders import StoredOrder
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import LIVE, Adopted, Event, Exited, Life, Rebooted, Resumed
from llmgw.model.claims import Claims
from llmgw.model.ids import ReplicaId, ShardId, parse_replica_id, parse_shard_id
from llmgw.model.launch import ENGINE, LaunchSpec, Probes, Process
from llmgw.model.report import Exit, ShardState
from llmgw.wire.codec import CodecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A shard of which processes run, and which stands in no order."""

    shard: str
    told: str
    engine: bool  # is among them


async def strays(known: frozenset[str], around: Surroundings) -> tuple[Stray, ...]:
    spawner = around.spawner
    found = []
    for shard in await spawner.strays(known):
        left = await spawner.describe(await spawner.remaining(shard))
        engine = isinstance(await spawner.find(shard, ENGINE, around.status_file(shard, ENGINE)), Running)
        what = "start it anew or stop it" if engine else "ended"
        told = f"{left} of shard {shard} is running, and its order is gone: {what}"
        found.append(Stray(shard=shard, told=told, engine=engine))
    return tuple(found)


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
        return Adoption(order=order, events=(Adopted(),), running=running, secrets=secrets)
    recorded = next((one for one in order.processes if one.process == ENGINE), None)
    evidence = autopsy.NOTHING_SEEN
    if engine is not None and recorded is not None:
        evidence = await around.evidence(engine, recorded, order.spec)
    events = _without_engine(order, engine, around, secrets, evidence)
    return Adoption(order=order, events=events, running=running, secrets=secrets)


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


def orphan(shard: str, life: Life, boot_id: str) -> StoredOrder:
    """A shard of which only the name is known: its order is lost or unreadable. It can be stopped and forgotten."""
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
    return StoredOrder(spec=spec, life=life, fence=None, boot_id=boot_id)
