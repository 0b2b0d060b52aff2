"""Nodes that get another name in Git: what they run stays theirs, and their agents are told."""

from datetime import timedelta
from typing import Any

import pytest

from llmgw.core.record import recording
from llmgw.core.record.leaving import with_leaving
from llmgw.core.record.naming import node_renames, nodes_as_recorded, nodes_renamed, renames
from llmgw.core.record.rebuilding import rebuilt
from llmgw.model.desired import Desired
from llmgw.model.ids import Commit, ReplicaId
from llmgw.model.manifest import Dirs, PlacementRules
from llmgw.model.plan import Action, StepKind
from llmgw.model.problems import StalledError
from llmgw.model.record import Forgotten, GivenUp, Setback
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from tests.core.builders import FLEET, KEY, NOW, NodeState, a_pass, desired, facts, model, node
from tests.core.fleets import OPTIONS, Fleet, fleet

LATER = Commit("d" * 40)


def called(name: str, old: str | None = None, **spec: object) -> Desired:
    """The one machine, under another name."""
    machine = node("gpu01", **spec)
    return desired([replace(machine, name=name, renamed_from=old)], [model("chat")])


def renamed(**spec: object) -> Fleet:
    """gpu01 runs a replica; Git calls it gpu09 by now, which its agent has not heard."""
    world = fleet(called("gpu01"), [NodeState("gpu01", facts("gpu01"))])
    world.settle()
    world.nodes = {"gpu09": replace(world.nodes["gpu01"], name="gpu09", says="gpu01")}
    world.desired = called("gpu09", "gpu01", **spec)
    return world


def test_the_agent_is_told_and_nothing_else_is_done() -> None:
    world = renamed()
    running = dict(world.nodes["gpu09"].shards)
    made = world.one_pass()
    assert [(it.address, it.action, it.keyword) for it in made.changes] == [
        ("node/gpu09", Action.UPDATE, "renamed")
    ]
    assert made.changes[0].reason == "renamed from gpu01: nothing restarts"
    assert [(it.kind, it.node) for it in made.commands] == [(StepKind.BOOTSTRAP, "gpu09")]
    assert world.nodes["gpu09"].shards == running
    assert set(world.record.nodes) == {"gpu09"}
    assert {rank.node for it in world.record.replicas.values() for rank in it.ranks} == {"gpu09"}
    again = world.one_pass()
    assert not again.changes
    assert not again.commands
    assert world.record.nodes["gpu09"].formerly == ()


def test_everything_that_names_a_node_is_rewritten_once() -> None:
    world = renamed()
    (replica,) = world.record.replicas.values()
    before = replace(
        world.record,
        forgotten={"old": Forgotten(replica=replica, by="ann", at=NOW, serial=1)},
        given_up=(GivenUp(replica=ReplicaId("x"), node="gpu01", by="ann", at=NOW),),
        setbacks={"gpu01": Setback(count=2, at=NOW, error="no")},
    )
    after = nodes_renamed(before, world.desired)
    assert "node='gpu01'" not in repr(after)
    assert after.nodes["gpu09"].formerly == ("gpu01",)
    assert after.forgotten["old"].replica.ranks[0].node == "gpu09"
    assert set(after.setbacks) == {"gpu09"}
    assert nodes_renamed(after, world.desired) is after


def test_a_pass_that_dies_before_the_agent_is_told_is_finished_by_the_next_without_the_annotation() -> None:
    world = renamed()
    made = world.plan()
    world.record = recording.begin(
        world.record, world.desired, made, world.observe(), pass_record=a_pass(world.record.serial + 1)
    )
    world.record = recording.end(world.record, made, {}, world.observe(), now=world.now)
    world.desired = with_leaving(called("gpu09"), world.record)
    assert world.desired.nodes["gpu09"].formerly == ("gpu01",)
    assert [it.kind for it in world.plan().commands] == [StepKind.BOOTSTRAP]
    world.settle()
    assert not world.plan().changes


def test_an_agent_that_was_told_by_a_pass_that_died_is_known_by_both_names() -> None:
    world = renamed()
    world.nodes["gpu09"].says = ""
    made = world.one_pass()
    assert [it.kind for it in made.commands] == [StepKind.PUBLISH]
    assert not world.plan().changes


def test_a_node_that_is_silent_is_renamed_in_the_record_and_its_agent_told_when_it_answers() -> None:
    world = renamed()
    world.nodes["gpu09"].reach = Reach.UNREACHABLE
    made = world.one_pass()
    told = [(it.action, it.keyword) for it in made.changes if it.address == "node/gpu09"]
    assert told == [(Action.BLOCKED, "unreachable"), (Action.UPDATE, "renamed")]
    assert not world.plan().commands, "the record says it already"
    world.nodes["gpu09"].reach = Reach.OK
    assert [it.kind for it in world.one_pass().commands] == [StepKind.BOOTSTRAP]
    assert not world.plan().changes


def test_an_agent_that_had_died_before_is_started_under_the_new_name() -> None:
    world = renamed()
    world.nodes["gpu09"].reach = Reach.NO_AGENT
    made = world.one_pass()
    told = [it.keyword for it in made.changes if it.address == "node/gpu09"]
    assert told == ["agent-gone", "renamed"]
    world.settle()
    assert not world.plan().changes


@pytest.mark.parametrize("target", ["node/gpu09", "model/code"])
def test_a_pass_about_something_else_renames_too_and_leaves_the_rest_to_the_next(target: str) -> None:
    world = renamed()
    world.desired = replace(
        world.desired, commit=LATER, models={**world.desired.models, "code": model("code", replicas=0)}
    )
    world.one_pass(replace(OPTIONS, targets=(target,)))
    assert set(world.record.nodes) == {"gpu09"}
    assert {rank.node for it in world.record.replicas.values() for rank in it.ranks} == {"gpu09"}
    world.settle()
    assert not world.plan().changes
    assert world.nodes["gpu09"].says == ""


def test_a_record_that_was_lost_is_rebuilt_with_the_name_that_the_agent_has() -> None:
    world = renamed()
    lost, _ = rebuilt(world.desired, world.observe(), key_id=KEY, fleet=FLEET)
    assert lost.nodes["gpu09"].formerly == ("gpu01",)
    world.record = lost
    assert [it.kind for it in world.plan().commands][:1] == [StepKind.BOOTSTRAP]
    world.settle()
    assert not world.plan().changes


def test_an_agent_that_could_not_be_told_rests_and_stays_the_nodes() -> None:
    world = renamed()
    world.refuses = lambda step: step.kind is StepKind.BOOTSTRAP
    world.one_pass()
    world.one_pass()
    made = world.plan()
    assert [(it.action, it.keyword) for it in made.changes] == [(Action.BLOCKED, "setup-rests")]
    assert not made.commands
    world.now += timedelta(hours=1)
    world.refuses = lambda _: False
    world.settle()
    assert not world.plan().changes


def test_an_agent_of_another_name_is_still_nobodys() -> None:
    world = renamed()
    world.nodes["gpu09"].says = "gpu05"
    made = world.plan()
    assert (Action.BLOCKED, "other-fleet") in [(it.action, it.keyword) for it in made.changes]
    assert not any(it.kind is StepKind.BOOTSTRAP for it in made.commands)


def test_a_name_that_was_left_is_not_taken_for_the_nodes_for_ever() -> None:
    world = renamed()
    world.settle()
    world.nodes["gpu09"].says = "gpu01"
    assert world.plan().changes[0].keyword == "other-fleet"


def test_a_second_rename_before_the_agent_heard_of_the_first_knows_both() -> None:
    world = renamed()
    world.refuses = lambda step: step.kind is StepKind.BOOTSTRAP
    world.one_pass()
    world.refuses = lambda _: False
    world.nodes = {"gpu10": replace(world.nodes["gpu09"], name="gpu10")}
    world.desired = called("gpu10", "gpu09")
    made = world.one_pass()
    assert [it.reason for it in made.changes] == ["renamed from gpu09: nothing restarts"]
    assert world.nodes["gpu10"].says == ""
    world.settle()
    assert set(world.record.nodes) == {"gpu10"}


def test_back_to_the_first_name_is_a_rename_like_any_other() -> None:
    world = renamed()
    world.settle()
    world.nodes = {"gpu01": replace(world.nodes["gpu09"], name="gpu01", says="gpu09")}
    world.desired = called("gpu01", "gpu09")
    assert [it.keyword for it in world.one_pass().changes] == ["renamed"]
    world.settle()
    assert not world.plan().changes


@pytest.mark.parametrize("reach", [Reach.NO_AGENT, Reach.UNREACHABLE])
def test_another_work_directory_at_once_is_refused_before_a_second_agent_starts(reach: Reach) -> None:
    world = renamed(dirs=Dirs(work="/srv/agent"))
    world.nodes["gpu09"].reach = reach
    with pytest.raises(
        StalledError, match="write spec.dirs.work: /var/lib/llmgw-agent".replace(".", r"\.")
    ) as refused:
        world.plan()
    assert "renamed from gpu01" in str(refused.value)
    world.desired = called("gpu09", "gpu01")
    world.nodes["gpu09"].reach = Reach.OK
    world.settle()
    world.desired = called("gpu09", "gpu01", dirs=Dirs(work="/srv/agent"))
    assert [it.keyword for it in world.plan().changes] == ["updated"]


def test_a_node_that_is_renamed_is_not_leaving_and_an_unknown_old_name_means_nothing() -> None:
    world = renamed()
    assert set(with_leaving(world.desired, world.record).nodes) == {"gpu09"}
    assert node_renames(world.record, called("gpu09", "gpu77")) == {}


def test_an_offline_plan_tells_it_as_well() -> None:
    world = renamed()
    world.nodes["gpu09"].reach = Reach.NOT_ASKED
    made = world.plan(replace(OPTIONS, offline=True))
    assert [it.keyword for it in made.changes] == ["renamed"]


def test_the_commit_applied_last_is_read_in_the_names_that_the_record_has_by_now() -> None:
    world = renamed()
    record = nodes_renamed(world.record, world.desired)
    known = nodes_as_recorded(called("gpu01"), world.desired, record)
    assert list(known.nodes) == ["gpu09"]
    assert list(nodes_as_recorded(called("gpu01"), None, record).nodes) == ["gpu09"]
    assert nodes_as_recorded(called("gpu01"), world.desired, world.record).nodes == called("gpu01").nodes


def test_a_model_that_a_commit_places_on_a_node_by_its_old_name_stays_there() -> None:
    world = renamed()
    pinned = desired([node("gpu01")], [model("chat", placement=PlacementRules(nodes=("gpu01",)))])
    known = nodes_as_recorded(pinned, world.desired, nodes_renamed(world.record, world.desired))
    assert known.models["chat"].spec.placement.nodes == ("gpu09",)


# ---- taken back ----------------------------------------------------------------------------------------


def test_a_rename_that_is_taken_back_in_git_is_a_rename_without_the_annotation() -> None:
    """After `git revert` the node was to be emptied, and its machine to be set up as another one."""
    world = renamed()
    world.settle()
    running = dict(world.nodes["gpu09"].shards)
    world.nodes = {"gpu01": replace(world.nodes["gpu09"], name="gpu01", says="gpu09")}
    world.desired = called("gpu01")
    made = world.one_pass()
    assert [it.reason for it in made.changes] == ["renamed from gpu09: nothing restarts"]
    world.settle()
    assert world.nodes["gpu01"].shards == running
    assert set(world.record.nodes) == {"gpu01"}
    assert not world.plan().changes
    world.nodes = {"gpu09": replace(world.nodes["gpu01"], name="gpu09", says="gpu01")}
    world.desired = called("gpu09")
    assert [it.keyword for it in world.one_pass().changes] == ["renamed"], "and so is that taken back"


@pytest.mark.parametrize("other", [{"address": "10.0.0.99"}, {"dirs": Dirs(work="/srv/agent")}])
def test_another_machine_that_is_given_a_name_that_was_left_is_another_machine(other: dict[str, Any]) -> None:
    world = renamed()
    world.settle()
    machine = called("gpu01", **{name: it for name, it in other.items() if name != "address"})
    if "address" in other:
        nodes = {name: replace(it, address=other["address"]) for name, it in machine.nodes.items()}
        machine = replace(machine, nodes=nodes)
    assert node_renames(world.record, machine) == {}


def test_a_model_takes_its_name_back_and_keeps_what_runs() -> None:
    first = desired([node("gpu01")], [model("chat", served_name="chat")])
    world = fleet(first, [NodeState("gpu01", facts("gpu01"))])
    world.settle()
    running = dict(world.nodes["gpu01"].shards)
    for name, old in (("talk", "chat"), ("chat", None), ("talk", None)):
        named = replace(first.models["chat"], name=name, renamed_from=old)
        world.desired = replace(first, models={name: named})
        made = world.one_pass()
        before = {"talk": "chat", "chat": "talk"}[name]
        assert [(it.keyword, it.reason) for it in made.changes] == [
            ("renamed", f"renamed from {before}: nothing restarts")
        ]
        assert world.nodes["gpu01"].shards == running
        assert set(world.record.models) == {name}


def test_a_name_that_two_had_before_is_nobodys() -> None:
    first = desired([node("gpu01")], [model("chat", served_name="chat")])
    world = fleet(first, [NodeState("gpu01", facts("gpu01"))])
    world.settle()
    one = replace(world.record.models["chat"], name="one", earlier=("chat",))
    two = replace(one, name="two")
    record = replace(world.record, models={"one": one, "two": two})
    assert renames(record, first) == {}
    assert renames(replace(record, models={"one": one}), first) == {"one": "chat"}


def test_a_model_that_gets_the_name_another_has_left_takes_no_id_of_its_copies() -> None:
    first = desired([node("gpu01")], [model("chat", served_name="chat")])
    world = fleet(first, [NodeState("gpu01", facts("gpu01", gpus=4))])
    world.settle()
    (old,) = world.record.replicas
    world.desired = replace(
        first, models={"talk": replace(first.models["chat"], name="talk", renamed_from="chat")}
    )
    world.one_pass()
    world.desired = desired(
        [node("gpu01")], [model("talk", served_name="talk"), model("chat", served_name="chat")]
    )
    made = world.plan()
    new = next(str(it.replica) for it in made.changes if it.model == "chat" and it.action is Action.CREATE)
    assert new.rpartition(".")[0] == old.rpartition(".")[0], "the same spec under the same prefix"
    assert new != old
    world.settle()
    assert sorted(it.model for it in world.record.replicas.values()) == ["chat", "talk"]
    assert old not in world.record.replicas
