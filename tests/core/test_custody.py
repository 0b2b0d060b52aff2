"""What runs without being managed: what nobody recorded, what was forgotten on purpose, and how either is managed again."""

import pytest

from llmgw.core.moves.custody import adopt_change, forget_change, to_adopt, to_forget
from llmgw.core.record import custody
from llmgw.core.seen.survey import survey
from llmgw.core.show import render_status
from llmgw.core.show.status import status
from llmgw.model.desired import Desired
from llmgw.model.ids import Digest
from llmgw.model.plan import Action, StepKind
from llmgw.model.problems import StalledError
from llmgw.model.record import ReplicaRecord
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from tests.core.builders import KEY, NodeState, desired, facts, model, node, profile
from tests.core.fleets import OPTIONS, Fleet, fleet

PRUNE = replace(OPTIONS, prune_unrecorded=True)


def lab(*models: str, nodes: int = 1, **spec: object) -> Desired:
    return desired(
        [node(f"gpu0{number}") for number in range(1, nodes + 1)],
        [model(name, None, **spec) for name in models],
    )


def settled(*models: str, nodes: int = 1, gpus: int = 2, **spec: object) -> Fleet:
    wanted = lab(*models, nodes=nodes, **spec)
    states = [NodeState(name, facts(name, gpus=gpus)) for name in wanted.nodes]
    world = fleet(wanted, states)
    world.settle()
    return world


def lose_record_of(world: Fleet, name: str) -> None:
    """As if somebody had set the record back behind it."""
    record = world.record
    world.record = replace(
        record,
        replicas={key: each for key, each in record.replicas.items() if each.model != name},
        models={key: each for key, each in record.models.items() if key != name},
    )


def forget(world: Fleet, address: str, why: str = "") -> tuple[str, ...]:
    going = tuple(each.id for each in to_forget(address, world.record))
    world.record = custody.forgotten(world.record, going, by="ann", at=world.now, why=why)
    return going


def adopted(world: Fleet, address: str) -> tuple[ReplicaRecord, ...]:
    seen = survey(world.desired, world.record, world.observe().nodes, offline=False)
    found = to_adopt(address, world.record, world.desired, seen, key_id=KEY)
    world.record = custody.managed(world.record, found)
    return found


def shard_ids(world: Fleet) -> set[str]:
    return {key for state in world.nodes.values() for key in state.shards}


# ---- nobody recorded it ------------------------------------------------------------------------------


def test_what_nobody_recorded_is_told_with_what_it_holds_and_left_alone() -> None:
    world = settled("chat", "code")
    lose_record_of(world, "code")
    world.desired = lab("chat")
    made = world.plan()
    [told] = made.drift
    assert told.keyword == "unrecorded"
    assert "it holds 1 GPU and port 18001: it is left alone" in told.text
    assert not made.commands
    [row] = [
        each for each in status(world.record, world.observe(), now=world.now).replicas if not each.recorded
    ]
    assert row.reason == "nobody recorded it; it holds 1 GPU and port 18001"


def test_what_nobody_recorded_is_stopped_where_that_is_asked_for_whatever_else_is_protected() -> None:
    world = settled("chat", "code", protect=True)
    lose_record_of(world, "code")
    world.desired = lab("chat", protect=True)
    made = world.plan(PRUNE)
    [change] = made.changes
    assert (change.action, change.keyword, change.model) == (Action.REMOVE, "unrecorded", "code")
    assert {step.kind for step in made.commands} == {StepKind.STOP}
    world.settle(PRUNE)
    assert {each.model: each.state for each in world.nodes["gpu01"].shards.values()} == {
        "chat": "ready",
        "code": "stopped",
    }
    assert not world.plan(PRUNE).changes


def test_the_order_of_what_nobody_recorded_and_has_failed_is_dropped() -> None:
    world = settled("chat", "code")
    lose_record_of(world, "code")
    world.desired = lab("chat")
    shards = world.nodes["gpu01"].shards
    (key,) = [each for each in shards if each.startswith("code-")]
    shards[key] = replace(shards[key], state="failed")
    [change] = world.plan(PRUNE).changes
    assert "has failed on gpu01 and nobody recorded it: its order is dropped" in change.reason
    world.settle(PRUNE)
    assert key not in shards


def test_what_git_asks_for_is_adopted_even_where_the_unrecorded_is_to_go() -> None:
    world = settled("chat")
    lose_record_of(world, "chat")
    before = shard_ids(world)
    made = world.plan(PRUNE)
    assert [change.keyword for change in made.changes] == ["adopted"]
    world.settle(PRUNE)
    assert shard_ids(world) == before


def test_what_another_fleets_agent_holds_is_never_stopped() -> None:
    world = settled("chat", "code")
    lose_record_of(world, "code")
    world.desired = lab("chat")
    for other in ("fleet-2", None):
        world.nodes["gpu01"].fleet = other
        assert not [step for step in world.plan(PRUNE).steps if step.kind is StepKind.STOP]


# ---- forgotten ---------------------------------------------------------------------------------------


def test_a_forgotten_model_runs_on_untouched_also_when_git_names_it_no_more() -> None:
    world = settled("chat", "code")
    before = shard_ids(world)
    (going,) = forget(world, "model/chat", why="handed over")
    world.desired = lab("code")
    made = world.settle(PRUNE)
    assert not made.changes
    assert not made.drift
    assert shard_ids(world) == before
    [notice] = made.warnings
    assert notice.text.startswith(f"{going} on gpu01 was forgotten by ann at ")
    assert "(handed over)" in notice.text
    assert "chat" not in world.record.models


def test_what_git_still_asks_for_gets_another_copy_that_takes_nothing_from_the_forgotten_one() -> None:
    world = settled("chat")
    (going,) = forget(world, "chat")
    world.settle()
    (new,) = world.record.replicas.values()
    assert new.id != going
    held = world.record.forgotten[going].replica
    assert not {gpu.uuid for gpu in held.ranks[0].gpus} & {gpu.uuid for gpu in new.ranks[0].gpus}
    assert not set(held.ranks[0].ports) & set(new.ranks[0].ports)


def test_claims_of_the_forgotten_count_while_its_node_is_silent() -> None:
    world = settled("chat", gpus=1)
    (going,) = forget(world, "chat")
    made = world.plan()
    assert [change.keyword for change in made.changes] == ["no-room"]
    world.nodes["gpu01"].reach = Reach.UNREACHABLE
    assert going in world.record.forgotten
    assert not world.plan().commands


def test_a_node_does_not_leave_while_it_runs_a_forgotten_one() -> None:
    world = settled("chat")
    (going,) = forget(world, "chat")
    world.desired = desired([node("gpu02")], [])
    world.nodes["gpu02"] = NodeState("gpu02", facts("gpu02"))
    [change] = [each for each in world.plan().changes if each.address == "node/gpu01"]
    assert (change.action, change.keyword) == (Action.BLOCKED, "node-removed")
    assert going in change.reason


def test_a_forgotten_one_that_has_ended_is_forgotten_for_good_and_its_order_dropped() -> None:
    world = settled("chat", "code")
    forget(world, "chat")
    world.desired = lab("code")
    state = world.nodes["gpu01"]
    for key, shard in state.shards.items():
        if shard.model == "chat":
            state.shards[key] = replace(shard, state="stopped")
    world.one_pass()
    assert not world.record.forgotten
    world.desired = lab("code", "more")
    world.settle()
    assert {each.model for each in state.shards.values()} == {"code", "more"}


def test_status_says_who_forgot_it_and_counts_it_as_no_replica() -> None:
    world = settled("chat")
    (going,) = forget(world, "chat", why="for a demonstration")
    shown = status(world.record, world.observe(), now=world.now, desired=world.desired)
    [row] = shown.replicas
    assert (row.replica, row.recorded) == (going, False)
    assert "forgotten by ann at" in row.forgotten
    assert [(each.placed, each.wanted) for each in shown.models] == [(0, 1)]
    text = render_status.status_text(shown)
    assert "ready (forgotten)" in text
    assert "for a demonstration" in text


@pytest.mark.parametrize("address", ["chat", "model/chat", "model/chat/0", "chat/0", "chat/0.1", "{replica}"])
def test_what_is_meant_may_be_named_in_every_way_that_plans_and_status_name_it(address: str) -> None:
    world = settled("chat", "code")
    (replica,) = [each.id for each in world.record.replicas.values() if each.model == "chat"]
    assert forget(world, address.format(replica=replica)) == (replica,)


def test_forgetting_says_what_comes_of_it_and_what_can_t_be_forgotten() -> None:
    world = settled("chat")
    (replica,) = to_forget("chat", world.record)
    assert "the next apply places another copy" in forget_change(replica, world.desired, why="").reason
    assert "nothing comes in its place" in forget_change(replica, lab("code"), why="x").reason
    with pytest.raises(StalledError, match=r"name a model \(chat\)"):
        to_forget("node/gpu01", world.record)
    forget(world, "chat")
    with pytest.raises(StalledError, match="forgotten already"):
        to_forget("chat", world.record)


# ---- managed again -----------------------------------------------------------------------------------


def test_the_forgotten_is_managed_again_without_a_restart() -> None:
    world = settled("chat")
    before, record = shard_ids(world), world.record
    forget(world, "chat")
    [back] = adopted(world, "chat")
    assert world.record.replicas == record.replicas
    assert adopt_change(back, ()).keyword == "managed"
    assert not world.settle().changes
    assert shard_ids(world) == before


def test_the_unrecorded_is_recorded_as_git_asks() -> None:
    world = settled("chat")
    lose_record_of(world, "chat")
    [found] = adopted(world, "model/chat/0")
    assert found.spec_digest == world.desired.models["chat"].spec_digest
    assert not [step for step in world.settle().steps if step.kind is StepKind.START]


def test_what_differs_from_git_is_refused_with_the_fields() -> None:
    world = settled("chat", gpus=1)
    forget(world, "chat")
    world.desired = lab("chat", args=("--fast",))
    with pytest.raises(StalledError, match=r'spec.args is \[\], Git says \["--fast"\]'):
        adopted(world, "chat")


def test_of_a_spec_that_nobody_recorded_it_tells_what_reports_tell() -> None:
    world = settled("chat", gpus=2)
    lose_record_of(world, "chat")
    world.desired = desired([node("gpu01")], [model("chat", profile(gpus=2))])
    with pytest.raises(StalledError, match=r"profile\.gpus\.perNode is 1, Git says 2; its spec is"):
        adopted(world, "chat")


def test_adopting_is_refused_where_it_has_no_place() -> None:
    world = settled("chat")
    forget(world, "chat")
    world.settle()
    with pytest.raises(StalledError, match="has its place: forget that one first"):
        adopted(world, next(iter(world.record.forgotten)))
    world.desired = lab("chat", replicas=0)
    with pytest.raises(StalledError, match="Git asks for 0 replicas"):
        adopted(world, next(iter(world.record.forgotten)))
    world.desired = lab("code")
    with pytest.raises(StalledError, match="Git asks for no model chat"):
        adopted(world, next(iter(world.record.forgotten)))
    with pytest.raises(StalledError, match="nothing that is forgotten or that nobody recorded"):
        adopted(world, "nobody")


def test_of_two_for_one_place_one_must_be_named() -> None:
    world = settled("chat")
    forget(world, "chat")
    world.settle()
    (second,) = forget(world, "chat")
    with pytest.raises(StalledError, match="would have the same place: name one of them"):
        adopted(world, "chat")
    assert [each.id for each in adopted(world, second)] == [second]


def test_a_digest_of_a_version_before_counts_as_the_same_spec() -> None:
    world = settled("chat")
    forget(world, "chat")
    asked = world.desired.models["chat"]
    renewed = replace(asked, spec_digest=Digest("f" * 64), also_runs_as=(asked.spec_digest,))
    world.desired = replace(world.desired, models={"chat": renewed})
    assert adopted(world, "chat")
