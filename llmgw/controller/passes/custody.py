"""``llmgw forget`` and ``llmgw adopt`` as passes: no agent is commanded, one commit of the record says it all. Pure."""

from collections.abc import Callable

from llmgw.controller.passes.onenode import MakePlan, instead
from llmgw.controller.passes.prepare import Prepared
from llmgw.core.moves.custody import adopt_change, forget_change, to_adopt, to_forget
from llmgw.core.record import custody
from llmgw.core.record.recording import model_record
from llmgw.core.seen.strays import strays
from llmgw.core.seen.survey import Survey, survey
from llmgw.model.plan import Change, Plan, Step, StepKind
from llmgw.model.record import Record, ReplicaRecord
from llmgw.model.struct import Struct, replace


class Custody(Struct):
    """What a pass is asked for: the plan that people see, and what the record says after it."""

    plan: MakePlan
    amend: Callable[[Record, Prepared], Record]


def forgetting(address: str, *, why: str) -> Custody:
    def make(prepared: Prepared) -> Plan:
        going = to_forget(address, prepared.record)
        because = f": {why}" if why else ""
        return instead(
            prepared,
            changes=tuple(forget_change(each, prepared.desired, why=why) for each in going),
            steps=tuple(_step(each, f"as forgotten{because}") for each in going),
        )

    def amend(record: Record, prepared: Prepared) -> Record:
        going = [each.id for each in to_forget(address, prepared.record) if each.id in record.replicas]
        passed = record.last_pass
        assert passed is not None
        return custody.forgotten(record, going, by=passed.actor, at=passed.started, why=why)

    return Custody(plan=make, amend=amend)


def adopting(address: str) -> Custody:
    def make(prepared: Prepared) -> Plan:
        seen = _survey(prepared)
        alone = strays(prepared.record, seen)
        coming = _coming(address, prepared, seen)
        return instead(
            prepared,
            changes=tuple(adopt_change(each, alone.get(each.id, ())) for each in coming),
            steps=tuple(_step(each, "as managed again") for each in coming),
        )

    def amend(record: Record, prepared: Prepared) -> Record:
        coming = _coming(address, prepared, _survey(prepared))
        record = custody.managed(record, coming)
        models = dict(record.models)
        for each in coming:
            wanted = prepared.desired.models[each.model]
            if each.model not in models:
                models[each.model] = model_record(None, wanted, {str(each.ordinal): each.n})
        return replace(record, models=dict(sorted(models.items())))

    return Custody(plan=make, amend=amend)


def _coming(address: str, prepared: Prepared, seen: Survey) -> tuple[ReplicaRecord, ...]:
    return to_adopt(address, prepared.record, prepared.desired, seen, key_id=prepared.record.key_id)


def _survey(prepared: Prepared) -> Survey:
    return survey(prepared.desired, prepared.record, prepared.observed.nodes, offline=False)


def _step(replica: ReplicaRecord, what: str) -> Step:
    """Names no replica, so that the story tells what was recorded of it and not that it was published."""
    return Step(
        id=f"publish {replica.id} {what}",
        kind=StepKind.PUBLISH,
        model=replica.model,
        reason="a person asked for it",
    )


def touched(changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Ids of the replicas that a plan is about."""
    return tuple(each.replica or each.previous or "" for each in changes)
