"""``llmgw node remove --lost`` as a pass: the replicas of a machine that nobody will hear of again leave the record, which keeps
who gave them up. No agent is commanded. Pure."""

from llmgw.controller.passes.custody import Custody
from llmgw.controller.passes.onenode import instead, replicas_on
from llmgw.controller.passes.prepare import Prepared
from llmgw.core.record.custody import forgotten_on
from llmgw.core.record.latecomers import given_up
from llmgw.core.seen.condition import Health, condition
from llmgw.core.seen.survey import Survey, survey
from llmgw.model.plan import Action, Change, Plan, Step, StepKind
from llmgw.model.record import GivenUp, Record, ReplicaRecord
from llmgw.model.struct import replace


def giving_up(node: str) -> Custody:
    """Every replica with a rank on the node; a gang goes as a whole, and what of it can be reached is told to stop by the pass
    that follows."""

    def make(prepared: Prepared) -> Plan:
        going = replicas_on(prepared.record, node)
        seen = survey(prepared.desired, prepared.record, prepared.observed.nodes, offline=False)
        return instead(
            prepared,
            changes=tuple(_change(each, node, prepared.record, seen) for each in going),
            steps=tuple(_step(each, node) for each in going),
        )

    def amend(record: Record, prepared: Prepared) -> Record:
        going = {each.id for each in replicas_on(prepared.record, node)} & record.replicas.keys()
        passed = record.last_pass
        assert passed is not None
        by, at = passed.actor or passed.holder, passed.started
        lost = tuple(
            GivenUp(replica=record.replicas[each].id, node=node, by=by, at=at) for each in sorted(going)
        )
        left = forgotten_on(record, node)
        without = replace(
            record,
            forgotten={name: each for name, each in record.forgotten.items() if name not in left},
            replicas={name: replica for name, replica in record.replicas.items() if name not in going},
            endpoints=tuple(each for each in record.endpoints if each.replica not in going),
        )
        return given_up(without, lost)

    return Custody(plan=make, amend=amend)


def _change(replica: ReplicaRecord, node: str, record: Record, seen: Survey) -> Change:
    others = [
        each.id
        for each in record.replicas.values()
        if each.model == replica.model
        and all(rank.node != node for rank in each.ranks)
        and condition(each, seen).health is Health.READY
    ]
    return Change(
        address=f"model/{replica.model}/{replica.ordinal}",
        action=Action.REMOVE,
        keyword="given-up",
        reason=f"{node} is given up for lost: nobody can see whether {replica.id} still runs there, and others may take its place; "
        "should the machine come back with it, it is told to stop",
        model=replica.model,
        ordinal=replica.ordinal,
        previous=replica.id,
        outage="" if others else f"{replica.model} does not answer until another replica is ready",
    )


def _step(replica: ReplicaRecord, node: str) -> Step:
    """Names no replica: nothing is published, something is taken out."""
    return Step(
        id=f"publish {replica.id} as given up with {node}",
        kind=StepKind.PUBLISH,
        model=replica.model,
        reason="a person says that the machine is lost",
    )
