"""What was seen since the record was written, folded into it: a replica became ready, one has stopped, a new one
failed, a node changed. Folding the same report twice changes nothing.
"""

from dataclasses import replace
from datetime import datetime

from llmgw.core.record.endpoints import endpoints
from llmgw.core.seen.condition import Condition, Health, condition
from llmgw.core.seen.survey import Survey, survey
from llmgw.model.desired import Desired
from llmgw.model.manifest import FleetSpec
from llmgw.model.record import Held, ModelRecord, NodeRecord, Record, ReplicaPhase, ReplicaRecord
from llmgw.model.report import NodeObservation, Observed, Reach, ShardReport

NO_WISHES = Desired(commit=None, fleet_name="", fleet=FleetSpec())
LINES_KEPT = 20
"""Lines of a failed replica's output that the record keeps: a traceback's end and what led to it."""
NOT_AS_PLANNED = ("mismatch:", "its order can't be written")
"""How agents begin to say that their node is not what the plan took for granted."""
GONE = frozenset({Health.MISSING, Health.STOPPED})


def observe(record: Record, observed: Observed, now: datetime) -> Record:
    """The record with what was seen; the very same object when there is no news."""
    seen = survey(NO_WISHES, record, observed.nodes, offline=False)
    folded = fold_replicas(record, seen, now)
    nodes = {name: _node(node, observed.nodes.get(name), now) for name, node in folded.nodes.items()}
    folded = replace(folded, nodes=nodes)
    folded = replace(folded, endpoints=endpoints(folded, seen))
    return record if folded == record else folded


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
    models = {name: model for name, model in models.items() if name in kept or not model.removed}
    return replace(record, models=models, replicas=replicas)


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
    if state.health is Health.READY and replica.phase is ReplicaPhase.STARTING:
        return replace(model, last_good=replica.spec_digest, last_good_spec=replica.spec)
    failure = state.failure
    if (
        failure is None
        or not never_ready(replica)
        or outdated(failure)
        or not replica.spec.model.rollout.auto_revert
    ):
        return model
    if model.held is not None and model.held.spec_digest == replica.spec_digest:
        return model
    lines = failure.last_exit.last_lines[-LINES_KEPT:] if failure.last_exit is not None else ()
    held = Held(
        spec_digest=replica.spec_digest,
        commit=replica.origin.commit,
        reason=failure.last_error or failure.reason or "it failed without saying why",
        at=now,
        replica=replica.id,
        last_lines=lines or ((failure.last_line,) if failure.last_line else ()),
    )
    return replace(model, held=held)


def never_ready(replica: ReplicaRecord) -> bool:
    return replica.phase is ReplicaPhase.STARTING


def outdated(failure: ShardReport) -> bool:
    """Whether the node was not what the plan took for granted: no fault of the spec, so another plan may work."""
    return failure.attempts == 0 and failure.started is None and failure.last_error.startswith(NOT_AS_PLANNED)


def _node(node: NodeRecord, seen: NodeObservation | None, now: datetime) -> NodeRecord:
    if seen is None or seen.reach is Reach.NOT_ASKED:
        return node
    if seen.reach is Reach.UNREACHABLE:
        return node if node.unreachable_since else replace(node, unreachable_since=now)
    if seen.report is None:
        return replace(node, unreachable_since=None)
    return node_record(node.name, node.address, seen, before=node)


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
        journal_cursor=max(base.journal_cursor, report.journal_last),
        unreachable_since=None,
    )
