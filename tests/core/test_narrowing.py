"""Plans made smaller: frozen fleets, targets; and new copies of what runs though nothing changed."""

import pytest

from llmgw.core.planner import PlanOptions
from llmgw.core.record import recording
from llmgw.model.ids import Commit
from llmgw.model.manifest import Duration, FleetSpec, SyncWindow
from llmgw.model.plan import Action, Change, Plan, StepKind
from llmgw.model.problems import StalledError
from llmgw.model.record import ReplicaPhase
from llmgw.model.struct import replace
from tests.core.builders import COMMIT, NodeState, a_pass, desired, facts, model, node
from tests.core.fleets import OPTIONS, Fleet, fleet

ALWAYS = SyncWindow(kind="deny", schedule="* * * * *", duration=Duration(7200.0))
LATER = Commit("d" * 40)
NAMED = replace(OPTIONS, replaced={"model/chat": "ann"})


def of(*models: object, **spec: object) -> Fleet:
    wanted = desired([node("n1"), node("n2")], list(models), fleet=FleetSpec(**spec))  # type: ignore[arg-type]
    return fleet(wanted, [NodeState("n1", facts("n1", gpus=2)), NodeState("n2", facts("n2", gpus=2))])


def settled(*models: object, **spec: object) -> Fleet:
    made = of(*models, **spec)
    made.settle()
    return made


def now_asks(it: Fleet, *models: object, commit: Commit = LATER, **spec: object) -> None:
    it.desired = desired(
        [node("n1"), node("n2")],
        list(models),  # type: ignore[arg-type]
        fleet=FleetSpec(**spec),  # type: ignore[arg-type]
        commit=commit,
    )


def change(made: Plan, address: str) -> Change:
    (found,) = [each for each in made.changes if each.address == address]
    return found


# ---- freezes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{"suspend": True}, {"sync_windows": (ALWAYS,)}])
def test_frozen_a_plan_shows_what_it_would_do_and_does_nothing(spec: dict[str, object]) -> None:
    it = of(model("chat"), **spec)
    made = it.plan(replace(OPTIONS, suspended_by="commit 1f by Ann"))
    assert made.frozen
    assert made.commands == ()
    told = change(made, "model/chat/0")
    assert (told.action, told.would, told.keyword) == (Action.BLOCKED, Action.CREATE, "frozen")
    assert "new-model: new in Git" in told.reason
    assert told.placement is not None
    assert made.gate is not None
    assert made.gate.text in told.reason


def test_a_fleet_that_is_as_asked_is_not_blocked_by_a_freeze() -> None:
    it = settled(model("chat"))
    now_asks(it, model("chat"), suspend=True)
    made = it.plan()
    assert (made.frozen, made.changes, made.waiting) == (True, (), ())


def test_frozen_nothing_is_waited_for_that_would_have_to_be_begun() -> None:
    it = settled(model("chat", replicas=2))
    now_asks(it, model("chat", replicas=2, args=("--x",)), suspend=True)
    made = it.plan()
    assert made.waiting == ()
    assert {each.keyword for each in made.changes} == {"frozen"}


def test_a_stop_that_was_begun_is_ended_and_its_commit_does_not_look_applied() -> None:
    it = settled(model("chat", replicas=2))
    now_asks(it, model("chat", replicas=1))
    it.one_pass()
    (going,) = [each for each in it.record.replicas.values() if each.phase is ReplicaPhase.DRAINING]
    applied = Commit("e" * 40)
    it.record = replace(it.record, commit=applied)
    now_asks(it, model("chat", args=("--x",)), model("code"), suspend=True)
    it.nodes[going.ranks[0].node].shards[f"{going.id}-r0"] = replace(
        it.nodes[going.ranks[0].node].shards[f"{going.id}-r0"], state="ready"
    )
    made = it.one_pass()
    assert made.frozen
    assert {step.kind for step in made.commands} == {StepKind.DRAIN, StepKind.STOP}
    assert {step.replica for step in made.commands} == {going.id}
    assert it.record.commit == applied
    assert "code" not in it.record.models
    for _ in range(4):
        it.advance()
        it.one_pass()
    assert going.id not in it.record.replicas


def test_what_was_stopped_to_make_room_comes_also_when_the_window_has_closed_meanwhile() -> None:
    """The old copy was gone, and the new one waited for hours."""
    wanted = desired([node("n1")], [model("chat")])
    it = fleet(wanted, [NodeState("n1", facts("n1", gpus=1))])
    it.settle()
    it.desired = desired([node("n1")], [model("chat", args=("--x",))], commit=LATER)
    made = it.one_pass()
    assert change(made, "model/chat/0").action is Action.DESTROY_BEFORE_CREATE
    closed = FleetSpec(sync_windows=(ALWAYS,))
    it.desired = replace(it.desired, fleet=closed)
    for _ in range(8):
        it.advance()
        assert it.one_pass().frozen
    assert it.ready("chat") == 1
    assert it.plan().changes == ()


def test_suspended_by_another_commit_what_was_stopped_to_make_room_waits() -> None:
    it = fleet(desired([node("n1")], [model("chat")]), [NodeState("n1", facts("n1", gpus=1))])
    it.settle()
    it.desired = desired([node("n1")], [model("chat", args=("--x",))], commit=LATER)
    it.one_pass()
    suspended = FleetSpec(suspend=True)
    it.desired = desired(
        [node("n1")], [model("chat", args=("--y",))], commit=Commit("f" * 40), fleet=suspended
    )
    for _ in range(8):
        it.advance()
        it.one_pass()
    assert it.ready("chat") == 0
    assert change(it.plan(), "model/chat/0").would is Action.CREATE


def test_an_override_makes_the_changes_and_says_why() -> None:
    it = of(model("chat"), suspend=True)
    options = replace(OPTIONS, override="the demo is today")
    made = it.one_pass(options)
    assert (made.frozen, made.override) == (False, "the demo is today")
    assert it.settle(options).changes == ()
    assert it.record.commit == COMMIT


@pytest.mark.parametrize("how", ["offline", "worktree"])
def test_a_plan_that_can_not_be_applied_shows_what_would_come_unfrozen(how: str) -> None:
    it = of(model("chat"), suspend=True)
    options = replace(OPTIONS, offline=how == "offline", worktree=how == "worktree")
    made = it.plan(options)
    assert made.gate is not None
    assert not made.frozen


# ---- targets -----------------------------------------------------------------------------------------


def test_only_the_target_changes_and_the_rest_is_told_as_left_out() -> None:
    it = settled(model("chat"), model("code"))
    now_asks(it, model("chat", args=("--x",)), model("code", args=("--x",)), model("new"))
    options = replace(OPTIONS, targets=("model/chat",))
    made = it.settle(options)
    assert made.changes == ()
    assert {each.address for each in made.left_out} == {"model/code/0", "model/new/0"}
    assert it.ready("new") == 0
    assert it.record.commit == COMMIT
    assert it.record.partial == LATER
    assert "new" not in it.record.models
    whole = it.plan()
    assert {each.address for each in whole.changes} == {"model/code/0", "model/new/0"}
    it.settle()
    assert it.record.commit == LATER
    assert not it.record.partial


def test_what_a_target_needs_comes_with_it() -> None:
    it = of(model("chat"), model("code"))
    for state in it.nodes.values():
        state.reach = type(state.reach).NO_AGENT
    made = it.plan(replace(OPTIONS, targets=("model/chat",)))
    kinds = [step.kind for step in made.commands if step.kind is not StepKind.PUBLISH]
    assert kinds == [StepKind.BOOTSTRAP, StepKind.INSTALL, StepKind.START]
    (start,) = [step for step in made.steps if step.kind is StepKind.START]
    assert start.model == "chat"
    assert {each.address for each in made.changes} == {"model/chat/0", f"node/{start.node}"}
    it.settle(replace(OPTIONS, targets=("model/chat",)))
    assert (it.ready("chat"), it.ready("code")) == (1, 0)
    assert list(it.record.nodes) == [start.node]


def test_a_removal_is_a_target_too_and_the_others_stay_recorded() -> None:
    it = settled(model("chat"), model("code", replicas=0), model("third"))
    now_asks(it, model("third", args=("--x",)))
    options = replace(OPTIONS, targets=("model/chat",))
    it.settle(options)
    assert set(it.record.models) == {"code", "third"}
    assert it.ready("chat") == 0
    assert not it.record.models["code"].removed


def test_one_replica_alone_can_be_a_target() -> None:
    it = settled(model("chat", replicas=2))
    now_asks(it, model("chat", replicas=3, args=("--x",)))
    options = replace(OPTIONS, targets=("model/chat/1",))
    it.settle(options)
    args = {each.ordinal: each.spec.model.args for each in it.record.replicas.values()}
    assert args == {0: (), 1: ("--x",)}
    assert it.record.models["chat"].replicas == 2
    it.settle()
    assert it.ready("chat") == 3


def test_of_a_new_model_one_replica_can_come_first() -> None:
    it = of(model("chat", replicas=2))
    it.settle(replace(OPTIONS, targets=("model/chat/0",)))
    assert (it.ready("chat"), it.record.commit) == (1, None)
    it.settle()
    assert (it.ready("chat"), it.record.commit) == (2, COMMIT)


def test_a_target_that_nothing_answers_to_is_refused() -> None:
    it = settled(model("chat"))
    with pytest.raises(
        StalledError, match="model/chatt is neither in Git nor in the record; there is model/chat"
    ):
        it.plan(replace(OPTIONS, targets=("model/chatt",)))


def test_going_back_behind_what_was_applied_in_part_is_refused() -> None:
    it = settled(model("chat"))
    it.record = replace(it.record, partial=LATER)
    with pytest.raises(StalledError, match="older than dddddddddddd, which was applied last in part"):
        it.plan(PlanOptions(key_id=OPTIONS.key_id, agent_version="0.1.0", strict_ancestor=True))


# ---- replacements ------------------------------------------------------------------------------------


def test_a_new_copy_comes_though_nothing_changed_and_comes_once() -> None:
    it = settled(model("chat", replicas=2))
    before = set(it.record.replicas)
    made = it.one_pass(NAMED)
    told = change(made, "model/chat/0")
    assert (told.action, told.keyword) == (Action.CREATE_BEFORE_DESTROY, "asked-for")
    assert "ann asked for a new copy" in told.reason
    assert it.record.commit == COMMIT
    assert it.settle().changes == ()
    assert it.ready("chat") == 2
    assert not before & set(it.record.replicas)
    after = set(it.record.replicas)
    it.settle()
    assert set(it.record.replicas) == after


def test_a_replacement_serves_all_the_time() -> None:
    it = settled(model("chat"))
    served: list[int] = []
    it.check = lambda each: served.append(each.ready("chat"))
    it.one_pass(NAMED)
    it.settle()
    assert min(served) == 1


def test_an_interrupted_replacement_is_finished_by_the_next_pass() -> None:
    """The intent was written, and its controller died before the first command."""
    it = settled(model("chat"))
    (old,) = it.record.replicas
    made = it.plan(NAMED)
    it.record = recording.begin(
        it.record, it.desired, made, it.observe(), pass_record=a_pass(it.record.serial + 1, it.now)
    )
    it.settle()
    assert old not in it.record.replicas
    assert it.ready("chat") == 1


def test_asking_twice_while_it_is_under_way_replaces_once() -> None:
    it = settled(model("chat"))
    for _ in range(3):
        it.one_pass(NAMED)
    it.settle()
    (replica,) = it.record.replicas.values()
    assert replica.n == 2


def test_a_wish_that_must_wait_is_remembered() -> None:
    it = settled(model("chat", replicas=2))
    now_asks(it, model("chat", replicas=2, args=("--x",)))
    it.one_pass()
    made = it.one_pass(replace(OPTIONS, replaced={"model/chat/1": "ann"}))
    assert any(step.id == "publish the wish for new copies of model/chat/1" for step in made.steps)
    assert any(each.replaced_by == "ann" for each in it.record.replicas.values())


def test_a_held_spec_is_tried_again_when_somebody_asks() -> None:
    it = settled(model("chat"))
    it.fails = lambda _: True
    now_asks(it, model("chat", args=("--x",)))
    it.settle()
    assert it.record.models["chat"].held is not None
    it.fails = lambda _: False
    it.one_pass(NAMED)
    assert it.settle().changes == ()
    (replica,) = it.record.replicas.values()
    assert replica.spec.model.args == ("--x",)


def test_nothing_can_be_replaced_that_nobody_recorded() -> None:
    it = settled(model("chat"))
    with pytest.raises(StalledError, match="nothing of model/code is recorded"):
        it.plan(replace(OPTIONS, replaced={"model/code": "ann"}))


def test_a_frozen_replacement_waits_and_is_not_remembered() -> None:
    it = settled(model("chat"))
    now_asks(it, model("chat"), suspend=True)
    made = it.one_pass(NAMED)
    assert made.commands == ()
    assert change(made, "model/chat/0").would is Action.CREATE_BEFORE_DESTROY
    assert not any(each.replaced_by for each in it.record.replicas.values())
