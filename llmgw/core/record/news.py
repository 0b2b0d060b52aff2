"""What was seen since the record was written, folded into it: a replica became ready, one has stopped, a new one
failed, a node changed. Folding the same report twice changes nothing.
"""

from datetime import datetime

from llmgw.core.record.custody import still_forgotten
from llmgw.core.record.endpoints import endpoints
from llmgw.core.record.numbering import remembered
from llmgw.core.seen.attempts import UP_FOR_LONG, has_served
from llmgw.core.seen.condition import Condition, Health, condition, outdated
from llmgw.core.seen.silence import answered, fell_silent, is_silent
from llmgw.core.seen.survey import NodeView, Survey, survey
from llmgw.model.desired import Desired
from llmgw.model.ids import ReplicaId, parse_replica_id
from llmgw.model.manifest import FleetSpec
from llmgw.model.record import Attempts, Held, ModelRecord, NodeRecord, Record, ReplicaPhase, ReplicaRecord
from llmgw.model.report import NodeObservation, Observed, Reach, ShardReport
from llmgw.model.struct import replace
from llmgw.model.weights import Measured

NO_WISHES = Desired(commit=None, fleet_name="", fleet=FleetSpec())
LINES_KEPT = 20
"""Lines of a failed replica's output that the record keeps: a traceback's end and what led to it."""
NODES_KEPT = 16
"""Nodes on which a replica failed in a row: more than anybody has machines for one model that does not run."""
MEASURED_KEPT = 256
"""Ways of running that measurements are kept of."""
GONE = frozenset({Health.MISSING, Health.STOPPED})


def observe(record: Record, observed: Observed, now: datetime, *, grace: float) -> Record:
    """The record with what was seen; the very same object when there is no news. ``grace``: the fleet's, in seconds."""
    seen = survey(NO_WISHES, record, observed.nodes, offline=False)
    folded = fold_replicas(record, seen, now)
    nodes = {
        name: _node(node, seen.nodes[name], observed.nodes.get(name), now, grace=grace)
        for name, node in folded.nodes.items()
    }
    folded = replace(folded, nodes=nodes)
    folded = replace(folded, endpoints=endpoints(folded, seen), measured=_measured(record, seen))
    if observed.weights is not None:
        # What nobody could tell is no knowledge; what no model asks for any more is dropped.
        folded = replace(folded, weights={digest: it for digest, it in observed.weights.items() if it.usable})
    return record if folded == record else folded


def _measured(record: Record, seen: Survey) -> dict[str, Measured]:
    """What engines have said of their memory. The newest word counts; the oldest are dropped beyond a bound."""
    found = dict(record.measured)
    for shard in seen.shards.values():
        said = shard.report.measured
        if said is not None and not _same(found.get(said.key), said):
            found.pop(said.key, None)
            found[said.key] = replace(said, serial=record.serial)
    return dict(list(found.items())[-MEASURED_KEPT:])


def _same(known: Measured | None, said: Measured) -> bool:
    """Another replica that says what is known is no news; neither is one that failed, where one that got its memory has
    spoken."""
    return known is not None and (known.values == said.values or (known.values.keys() > said.values.keys()))


def fold_replicas(record: Record, seen: Survey, now: datetime) -> Record:
    """Only the replicas' part, which plans are made from. Nothing changes for one whose node can't be asked."""
    replicas: dict[str, ReplicaRecord] = {}
    models = dict(record.models)
    for replica in record.replicas.values():
        state = condition(replica, seen)
        if _is_gone(replica, state):
            continue
        replicas[replica.id] = _replica(replica, state)
        if (model := models.get(replica.model)) is not None:
            models[replica.model] = _model(model, replica, state, now)
    kept = {replica.model for replica in replicas.values()}
    gone = [name for name, model in models.items() if model.removed and name not in kept]
    numbers = remembered(record.numbers, (models.pop(name) for name in gone))
    left = still_forgotten(record, seen)
    return _without_lost_keys(
        replace(record, models=models, replicas=replicas, numbers=numbers, forgotten=left)
    )


def _without_lost_keys(record: Record) -> Record:
    """What was last good with a key that nothing runs with any more can't be gone back to: its secret is not kept."""
    if not record.key_id:
        return record
    live = {record.key_id} | {replica.spec.key_id for replica in record.holding}
    lost = {
        name: replace(model, last_good=None, last_good_spec=None)
        for name, model in record.models.items()
        if model.held is None and model.last_good_spec is not None and model.last_good_spec.key_id not in live
    }
    return replace(record, models={**record.models, **lost}) if lost else record


def _is_gone(replica: ReplicaRecord, state: Condition) -> bool:
    return replica.phase in (ReplicaPhase.DRAINING, ReplicaPhase.STOPPING) and state.health in GONE


def _replica(replica: ReplicaRecord, state: Condition) -> ReplicaRecord:
    phase = replica.phase
    if phase is ReplicaPhase.STARTING and state.health is Health.READY:
        phase = ReplicaPhase.SERVING
    ends = [seen.report.last_exit for seen in state.shards if seen.report.last_exit is not None]
    last = max(ends, key=lambda end: end.at) if ends else replica.last_exit
    if phase is replica.phase and last == replica.last_exit:
        return replica
    return replace(replica, phase=phase, last_exit=last)


def _model(model: ModelRecord, replica: ReplicaRecord, state: Condition, now: datetime) -> ModelRecord:
    if state.health is Health.READY:
        model = _forgiven(model, replica, state)
        return _good(model, replica) if replica.phase is ReplicaPhase.STARTING else model
    if state.lost:
        return model  # its agent has lost its order: that says nothing of its spec
    if len(replica.ranks) > 1:
        model = _failed(model, replica, state, now)
        return _hold_gang(model, replica, state, now)
    failure = state.failure
    if failure is None:
        return model
    if outdated(failure) or has_served(replica, model):
        return _failed(model, replica, state, now)
    auto_revert = replica.spec.model.rollout.auto_revert
    return _hold(model, replica, _error(failure), failure, now) if auto_revert else model


def _good(model: ModelRecord, replica: ReplicaRecord) -> ModelRecord:
    """Its spec serves. If it is held since another copy never did, it would be held at itself, and nothing be started any more."""
    same = model.held is not None and model.held.spec_digest == replica.spec_digest
    held = None if same else model.held
    return replace(model, last_good=replica.spec_digest, last_good_spec=replica.spec, held=held)


def _error(failure: ShardReport) -> str:
    return failure.last_error or failure.reason or "it failed without saying why"


def _hold(
    model: ModelRecord, replica: ReplicaRecord, reason: str, failure: ShardReport | None, now: datetime
) -> ModelRecord:
    if model.held is not None and model.held.spec_digest == replica.spec_digest:
        return model
    lines: tuple[str, ...] = ()
    if failure is not None:
        ended = failure.last_exit.last_lines[-LINES_KEPT:] if failure.last_exit is not None else ()
        lines = ended or ((failure.last_line,) if failure.last_line else ())
    held = Held(
        spec_digest=replica.spec_digest,
        commit=replica.origin.commit,
        reason=reason,
        at=now,
        replica=replica.id,
        last_lines=lines,
        author=replica.origin.author,
    )
    return replace(model, held=held)


def _forgiven(model: ModelRecord, replica: ReplicaRecord, state: Condition) -> ModelRecord:
    """One that runs has no refusals to wait for any more; its failures are forgiven when it has run for long."""
    ordinal = str(replica.ordinal)
    failed = model.attempts.get(ordinal)
    if failed is None or failed.spec_digest != replica.spec_digest or _is_older(replica, failed.replica):
        return model
    if failed.count and state.served < UP_FOR_LONG:
        kept = replace(failed, refused=0)
        return model if kept == failed else replace(model, attempts={**model.attempts, ordinal: kept})
    return replace(model, attempts={key: kept for key, kept in model.attempts.items() if key != ordinal})


def _is_older(replica: ReplicaRecord, other: ReplicaId) -> bool:
    """Of two of one ordinal; one that serves on beside its successor says nothing of that one."""
    name = parse_replica_id(other)
    return name is not None and replica.n < name.n


def _failed(model: ModelRecord, replica: ReplicaRecord, state: Condition, now: datetime) -> ModelRecord:
    """Counts once a failure that the reconciler has to answer: a gang's, that of a node that was not as planned, and that a
    single shard's agent has given up starting one that served."""
    ordinal = str(replica.ordinal)
    before = model.attempts.get(ordinal)
    if before is not None and before.spec_digest != replica.spec_digest:
        before = None
    going = replica.phase in (ReplicaPhase.DRAINING, ReplicaPhase.STOPPING)
    if state.health is not Health.FAILED or going or (before is not None and before.replica == replica.id):
        return model
    failure = state.failure
    earlier = before.count if before is not None and state.served < UP_FOR_LONG else 0
    # A node that was not as planned is no fault of the spec; yet the next try waits, or two nodes hand it to and fro.
    refused = failure is not None and outdated(failure)
    attempts = Attempts(
        spec_digest=replica.spec_digest,
        count=earlier + (0 if refused else 1),
        at=now,
        error=_told(replica, state, failure),
        replica=replica.id,
        refused=(before.refused if before is not None else 0) + 1 if refused else 0,
        nodes=_where(replica, before if earlier or refused else None),
    )
    told = {**model.attempts, ordinal: attempts}
    return replace(model, attempts=dict(sorted(told.items(), key=lambda item: int(item[0]))))


def _where(replica: ReplicaRecord, before: Attempts | None) -> tuple[str, ...]:
    here = tuple(dict.fromkeys(rank.node for rank in replica.ranks))
    earlier = before.nodes if before is not None else ()
    return (*(node for node in earlier if node not in here), *here)[-NODES_KEPT:]


def _told(replica: ReplicaRecord, state: Condition, failure: ShardReport | None) -> str:
    if failure is None:
        return state.text
    return f"rank {failure.rank}: {_error(failure)}" if len(replica.ranks) > 1 else _error(failure)


def _hold_gang(model: ModelRecord, replica: ReplicaRecord, state: Condition, now: datetime) -> ModelRecord:
    """A spec that was never ready is held after as many failures as its profile allows: also where it may not be reverted,
    since what is left of a gang that failed must go."""
    failed = model.attempts.get(str(replica.ordinal))
    if (
        failed is None
        or failed.replica != replica.id
        or failed.count < replica.spec.profile.restart.give_up_after
        or model.last_good == replica.spec_digest
    ):
        return model
    return _hold(model, replica, failed.error, state.failure, now)


def _node(
    node: NodeRecord, view: NodeView, seen: NodeObservation | None, now: datetime, *, grace: float
) -> NodeRecord:
    if view.reach is Reach.NOT_ASKED:
        return node
    if is_silent(view):
        return fell_silent(node, now)
    return node_record(node.name, node.address, seen, before=answered(node, now, grace=grace))


def node_record(
    name: str, address: str, seen: NodeObservation | None, *, before: NodeRecord | None
) -> NodeRecord:
    """What the record keeps of a node that was asked; what is not known now stays as it was."""
    base = before or NodeRecord(name=name, address=address)
    report = seen.report if seen is not None else None
    if report is None:
        return replace(base, address=address)
    facts = (seen.facts if seen is not None else None) or report.facts
    stable = facts.stable()
    return replace(
        base,
        address=address,
        facts=base.facts if base.facts == stable else stable,
        agent_version=report.agent.version,
        boot_id=report.agent.boot_id,
        formerly=() if report.agent.node == name else base.formerly,
        journal_cursor=report.journal_read,
    )
