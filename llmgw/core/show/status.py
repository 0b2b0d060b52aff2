"""What people are shown of a fleet: the record and the reports side by side, as rows. Decides nothing."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

from llmgw.core.amounts import at
from llmgw.core.place.claims import NodeLedger, ledgers
from llmgw.core.record.news import NO_WISHES
from llmgw.core.seen.alerts import raised
from llmgw.core.seen.cautions import cautions, clock_caution
from llmgw.core.seen.condition import Condition, Health, brought_by, changed, condition, evicted_text
from llmgw.core.seen.drained import drain_text
from llmgw.core.seen.silence import listened
from llmgw.core.seen.strays import holds
from llmgw.core.seen.survey import NodeView, SeenShard, Survey, survey
from llmgw.core.show.newest import Newest
from llmgw.model.alerts import Alert
from llmgw.model.desired import Desired
from llmgw.model.plan import Gate
from llmgw.model.record import Forgotten, ModelRecord, Record, ReplicaRecord
from llmgw.model.report import Observed, Reach, ShardReport, ShardState
from llmgw.model.struct import Struct, replace

SHORT_UUID = 12  # characters: MIG- and as much as tells the instances of a node apart
RUNNING_JOBS = frozenset({"queued", "running", "failed"})


class ModelRow(Struct):
    name: str
    served_name: str
    wanted: int
    ready: int
    held: str = ""  # why its newest spec is not tried again
    held_since: str = ""  # the commit that brought that spec, with its author where known
    held_lines: tuple[str, ...] = ()  # what the replica that failed wrote last
    evicted: tuple[str, ...] = ()  # of its replicas, whom each made room for
    placed: int = 0  # replicas of it that the record has, ready or not


class RankRow(Struct):
    """One rank of a gang, the leader's first."""

    rank: int
    node: str
    state: str
    reason: str = ""


class AdapterRow(Struct):
    """A LoRA adapter of a replica. ``state`` is its agent's word, or ``not loaded`` for one that is listed beyond
    ``maxLoadedAdapters``."""

    name: str
    state: str
    reason: str = ""


class ReplicaRow(Struct):
    """``gpus`` as ``gpu01:0``, by the node's own numbering of this moment; a MIG instance as ``gpu01:MIG-1f0c9a2b``. ``computes_on`` is what its processes really
    use: the same form, or ``cpu``; empty when nobody has told."""

    model: str
    replica: str
    ordinal: int
    phase: str  # what it was last told to be
    state: str
    reason: str
    nodes: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    computes_on: tuple[str, ...] = ()
    computing_memory: int = 0  # bytes that its processes hold of those GPUs
    url: str = ""
    since: datetime | None = None
    attempts: int = 0
    last_error: str = ""
    last_line: str = ""
    ended: tuple[str, ...] = ()  # what its engine wrote last: the first traceback, or its last lines
    recorded: bool = True
    forgotten: str = ""  # by whom, since when and why nobody manages it any more
    ranks: tuple[RankRow, ...] = ()  # of a gang
    by_hand: tuple[str, ...] = ()  # what somebody did to it on its nodes, past this fleet
    adapters: tuple[AdapterRow, ...] = ()


def _ended(report: ShardReport) -> tuple[str, ...]:
    """Only while it matters: of one that runs again its log tells."""
    exit_ = report.last_exit
    if exit_ is None or report.state not in (ShardState.FAILED.value, ShardState.BACKOFF.value):
        return ()
    return tuple(exit_.traceback.splitlines()) or exit_.last_lines


class NodeRow(Struct):
    name: str
    reach: str
    agent: str = ""
    gpus: int = 0
    gpus_free: int = 0
    gpu_class: str = ""
    problems: tuple[str, ...] = ()
    unreachable_since: datetime | None = None
    replaced_from: datetime | None = None  # when what is recorded there is started elsewhere, or was
    brake: str = ""  # why it is not, although its time has come or will
    cordoned: bool = False
    drain: str = ""  # "drained", or what is left there; empty: it is not to be empty
    leaving: bool = False  # Git does not name it any more


class JobRow(Struct):
    """``rate`` in bytes a second over the whole job so far; ``left`` in seconds."""

    node: str
    job: str
    kind: str
    description: str
    state: str
    done_bytes: int = 0
    total_bytes: int | None = None
    rate: float | None = None
    left: float | None = None
    error: str = ""


class Status(Struct):
    fleet: str
    serial: int
    commit: str
    newest: Newest | None = None  # of the branch, where it asks for something else than `commit`
    signer: str = ""  # of that commit; empty: nobody had to sign
    outcome: str = ""
    outcome_at: datetime | None = None
    holder: str = ""  # who is applying right now
    errors: tuple[str, ...] = ()  # of the last pass, where it did not do all
    gate: Gate | None = None  # whether changes may be made now; None: always
    models: tuple[ModelRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    alerts: tuple[Alert, ...] = ()  # the worst first


def status(
    record: Record,
    observed: Observed,
    *,
    now: datetime,
    desired: Desired | None = None,
    gate: Gate | None = None,
    newest: Newest | None = None,
) -> Status:
    """``desired`` adds what Git asks for and nobody has applied yet."""
    wishes = desired or NO_WISHES
    seen = survey(wishes, record, observed.nodes, offline=False)
    seen = listened(seen, record, wishes.fleet.unreachable, now=now)
    rows = [_recorded(replica, seen) for replica in record.replicas.values()]
    rows += [_unrecorded(shard, seen) for shard in seen.shards.values() if _is_stray(shard, record)]
    rows += [_forgotten(each, seen) for each in record.forgotten.values()]
    books = ledgers(seen, record.holding)
    last = record.last_pass
    return Status(
        fleet=record.fleet,
        serial=record.serial,
        commit=record.commit or "",
        newest=newest,
        signer=last.signer if last is not None and last.commit == record.commit else "",
        outcome=(last.outcome.value if last.outcome is not None else "running") if last is not None else "",
        outcome_at=(last.ended or last.started) if last is not None else None,
        holder=last.holder if last is not None and last.outcome is None and last.lease_until > now else "",
        errors=last.errors if last is not None else (),
        gate=gate,
        models=tuple(_models(record, desired, rows)),
        replicas=tuple(sorted(rows, key=lambda row: (row.model, row.ordinal, row.replica))),
        nodes=tuple(_node(view, record, books[view.name], seen) for view in seen.nodes.values()),
        jobs=tuple(_jobs(seen, now)),
        alerts=raised(record, seen),
    )


def _models(record: Record, desired: Desired | None, rows: Iterable[ReplicaRow]) -> Iterator[ModelRow]:
    recorded = [row for row in rows if row.recorded]
    placed = Counter(row.model for row in recorded)
    ready = Counter(row.model for row in recorded if row.state == Health.READY.value)
    asked = desired.models if desired is not None else {}
    for name in sorted({*record.models, *asked}):
        known, model = record.models.get(name), asked.get(name)
        served = model.served_name if model is not None else known.served_name if known is not None else name
        yield ModelRow(
            name=name,
            served_name=served,
            wanted=model.spec.replicas if model is not None else _wanted(known),
            ready=ready[name],
            placed=placed[name],
            held=known.held.reason if known is not None and known.held is not None else "",
            held_since=brought_by(known.held) if known is not None and known.held is not None else "",
            held_lines=known.held.last_lines if known is not None and known.held is not None else (),
            evicted=tuple(_evicted(known)) if known is not None else (),
        )


def _evicted(known: ModelRecord) -> Iterator[str]:
    return (f"model/{known.name}/{ordinal} {evicted_text(why)}" for ordinal, why in known.evicted.items())


def _wanted(known: ModelRecord | None) -> int:
    return known.replicas if known is not None and not known.removed else 0


def _recorded(replica: ReplicaRecord, seen: Survey) -> ReplicaRow:
    state = condition(replica, seen)
    leader, worst = state.leader, state.failure or state.leader
    rank = replica.ranks[0]
    return ReplicaRow(
        model=replica.model,
        replica=replica.id,
        ordinal=replica.ordinal,
        phase=replica.phase.value,
        state=_state(state),
        reason=_reason(replica, state),
        nodes=tuple(dict.fromkeys(each.node for each in replica.ranks)),
        gpus=tuple(
            label
            for each in replica.ranks
            for label in _labels(seen.nodes.get(each.node), (gpu.uuid for gpu in each.gpus))
        ),
        computes_on=tuple(label for shard in state.shards for label in _computes_on(shard, seen)),
        computing_memory=sum(map(_computing_memory, state.shards)),
        url=f"http://{rank.address}:{rank.ports[0]}/v1" if rank.ports else "",
        since=leader.since if leader is not None else None,
        attempts=leader.attempts if leader is not None else 0,
        last_error=worst.last_error if worst is not None else "",
        last_line=leader.last_line if leader is not None else "",
        ended=_ended(worst) if worst is not None else (),
        ranks=tuple(_ranks(replica, state)),
        by_hand=_by_hand(state.shards),
        adapters=tuple(_adapters(replica, leader)),
    )


def _adapters(replica: ReplicaRecord, leader: ShardReport | None) -> Iterator[AdapterRow]:
    """As the manifest lists them; then what its agent holds and nobody asks for any more."""
    model = replica.spec.model
    reports = {each.name: each for each in (leader.adapters if leader is not None else ())}
    most = model.max_loaded_adapters
    for index, adapter in enumerate(model.adapters):
        if (report := reports.pop(adapter.name, None)) is not None:
            yield AdapterRow(name=report.name, state=report.state, reason=report.reason)
        elif most and index >= most:
            yield AdapterRow(name=adapter.name, state="not loaded", reason=f"maxLoadedAdapters is {most}")
        else:
            yield AdapterRow(name=adapter.name, state="unknown" if leader is None else "not loaded")
    for report in reports.values():
        yield AdapterRow(name=report.name, state=report.state, reason=report.reason)


def _ranks(replica: ReplicaRecord, state: Condition) -> Iterator[RankRow]:
    if len(replica.ranks) == 1:
        return
    reports = {seen.report.rank: seen.report for seen in state.shards}
    for rank in replica.ranks:
        report = reports.get(rank.rank)
        if report is not None:
            yield RankRow(rank=rank.rank, node=rank.node, state=report.state, reason=report.reason)
        else:
            gone = Health.UNKNOWN if rank.node in state.unknown_nodes else Health.MISSING
            yield RankRow(rank=rank.rank, node=rank.node, state=gone.value)


def _state(state: Condition) -> str:
    """The leader's own word while it is on its way; else what the replica is as a whole."""
    if state.health is Health.COMING and state.leader is not None:
        waiting = [seen.report.state for seen in state.shards if seen.report.state != Health.READY.value]
        return waiting[0] if waiting else Health.COMING.value
    return state.health.value


def _reason(replica: ReplicaRecord, state: Condition) -> str:
    gang = len(replica.ranks) > 1
    if state.health in (Health.UNKNOWN, Health.MISSING) or (gang and state.health is Health.FAILED):
        return state.text
    if gang:
        return ""  # each rank says it
    telling = state.failure or state.leader
    return telling.reason if telling is not None else ""


def _forgotten(left: Forgotten, seen: Survey) -> ReplicaRow:
    why = f": {left.why}" if left.why else ""
    told = f"forgotten by {left.by} at {at(left.at)}{why}; no plan touches it"
    return replace(_recorded(left.replica, seen), phase="", recorded=False, forgotten=told)


def _is_stray(shard: SeenShard, record: Record) -> bool:
    return not record.knows(shard.report.replica) and shard.report.state != Health.STOPPED.value


def _unrecorded(shard: SeenShard, seen: Survey) -> ReplicaRow:
    report = shard.report
    return ReplicaRow(
        model=report.model,
        replica=report.replica,
        ordinal=-1,
        phase="",
        state=report.state,
        reason=f"nobody recorded it; it {holds((shard,))}",
        nodes=(shard.node,),
        gpus=_labels(seen.nodes.get(shard.node), (gpu.uuid for gpu in report.claims.gpus)),
        computes_on=_computes_on(shard, seen),
        computing_memory=_computing_memory(shard),
        since=report.since,
        attempts=report.attempts,
        last_error=report.last_error,
        last_line=report.last_line,
        ended=_ended(report),
        recorded=False,
        by_hand=_by_hand((shard,)),
    )


def _by_hand(shards: Iterable[SeenShard]) -> tuple[str, ...]:
    return tuple(changed(seen.report, seen.node) for seen in shards if seen.report.by_hand is not None)


def _labels(view: NodeView | None, uuids: Iterable[str]) -> tuple[str, ...]:
    if view is None or view.facts is None:
        return tuple(uuids)
    known = {
        gpu.uuid: gpu.uuid[:SHORT_UUID] if gpu.parent is not None else str(gpu.index)
        for gpu in view.facts.gpus
    }
    return tuple(f"{view.name}:{known[uuid]}" if uuid in known else uuid for uuid in uuids)


def _computes_on(shard: SeenShard, seen: Survey) -> tuple[str, ...]:
    on = shard.report.computes_on
    if on is None:
        return ()
    return _labels(seen.nodes.get(shard.node), sorted(on.gpus)) or ("cpu",)


def _computing_memory(shard: SeenShard) -> int:
    on = shard.report.computes_on
    return sum(on.gpus.values()) if on is not None else 0


def _node(view: NodeView, record: Record, book: NodeLedger, seen: Survey) -> NodeRow:
    known, silence = record.nodes.get(view.name), view.silence
    there = any(rank.node == view.name for replica in record.replicas.values() for rank in replica.ranks)
    facts = view.facts
    reported = view.report.problems if view.report is not None else ()
    problems = (
        *((view.intruder,) if view.intruder else ()),
        *_error(view, there=there),
        *(facts.problems if facts is not None else ()),
        *(f"GPU {gpu.index}: {reason}" for gpu in (facts.gpus if facts else ()) for reason in gpu.health),
        *reported,
        *cautions(view),
        *clock_caution(view),
    )
    # A GPU that is split is none that anything could have, beside its instances.
    split = {gpu.parent for gpu in facts.gpus} if facts is not None else set()
    usable = [entry.gpu for entry in book.gpus if entry.gpu.uuid not in split]
    return NodeRow(
        name=view.name,
        reach=view.reach.value,
        agent=view.report.agent.version if view.report is not None else known.agent_version if known else "",
        gpus=len(usable),
        gpus_free=book.free_whole,
        gpu_class=", ".join(sorted({gpu.gpu_class for gpu in usable})),
        problems=tuple(dict.fromkeys(problems)),
        unreachable_since=known.unreachable_since if known and view.reach is Reach.UNREACHABLE else None,
        replaced_from=silence.over if silence is not None and there else None,
        brake=silence.brake if silence is not None and there else "",
        cordoned=view.desired is not None and view.desired.spec.cordon,
        drain=drain_text(view, seen, record),
        leaving=view.desired is not None and view.desired.leaving,
    )


def _error(view: NodeView, *, there: bool) -> tuple[str, ...]:
    """``there``: the record has something on it."""
    if view.reach in (Reach.NO_AGENT, Reach.UNREACHABLE) and not there and not view.named:
        return ("its agent is gone, and Git does not name it any more: the next `llmgw apply` forgets it",)
    return (view.error,) if view.error else ()


def _jobs(seen: Survey, now: datetime) -> Iterator[JobRow]:
    """Those that run, wait or have failed; what is done is a fact of its node."""
    for view in seen.nodes.values():
        for job in view.report.jobs if view.report is not None else ():
            if job.state not in RUNNING_JOBS:
                continue
            took = (now - job.started).total_seconds() if job.started is not None else 0
            rate = job.done_bytes / took if took > 0 and job.done_bytes and job.state == "running" else None
            left = (job.total_bytes - job.done_bytes) / rate if rate and job.total_bytes is not None else None
            yield JobRow(
                node=view.name,
                job=job.job,
                kind=job.kind,
                description=job.description,
                state=job.state,
                done_bytes=job.done_bytes,
                total_bytes=job.total_bytes,
                rate=rate,
                left=left,
                error=job.error,
            )
