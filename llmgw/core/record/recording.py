"""What the record says before a pass commands anything (the intent), after it has (the outcome), and when nothing was
commanded but something was seen.

A replica is recorded before the first command that could start it, so that a pass that dies at any point leaves
nothing running that the record does not know.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from llmgw import __version__
from llmgw.core.record import setbacks
from llmgw.core.record.anew import asked_anew
from llmgw.core.record.endpoints import endpoints
from llmgw.core.record.naming import nodes_renamed, renamed
from llmgw.core.record.news import NO_WISHES, fold_replicas, node_record, observe
from llmgw.core.record.numbering import remembered
from llmgw.core.record.partial import narrowed, only
from llmgw.core.seen.condition import LEAVING
from llmgw.core.seen.survey import survey
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import Commit, ReplicaId, parse_replica_id
from llmgw.model.plan import (
    PRUNE_DISABLED,
    Action,
    Change,
    Plan,
    Step,
    StepKind,
    StepOutcome,
    StepResult,
    sendable,
)
from llmgw.model.record import (
    Evicted,
    ModelRecord,
    NodeRecord,
    Origin,
    Outcome,
    PassRecord,
    Record,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaSpec,
)
from llmgw.model.report import Observed
from llmgw.model.struct import replace

__all__ = ["begin", "end", "observe"]

KEY_ID = "keyId"
"""Where a plan's ``extra`` names the fleet secret it was made with."""
NEVER_SENT = frozenset({StepOutcome.FAILED, StepOutcome.SKIPPED, StepOutcome.DEFERRED})
ERRORS_KEPT = 20
"""Errors of one pass that the record keeps; the commit's message has no room for more."""


# ---- Intent ------------------------------------------------------------------------------------------


def begin(
    record: Record, desired: Desired, plan: Plan, observed: Observed, *, pass_record: PassRecord
) -> Record:
    """The record to commit before the first command of ``plan``: serial + 1, every replica that will be started,
    drained or stopped in this pass marked as such."""
    record = nodes_renamed(asked_anew(record, plan.replaced), desired)
    if not plan.partial:
        return _begin(record, desired, plan, observed, pass_record=pass_record)
    intent = _begin(record, narrowed(desired, plan), plan, observed, pass_record=pass_record)
    seen = observe(record, observed, pass_record.started, grace=desired.fleet.unreachable.grace)
    return only(intent, seen, desired, plan)


def _begin(
    record: Record, desired: Desired, plan: Plan, observed: Observed, *, pass_record: PassRecord
) -> Record:
    now = pass_record.started
    before = renamed(observe(record, observed, now, grace=desired.fleet.unreachable.grace), desired)
    sent = sendable(plan.steps)
    serial = record.serial + 1
    key_id = plan.extra.get(KEY_ID, record.key_id)
    replicas = _commanded(before, desired, plan, sent, serial=serial, now=now, key_id=key_id)
    models = _models(before, desired, plan, replicas)
    models = _evicted(models, plan, sent, replicas, commit=desired.commit, serial=serial, now=now)
    gone = (model for name, model in before.models.items() if name not in models)
    intent = replace(
        before,
        serial=serial,
        commit=desired.commit or record.commit,
        partial=None,
        keeps_removed=_keeps_removed(record, desired, plan),
        key_id=key_id,
        tool_version=__version__,
        models=models,
        numbers=remembered(before.numbers, gone),
        replicas=replicas,
        nodes=_nodes(before, desired, plan, observed),
        last_pass=replace(pass_record, serial=serial),
        given_up=tuple(each for each in before.given_up if each.replica not in replicas),
    )
    return replace(
        intent, endpoints=endpoints(intent, survey(NO_WISHES, intent, observed.nodes, offline=False))
    )


def _keeps_removed(record: Record, desired: Desired, plan: Plan) -> bool:
    """A plan that was held back by it does not end it."""
    held_back = any(change.keyword == PRUNE_DISABLED for change in plan.blocked)
    return not desired.fleet.prune.enabled or (record.keeps_removed and held_back)


def _commanded(
    before: Record,
    desired: Desired,
    plan: Plan,
    sent: Iterable[Step],
    *,
    serial: int,
    now: datetime,
    key_id: str,
) -> dict[str, ReplicaRecord]:
    replicas: dict[str, ReplicaRecord] = {
        replica.id: _updated_in_place(replica, desired, key_id) for replica in before.replicas.values()
    }
    changes = {change.replica: change for change in plan.changes if change.replica is not None}
    for change in changes.values():
        if change.keyword == "adopted":
            replicas[_id(change)] = _new(change, before, desired, None, serial=serial, key_id=key_id)
    for step in sent:
        replica = step.replica or ""
        match step.kind:
            case StepKind.START if replica in replicas:
                replicas[replica] = replace(replicas[replica], phase=ReplicaPhase.STARTING)
            case StepKind.START:
                change = changes[replica]
                replicas[_id(change)] = _new(change, before, desired, step, serial=serial, key_id=key_id)
            case StepKind.DRAIN:
                known = replicas[replica]
                since = known.draining_since or now
                replicas[replica] = replace(known, phase=ReplicaPhase.DRAINING, draining_since=since)
            case StepKind.STOP if replica in replicas:  # not one that nobody recorded
                replicas[replica] = replace(replicas[replica], phase=ReplicaPhase.STOPPING)
            case _:
                pass
    return dict(sorted(replicas.items()))


def _id(change: Change) -> ReplicaId:
    return ReplicaId(change.replica or "")


def _new(
    change: Change,
    before: Record,
    desired: Desired,
    step: Step | None,
    *,
    serial: int,
    key_id: str,
) -> ReplicaRecord:
    """``step`` None: it runs already and is adopted."""
    model = desired.models[change.model or ""]
    spec, digest = desired_spec(model, key_id), str(model.spec_digest)
    known = before.models.get(model.name)
    if step is not None and step.launch is not None and step.launch.spec_digest != digest:
        # Held: what starts is the last good spec, not the one in Git.
        if known is None or known.last_good_spec is None:
            raise AssertionError(f"{step.id} starts a spec that neither Git nor the record knows")
        spec, digest = known.last_good_spec, str(known.last_good)
    name = parse_replica_id(change.replica or "")
    if name is None or change.placement is None:
        raise AssertionError(f"{change.address} starts a replica without a name or a place")
    return ReplicaRecord(
        id=_id(change),
        model=model.name,
        ordinal=name.ordinal,
        n=name.n,
        spec_digest=digest,
        spec=spec,
        ranks=change.placement.ranks,
        phase=ReplicaPhase.STARTING,
        origin=Origin(
            commit=desired.commit or Commit(""), where=model.where, serial=serial, author=desired.author
        ),
        reasons=(change.reason, *change.placement.reasons),
    )


def desired_spec(model: DesiredModel, key_id: str) -> ReplicaSpec:
    """What the record keeps of a model, to start it again and to compare with."""
    return ReplicaSpec(
        model=model.spec,
        profile_name=model.profile_name,
        profile=model.profile,
        served_name=model.served_name,
        key_id=key_id,
    )


def _updated_in_place(replica: ReplicaRecord, desired: Desired, key_id: str) -> ReplicaRecord:
    model = desired.models.get(replica.model)
    if model is None or not model.runs_as(replica.spec_digest):
        return replica
    spec = desired_spec(model, key_id)
    return replica if replica.spec == spec else replace(replica, spec=spec)


def _models(
    before: Record, desired: Desired, plan: Plan, replicas: Mapping[str, ReplicaRecord]
) -> dict[str, ModelRecord]:
    blocked = {change.model for change in plan.blocked}
    going = {change.model for change in plan.changes if change.action is Action.REMOVE}
    last: dict[str, dict[str, int]] = {}
    for replica in replicas.values():
        of_model = last.setdefault(replica.model, {})
        of_model[str(replica.ordinal)] = max(of_model.get(str(replica.ordinal), 0), replica.n)
    models = {}
    for name in sorted({*before.models, *desired.models}):
        known, model = before.models.get(name), desired.models.get(name)
        if model is not None:
            models[name] = _with_adapters(model_record(known, model, last.get(name, {})), model)
        elif known is not None and (name in last or name in blocked):
            models[name] = replace(known, removed=known.removed or name in going)
    return models


def _evicted(
    models: Mapping[str, ModelRecord],
    plan: Plan,
    sent: Iterable[Step],
    replicas: Mapping[str, ReplicaRecord],
    *,
    commit: Commit | None,
    serial: int,
    now: datetime,
) -> dict[str, ModelRecord]:
    """Whom each ordinal without a copy has made room for; forgotten when it has one again."""
    going = {step.replica for step in sent if step.kind in (StepKind.DRAIN, StepKind.STOP)}
    staying = {(it.model, str(it.ordinal)) for it in replicas.values() if it.phase not in LEAVING}
    found = {
        name: {
            ordinal: why
            for ordinal, why in model.evicted.items()
            if (name, ordinal) not in staying and int(ordinal) < model.replicas
        }
        for name, model in models.items()
    }
    for change in plan.changes:
        if change.action is Action.REMOVE and change.evicted_for and change.previous in going:
            found[change.model or ""][str(change.ordinal)] = Evicted(
                replica=ReplicaId(change.previous or ""),
                made_room_for=change.evicted_for,
                commit=commit or Commit(""),
                serial=serial,
                at=now,
            )
    return {
        name: replace(model, evicted=dict(sorted(found[name].items(), key=lambda item: int(item[0]))))
        for name, model in models.items()
    }


def _with_adapters(known: ModelRecord, model: DesiredModel) -> ModelRecord:
    """What was last good has the adapters that Git asks for, where they don't decide how it is started."""
    good = known.last_good_spec
    if good is None or not model.spec.max_loaded_adapters or not model.runs_as(known.last_good or ""):
        return known
    spec = replace(good.model, adapters=model.spec.adapters)
    return replace(known, last_good_spec=replace(good, model=spec))


def model_record(known: ModelRecord | None, model: DesiredModel, last: Mapping[str, int]) -> ModelRecord:
    """What is remembered of a model that Git asks for. Placement numbers only grow."""
    base = known or ModelRecord(name=model.name, id_prefix=model.name, served_name=model.served_name)
    counts = dict(base.placements)
    for ordinal, n in last.items():
        counts[ordinal] = max(counts.get(ordinal, 0), n)
    held = base.held if base.held is not None and base.held.spec_digest == model.spec_digest else None
    runs = (model.spec_digest, base.last_good if held is not None else None)
    attempts = {
        ordinal: failed
        for ordinal, failed in base.attempts.items()
        if int(ordinal) < model.spec.replicas and failed.spec_digest in runs
    }
    return replace(
        base,
        name=model.name,
        served_name=model.served_name,
        protect=model.spec.protect,
        replicas=model.spec.replicas,
        priority=model.spec.priority,
        aliases=model.spec.aliases,
        labels=dict(model.labels),
        placements=dict(sorted(counts.items(), key=lambda item: int(item[0]))),
        held=held,
        attempts=attempts,
        removed=False,
    )


def _nodes(before: Record, desired: Desired, plan: Plan, observed: Observed) -> dict[str, NodeRecord]:
    """Every node that Git names and that has answered once, with the way to it; others stay until the plan lets them go."""
    gone = {change.address for change in plan.changes if change.action is Action.REMOVE}
    nodes = {name: node for name, node in before.nodes.items() if f"node/{name}" not in gone}
    coming = {step.node for step in plan.steps if step.kind is StepKind.BOOTSTRAP}
    for name, node in desired.nodes.items():
        if node.leaving:
            continue
        seen = observed.nodes.get(name)
        if name in nodes or name in coming or (seen is not None and seen.report is not None):
            known = node_record(name, node.address, seen, before=nodes.get(name))
            nodes[name] = known if known.spec == node.spec else replace(known, spec=node.spec)
    return dict(sorted(nodes.items()))


# ---- Outcome -----------------------------------------------------------------------------------------


def end(
    record: Record, plan: Plan, results: Mapping[str, StepResult], observed: Observed, *, now: datetime
) -> Record:
    """The record to commit after the last command. ``record`` is the intent. What was never started is not left as
    running; a drain that was never sent is taken back; an answer that never came is left to the next pass."""
    replicas = dict(record.replicas)
    for replica_id, steps in _by_replica(plan).items():
        if (replica := replicas.get(replica_id)) is None:
            continue
        after = _outcome_of(replica, record, steps, results)
        if after is None:
            del replicas[replica_id]
        else:
            replicas[replica_id] = after
    nodes = {
        name: node for name, node in record.nodes.items() if not _never_came(name, record, plan, results)
    }
    record = replace(record, nodes=nodes, setbacks=setbacks.after(record.setbacks, plan, results, now=now))
    seen = survey(NO_WISHES, record, observed.nodes, offline=False)
    told = fold_replicas(replace(record, replicas=replicas), seen, now)
    if record.last_pass is not None:
        told = replace(told, last_pass=_ended(record.last_pass, plan, results, now))
    return replace(told, endpoints=endpoints(told, seen))


def _by_replica(plan: Plan) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in plan.steps:
        if step.replica is not None:
            found.setdefault(step.replica, []).append(step)
    return found


def _outcome_of(
    replica: ReplicaRecord, intent: Record, steps: list[Step], results: Mapping[str, StepResult]
) -> ReplicaRecord | None:
    """None: it was never there."""
    starts = [step for step in steps if step.kind is StepKind.START]
    drains = [step for step in steps if step.kind is StepKind.DRAIN]
    is_new = replica.origin.serial == intent.serial
    if starts and is_new and replica.phase is ReplicaPhase.STARTING and _all_unsent(starts, results):
        return None
    if drains and replica.phase is ReplicaPhase.DRAINING and _all_unsent(drains, results):
        return replace(replica, phase=ReplicaPhase.SERVING, draining_since=None)
    return replica


def _never_came(name: str, intent: Record, plan: Plan, results: Mapping[str, StepResult]) -> bool:
    """A node whose first agent could not be installed is not a node of the fleet yet."""
    steps = [step for step in plan.steps if step.kind is StepKind.BOOTSTRAP and step.node == name]
    return bool(steps) and not intent.nodes[name].agent_version and _all_unsent(steps, results)


def _all_unsent(steps: Iterable[Step], results: Mapping[str, StepResult]) -> bool:
    """A step that nobody reports was never sent; one of unknown outcome may have been."""
    return all((result := results.get(step.id)) is None or result.outcome in NEVER_SENT for step in steps)


def _ended(running: PassRecord, plan: Plan, results: Mapping[str, StepResult], now: datetime) -> PassRecord:
    errors = tuple(
        f"{step.id}: {result.error}"
        for step in plan.steps
        if (result := results.get(step.id)) is not None and result.error
    )
    return replace(
        running,
        outcome=_outcome(plan, results),
        ended=now,
        steps={name: result.outcome.value for name, result in sorted(results.items())},
        errors=errors[:ERRORS_KEPT],
    )


def _outcome(plan: Plan, results: Mapping[str, StepResult]) -> Outcome:
    outcomes = {result.outcome for result in results.values()}
    if StepOutcome.FAILED in outcomes:
        return Outcome.PARTIAL if StepOutcome.DONE in outcomes else Outcome.FAILED
    if outcomes & {StepOutcome.UNKNOWN, StepOutcome.SKIPPED}:
        return Outcome.PARTIAL
    unfinished = StepOutcome.DEFERRED in outcomes or len(results) < len(plan.steps)
    return Outcome.ACCEPTED if unfinished else Outcome.DONE
