"""Placement numbers only grow, also of a model that was gone altogether and is there again."""

from llmgw.controller.repo import layout
from llmgw.core.record.numbering import NAMES_KEPT, remembered
from llmgw.model.ids import parse_replica_id
from llmgw.model.record import ModelRecord, Record
from tests.core.builders import NodeState, desired, facts, model, node
from tests.core.fleets import OPTIONS, Fleet, fleet
from tests.core.test_eviction_properties import ALLOW


def numbers(world: Fleet) -> list[int]:
    names = (parse_replica_id(replica) for replica in world.record.replicas)
    return sorted(name.n for name in names if name is not None)


def stored(record: Record) -> Record:
    """Through the files of the state branch and back."""
    files = layout.changes(None, layout.Kept(record=record))
    return layout.read({path: data for path, data in files.items() if data is not None}).record


def test_a_model_that_was_removed_and_comes_back_goes_on_counting() -> None:
    box = NodeState("gpu01", facts("gpu01", gpus=3))
    both = desired([node("gpu01")], [model("chat", replicas=1), model("kept")])
    world = fleet(both, [box])
    world.settle()
    world.desired = desired([node("gpu01")], [model("chat", args=("--new",)), model("kept")])
    world.settle()
    world.desired = desired([node("gpu01")], [model("kept")])
    world.settle(ALLOW)
    assert "chat" not in world.record.models
    box.shards.clear()  # nobody remembers but the record
    assert stored(world.record) == world.record
    world.desired = desired([node("gpu01")], [model("chat", replicas=2), model("kept")])
    world.settle()
    assert [it for it in numbers(world) if it > 1] == [3, 3], "for each of its ordinals"


def test_it_goes_on_a_third_time_from_the_highest_of_all() -> None:
    box = NodeState("gpu01", facts("gpu01"))
    world = fleet(desired([node("gpu01")], [model("chat")]), [box])
    for number in (1, 2, 3):
        world.desired = desired([node("gpu01")], [model("chat")])
        world.settle()
        assert numbers(world) == [number]
        world.desired = desired([node("gpu01")], [])
        world.settle(ALLOW)
        box.shards.clear()
    assert world.record.numbers == {"chat": 3}


def test_what_an_agent_still_reports_counts_besides() -> None:
    box = NodeState("gpu01", facts("gpu01"))
    world = fleet(desired([node("gpu01")], [model("chat")]), [box])
    world.settle()
    world.desired = desired([node("gpu01")], [])
    world.settle(ALLOW)
    world.record = Record(fleet=world.record.fleet, serial=world.record.serial)  # lost, and made anew
    world.desired = desired([node("gpu01")], [model("chat")])
    world.settle(OPTIONS)
    assert numbers(world) == [2]


def test_as_many_names_are_kept_as_there_is_room_for_and_no_more() -> None:
    before = {f"m{number}": 5 for number in range(NAMES_KEPT)}
    gone = ModelRecord(name="chat", id_prefix="chat", served_name="chat", placements={"0": 9})
    kept = remembered(before, [gone])
    assert len(kept) == NAMES_KEPT
    assert kept["chat"] == 9
    assert remembered(kept, []) is kept
