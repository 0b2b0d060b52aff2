"""What a plan refuses as a whole, and what it refuses to remove."""

import pytest

from llmgw.model.desired import Desired
from llmgw.model.manifest import Expect, FleetSpec, Prune
from llmgw.model.plan import Action
from llmgw.model.problems import StalledError
from llmgw.model.record import ReplicaPhase
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, model, node
from tests.core.fleets import OPTIONS, Fleet, fleet


def lab(*names: str, fleet_spec: FleetSpec | None = None, protect: tuple[str, ...] = ()) -> Desired:
    models = [model(name, protect=name in protect) for name in names]
    return desired([node("gpu01")], models, fleet=fleet_spec)


def settled(*names: str, protect: tuple[str, ...] = ()) -> Fleet:
    world = fleet(lab(*names, protect=protect), [NodeState("gpu01", facts("gpu01", gpus=8))])
    world.settle()
    return world


def test_an_older_commit_is_refused_unless_it_is_meant() -> None:
    world = settled("a")
    with pytest.raises(StalledError, match="--allow-rollback"):
        world.plan(replace(OPTIONS, strict_ancestor=True))
    assert not world.plan(replace(OPTIONS, strict_ancestor=True, allow_rollback=True)).changes


def test_another_secret_is_refused_with_what_to_copy() -> None:
    world = settled("a")
    with pytest.raises(StalledError, match="LLMGW_SECRET"):
        world.plan(replace(OPTIONS, key_id="deadbeef"))


def test_an_emptied_fleet_stops_nothing_and_does_nothing_else_either() -> None:
    world = settled("a")
    world.desired = desired([node("gpu01"), node("gpu02")], [])
    made = world.plan()
    assert {(change.action, change.keyword) for change in made.changes} == {(Action.BLOCKED, "emptied-fleet")}
    assert not made.steps
    world.settle(replace(OPTIONS, allow_prune=True))
    assert not world.record.replicas


def test_what_was_told_to_stop_ends_without_leave_although_git_asks_for_nothing_any_more() -> None:
    world = settled("a")
    (replica,) = world.record.replicas.values()
    world.record = replace(world.record, replicas={replica.id: replace(replica, phase=ReplicaPhase.STOPPING)})
    shards = world.nodes["gpu01"].shards
    shards.update({key: replace(shard, state="stopping") for key, shard in shards.items()})
    world.desired = lab()
    assert [change.action for change in world.plan().changes] == []
    world.settle()
    assert not world.record.replicas


def test_one_model_may_always_go_and_a_third_of_them_at_most() -> None:
    world = settled("a", "b", "c", "d", "e", "f", "g")
    world.desired = lab("a", "b", "c", "d", "e")
    assert {change.action for change in world.plan().changes} == {Action.REMOVE}
    world.desired = lab("a", "b", "c", "d")
    assert {change.keyword for change in world.plan().changes} == {"prune-limit"}


def test_a_blocked_removal_does_not_hold_up_the_rest() -> None:
    world = settled("a", "b", "c", "d")
    world.desired = lab("a", "z")
    made = world.plan()
    assert {(change.model, change.action) for change in made.changes} == {
        ("b", Action.BLOCKED),
        ("c", Action.BLOCKED),
        ("d", Action.BLOCKED),
        ("z", Action.CREATE),
    }
    assert {step.model for step in made.steps} == {"z"}


def test_pruning_can_be_switched_off() -> None:
    world = settled("a", "b")
    world.desired = lab("a", fleet_spec=FleetSpec(prune=Prune(enabled=False)))
    made = world.plan(replace(OPTIONS, allow_prune=True))
    assert [change.keyword for change in made.changes] == ["prune-disabled"]


def test_deleting_the_fleets_manifest_does_not_switch_pruning_on() -> None:
    """Who deletes a folder deletes both: what it holds, and what was to keep it."""
    world = settled("a", "b")
    off = FleetSpec(prune=Prune(enabled=False))
    world.desired = lab("a", "b", "c", fleet_spec=off)
    world.settle()
    world.desired = lab("a", "b", "d")
    world.settle()
    assert set(world.record.models) == {"a", "b", "c", "d"}
    assert [change.keyword for change in world.plan().changes] == ["prune-disabled"]
    assert [change.action for change in world.plan(replace(OPTIONS, allow_prune=True)).changes] == [
        Action.REMOVE
    ]
    world.desired = lab("a", "b", "c", "d")
    world.settle()
    kept = [world.record.keeps_removed]
    world.desired = lab("a", "b", "c", "d", "e")
    world.settle()
    kept.append(world.record.keeps_removed)
    assert kept == [True, False], "only a commit that is applied tells of it"
    world.desired = lab("a", "b", "c", "d")
    assert [change.action for change in world.plan().changes] == [Action.REMOVE]


def test_deleting_the_manifest_does_not_delete_the_protection() -> None:
    world = settled("a", "b", protect=("b",))
    world.desired = lab("a")
    made = world.plan(replace(OPTIONS, allow_prune=True))
    assert [(change.model, change.keyword) for change in made.changes] == [("b", "protected")]
    world.desired = lab("a", "b")
    world.settle()
    world.desired = lab("a")
    world.settle()
    assert set(world.record.models) == {"a"}


def test_what_is_on_its_way_out_is_not_counted_again() -> None:
    world = settled("a", "b", "c", "d")
    world.desired = lab("a", "b", "c")
    world.one_pass()
    world.desired = lab("a", "b")
    assert {change.action for change in world.plan().changes} == {Action.REMOVE}


def test_what_a_node_lacks_is_a_warning_and_stops_nothing() -> None:
    wanted = desired([node("gpu01", expect=Expect(gpus=4, gpu_class="h100-80g"))], [model("a")])
    state = NodeState("gpu01", facts("gpu01", gpus=2, ephemeral_ports=(18500, 60999)))
    made = fleet(wanted, [state]).plan()
    lacks, overlap = (note.text for note in made.warnings)
    assert lacks == "node/gpu01: has 2 GPUs of class h100-80g, its manifest expects 4"
    assert "18500 to 60999" in overlap
    assert made.steps
