"""Which of several controllers brings its build of the agent to the nodes."""

from llmgw.controller.passes.builds import KEPT, bringing, leads
from llmgw.model.ids import FleetId
from llmgw.model.plan import Plan, StepKind
from llmgw.model.record import Build, Record
from llmgw.model.struct import replace
from tests.controller.passes.doubles import plan_of, start

ANN, BEN = "of-ann", "of-ben"
EMPTY = Record(fleet=FleetId("fleet-1"))


def bootstrap() -> Plan:
    step = start("bootstrap node1")
    return plan_of(replace(step, kind=StepKind.BOOTSTRAP))


def passes(record: Record, build: str, instance: str, *, insists: bool = False) -> Record:
    """One pass of a controller over a node that has another build, if it minds that."""
    if not insists and not leads(record, build, instance):
        return record
    return bringing(record, bootstrap(), build=build, instance=instance, insists=insists)


def test_two_controllers_of_different_builds_do_not_replace_each_others_agents_for_ever() -> None:
    record = passes(passes(EMPTY, "a", ANN), "b", BEN)
    assert record.builds == (Build(name="a", by=ANN), Build(name="b", by=BEN))
    assert passes(passes(record, "a", ANN), "b", BEN) == record
    assert not leads(record, "a", ANN)
    assert leads(record, "b", BEN)


def test_a_controller_of_new_files_goes_first_and_the_other_follows() -> None:
    record = passes(passes(passes(EMPTY, "a", ANN), "b", BEN), "c", ANN)
    assert record.builds[-1] == Build(name="c", by=ANN)
    assert not leads(record, "b", BEN)


def test_whoever_went_first_may_go_back() -> None:
    record = passes(passes(EMPTY, "a", ANN), "b", ANN)
    assert leads(record, "a", ANN)
    assert passes(record, "a", ANN).builds[-1] == Build(name="a", by=ANN)


def test_a_person_who_sets_a_node_up_by_hand_goes_first() -> None:
    record = passes(passes(EMPTY, "a", ANN), "b", BEN)
    record = passes(record, "a", ANN, insists=True)
    assert leads(record, "a", ANN)
    assert not leads(record, "b", BEN)


def test_what_brings_nothing_is_not_remembered_and_little_is() -> None:
    assert bringing(EMPTY, plan_of(start("s")), build="a", instance=ANN, insists=True) == EMPTY
    assert bringing(EMPTY, bootstrap(), build="", instance=ANN, insists=True) == EMPTY
    record = EMPTY
    for number in range(3 * KEPT):
        record = passes(record, f"b{number}", ANN)
    assert len(record.builds) == KEPT
    assert record == passes(record, f"b{3 * KEPT - 1}", ANN)
