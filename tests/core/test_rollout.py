"""From old to new, one situation a test: what is kept, what goes, what waits, and what a later pass takes up."""

from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from llmgw.core.planner import plan
from llmgw.core.record import recording
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import ReplicaId, ShardId, digest
from llmgw.model.manifest import GIB, PlacementRules, Rollout, Size, Source
from llmgw.model.plan import Action, Plan, Step, StepKind
from llmgw.model.record import ReplicaPhase
from llmgw.model.report import JobReport, Reach
from llmgw.model.struct import replace
from tests.core.builders import ADAPTERS, NOW, NodeState, a_pass, desired, facts, model, node, profile
from tests.core.fleets import OPTIONS, Fleet, fleet


def box(name: str = "gpu01", *, gpus: int = 2) -> NodeState:
    return NodeState(name, facts(name, gpus=gpus))


def lab(*models: DesiredModel, nodes: tuple[str, ...] = ("gpu01",)) -> Desired:
    return desired([node(name) for name in nodes], models)


def settled(wanted: Desired, *states: NodeState) -> Fleet:
    world = fleet(wanted, states)
    world.settle()
    return world


def kinds(made: Plan) -> list[StepKind]:
    return [step.kind for step in made.steps]


def keywords(made: Plan) -> list[str]:
    return [change.keyword for change in made.changes]


def only_replica(world: Fleet, name: str) -> str:
    (found,) = (replica.id for replica in world.record.replicas.values() if replica.model == name)
    return found


def new_model(**spec: object) -> DesiredModel:
    return model("chat", None, args=("--new",), **spec)


# ---- create before destroy, destroy before create ----------------------------------------------------


def test_the_old_one_is_drained_only_after_the_new_one_is_published() -> None:
    world = settled(lab(model("chat")), box())
    world.desired = lab(new_model())
    made = world.plan()
    assert [change.action for change in made.changes] == [Action.CREATE_BEFORE_DESTROY]
    drain = next(step for step in made.steps if step.kind is StepKind.DRAIN)
    assert [name.partition(" ")[0] for name in drain.after] == ["publish"]
    world.one_pass()
    assert {replica.phase for replica in world.record.replicas.values()} == {
        ReplicaPhase.SERVING,
        ReplicaPhase.STARTING,
    }


def test_a_full_node_is_freed_only_once_the_jobs_are_done() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    world.desired = lab(new_model(source=Source(url="https://example.org/x.gguf")))
    first = world.one_pass()
    assert [change.action for change in first.changes] == [Action.DESTROY_BEFORE_CREATE]
    assert first.changes[0].outage
    assert world.ready("chat") == 1, "the outage must not include the download"
    second = world.one_pass()
    assert StepKind.AWAIT_JOBS not in kinds(second)
    assert world.ready("chat") == 0
    world.settle()
    assert world.ready("chat") == 1


def test_a_download_that_fails_takes_nothing_down() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    url = "https://example.org/x.gguf"
    world.desired = lab(new_model(source=Source(url=url)))
    job = f"fetch-{digest(url)[:8]}"
    failed = JobReport(
        job=job,  # type: ignore[arg-type] # plain text
        kind="fetch",
        target=digest(url),
        description=url,
        state="failed",
        ended=NOW,
        error="404 Not Found",
    )
    world.nodes["gpu01"].jobs[job] = failed
    made = world.plan()
    assert keywords(made) == ["job-failed"]
    assert "404 Not Found" in made.changes[0].reason
    assert not made.steps
    world.now = NOW + timedelta(minutes=10)
    assert StepKind.FETCH in kinds(world.plan()), "a mirror that was down may be back"


def test_nothing_is_stopped_for_a_successor_that_would_not_fit() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    world.desired = lab(replace(model("chat", profile(gpus=2)), served_name="chat"))
    made = world.plan()
    assert keywords(made) == ["no-room"]
    assert not made.steps
    assert "serves on" in made.changes[0].reason


def test_the_last_ready_replica_of_a_protected_model_is_not_stopped_to_make_room() -> None:
    world = settled(lab(model("chat", protect=True)), box(gpus=1))
    world.desired = lab(new_model(protect=True))
    assert keywords(world.plan()) == ["protected"]


def test_the_freed_place_is_kept_for_the_successor() -> None:
    """An equal that waits for room does not take it."""
    world = settled(lab(model("chat")), box(gpus=1))
    world.desired = lab(new_model(), model("also"))
    world.settle()
    assert world.ready("chat") == 1
    assert world.ready("also") == 0


def test_of_several_old_ones_the_one_that_serves_is_kept() -> None:
    world = settled(lab(model("chat")), box(gpus=3))
    serving = only_replica(world, "chat")
    world.desired = lab(model("chat", args=("--second",)))
    world.one_pass()
    world.desired = lab(model("chat", args=("--third",)))
    made = world.plan()
    stopped = {step.replica for step in made.steps if step.kind is StepKind.STOP}
    assert serving not in stopped, "the one that serves goes last"
    assert len(stopped) == 1
    world.settle()
    assert world.ready("chat") == 1


def test_of_two_that_serve_the_newer_one_is_kept() -> None:
    world = settled(lab(model("chat")), box(gpus=3))
    older = only_replica(world, "chat")
    world.desired = lab(model("chat", args=("--second",)))
    world.one_pass()
    world.advance()
    world.advance()
    world.record = recording.observe(world.record, world.observe(), world.now, grace=300)
    world.desired = lab(model("chat", args=("--third",)))
    drained = {step.replica for step in world.plan().steps if step.kind is StepKind.DRAIN and not step.after}
    assert drained == {older}


# ---- fewer -------------------------------------------------------------------------------------------


def test_scaling_down_takes_the_highest_ordinals() -> None:
    world = settled(lab(model("chat", replicas=3)), box(gpus=3))
    world.desired = lab(model("chat", replicas=1))
    made = world.plan()
    assert [change.address for change in made.changes if change.action is Action.REMOVE] == [
        "model/chat/1",
        "model/chat/2",
    ]
    world.settle()
    assert {replica.ordinal for replica in world.record.replicas.values()} == {0}


def test_the_only_one_that_serves_is_not_scaled_away_while_another_loads() -> None:
    world = settled(lab(model("chat", replicas=2)), box())
    state = world.nodes["gpu01"]
    first = next(key for key, shard in state.shards.items() if "-0.1-" in key)
    state.shards[first] = replace(state.shards[first], state="loading")
    world.desired = lab(model("chat", replicas=1))
    made = world.one_pass()
    assert StepKind.DRAIN not in kinds(made)
    assert world.ready("chat") == 1
    world.settle()
    assert [replica.ordinal for replica in world.record.replicas.values()] == [0]


def test_a_protected_model_is_not_scaled_to_nothing() -> None:
    world = settled(lab(model("chat", protect=True)), box())
    world.desired = lab(model("chat", protect=True, replicas=0))
    assert "protected" in keywords(world.plan())
    world.settle()
    assert world.ready("chat") == 1


# ---- taken up where an earlier pass left it ----------------------------------------------------------


def interrupted(world: Fleet, sent: int) -> Plan:
    """A controller that dies after its intent and the first ``sent`` commands."""
    made, seen = world.plan(), world.observe()
    world.record = recording.begin(world.record, world.desired, made, seen, pass_record=a_pass(9, world.now))
    for step in [step for step in made.steps if step.kind in (StepKind.START, StepKind.STOP, StepKind.DRAIN)][
        :sent
    ]:
        world.carry_out(step)
    return made


def test_a_start_that_was_recorded_and_never_sent_is_sent_again_under_the_same_name() -> None:
    world = fleet(lab(model("chat")), [box()])
    made = interrupted(world, sent=0)
    again = world.plan()
    assert keywords(again)[-1] == "not-started"
    assert [step.id for step in again.steps if step.kind is StepKind.START] == [
        step.id for step in made.steps if step.kind is StepKind.START
    ]
    assert not again.drift
    world.settle()
    assert len(world.record.replicas) == 1


def test_a_drain_that_was_recorded_and_never_sent_is_sent_again() -> None:
    world = settled(lab(model("chat"), model("old")), box())
    world.desired = lab(model("chat"))
    interrupted(world, sent=0)
    assert StepKind.DRAIN in kinds(world.plan())
    world.settle()
    assert world.ready("old") == 0


def test_a_stop_that_was_recorded_and_never_sent_is_sent_again() -> None:
    world = settled(lab(model("chat"), model("old")), box())
    world.desired = lab(model("chat"))
    state = world.nodes["gpu01"]
    key = next(key for key in state.shards if key.startswith("old"))
    state.shards[key] = replace(state.shards[key], state="loading")
    interrupted(world, sent=0)
    assert kinds(world.plan())[0] is StepKind.STOP
    world.settle()
    assert "old" not in world.record.models


def test_one_that_crashes_while_it_is_to_go_is_told_so_all_the_same() -> None:
    """Stopping by itself is no answer: without an order it would start again."""
    world = settled(lab(model("chat"), model("old")), box())
    state = world.nodes["gpu01"]
    key = next(key for key in state.shards if key.startswith("old"))
    state.shards[key] = replace(state.shards[key], state="stopping", reason="exited with code 1")
    world.desired = lab(model("chat"))
    assert StepKind.STOP in kinds(world.plan())


def test_what_vanished_starts_again_in_its_place() -> None:
    world = settled(lab(model("chat")), box())
    before = world.record.replicas[only_replica(world, "chat")]
    world.nodes["gpu01"].shards.clear()
    made = world.plan()
    assert keywords(made) == ["vanished"]
    assert [each.keyword for each in made.drift] == ["vanished"]
    world.settle()
    after = next(iter(world.record.replicas.values()))
    assert (after.id, after.ranks) == (before.id, before.ranks)


@pytest.mark.parametrize(
    ("state", "lost"), [("failed", "its order"), ("loading", "its secrets"), ("ready", "its secrets")]
)
def test_an_agent_that_lost_part_of_an_order_is_sent_it_again_under_the_same_name(
    state: str, lost: str
) -> None:
    """With its order cut the model was blocked for good; with its key gone an apply waited for ever."""
    world = settled(lab(model("chat")), box())
    node = world.nodes["gpu01"]
    (name,) = node.shards
    node.shards[name] = replace(node.shards[name], state=state, lost=lost)
    made = world.plan()
    assert keywords(made) == ["order-lost"]
    (sent,) = (step for step in made.steps if step.kind is StepKind.START)
    assert sent.shard == name
    assert not {StepKind.STOP, StepKind.DRAIN} & set(kinds(made))
    world.one_pass()
    node.shards[name] = replace(node.shards[name], state="failed", lost=lost)
    world.one_pass()
    assert world.record.models["chat"].held is None, "it says nothing of the spec"


def test_what_vanished_from_a_gpu_that_is_gone_is_placed_anew() -> None:
    world = settled(lab(model("chat")), box())
    state = world.nodes["gpu01"]
    state.shards.clear()
    state.facts = replace(state.facts, gpus=state.facts.gpus[1:])
    world.settle()
    (replica,) = world.record.replicas.values()
    assert replica.n == 2
    assert replica.ranks[0].gpus[0].uuid == "GPU-gpu01-1"


def test_a_node_that_was_not_as_planned_is_planned_anew_and_holds_nothing() -> None:
    world = fleet(lab(model("chat")), [box()])
    world.one_pass()
    state = world.nodes["gpu01"]
    (key,) = state.shards
    state.shards[key] = replace(
        state.shards[key], state="failed", last_error="mismatch: GPU-gpu01-0 is held by pid 7", started=None
    )
    made = world.one_pass()
    assert "held" not in keywords(made)
    world.settle()
    (replica,) = world.record.replicas.values()
    assert replica.n == 2


def test_nodes_that_refuse_time_and_again_are_asked_less_and_less_often() -> None:
    """Weights that the engine may not read were handed to and fro between two nodes, once a pass."""
    world = fleet(lab(model("chat"), nodes=("gpu01", "gpu02")), [box("gpu01"), box("gpu02")])
    for _ in range(60):
        made = world.one_pass()
        for state in world.nodes.values():
            for key, shard in state.shards.items():
                if shard.state == "pending":
                    error = "mismatch: /models/x can't be read"
                    state.shards[key] = replace(shard, state="failed", last_error=error, started=None)
        world.advance()
    assert "held" not in keywords(made)
    failed = world.record.models["chat"].attempts["0"]
    assert (failed.count, failed.refused) == (0, world.record.models["chat"].placements["0"])
    assert 4 <= failed.refused <= 8, "in ten minutes"
    assert any("not as planned" in waiting for waiting in made.waiting)
    world.settle()
    assert world.ready("chat") == 1
    assert not world.record.models["chat"].attempts


def test_a_job_that_failed_rests_and_is_tried_again_and_its_model_is_not_held() -> None:
    """A disk that was full for a moment held the spec: freeing it changed nothing, only another spec did."""
    world = fleet(lab(model("chat")), [box()])
    made = world.one_pass()
    (install,) = (step.install for step in made.steps if step.install is not None)
    state = world.nodes["gpu01"]
    (key,) = state.shards
    error = f"job {install.job} (sim 1) failed: installing sim 1: no space left on device"
    state.facts = replace(state.facts, engines=())
    state.shards[key] = replace(state.shards[key], state="failed", last_error=error, started=None)
    state.jobs[install.job] = JobReport(
        job=install.job,
        kind="install",
        target="1",
        description="sim 1",
        state="failed",
        ended=world.now,
        error=error,
    )
    told = [keywords(world.one_pass()) for _ in range(4)]
    assert told[-1] == ["job-failed"], told
    assert world.record.models["chat"].held is None
    world.now += timedelta(minutes=6)
    assert StepKind.INSTALL in kinds(world.plan())
    state.jobs.clear()
    world.settle()
    assert world.record.endpoints


# ---- failing -----------------------------------------------------------------------------------------


def fails(step: Step) -> bool:
    return step.launch is not None and "--bad" in step.launch.processes[-1].argv


def test_after_destroy_before_create_a_failure_brings_the_last_good_spec_back() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    world.fails = fails
    world.desired = lab(model("chat", args=("--bad",)))
    last = world.settle()
    assert keywords(last) == ["held"]
    assert world.ready("chat") == 1
    (replica,) = world.record.replicas.values()
    assert replica.spec.model.args == ()
    held = world.record.models["chat"].held
    assert held is not None
    assert held.last_lines == ("loading", "ValueError: bad flag")


def test_without_auto_revert_the_failed_one_stays_for_people_to_look_at() -> None:
    rollout = Rollout(auto_revert=False)
    world = settled(lab(model("chat", rollout=rollout)), box())
    world.fails = fails
    world.desired = lab(model("chat", args=("--bad",), rollout=rollout))
    last = world.settle()
    assert keywords(last) == ["failed"]
    assert "bad flag" in last.changes[0].reason
    assert len(world.record.replicas) == 2
    assert world.ready("chat") == 1


def test_a_spec_that_serves_in_one_place_is_not_held_for_another() -> None:
    """Held at itself, nothing was ever started again in the place of what a lost node took."""
    world = settled(lab(model("chat", replicas=2, rollout=Rollout(max_surge=2))), box(gpus=4))
    world.fails = lambda step: fails(step) and "-1." in (step.replica or "")
    world.desired = lab(model("chat", args=("--bad",), replicas=2, rollout=Rollout(max_surge=2)))
    world.one_pass()
    world.advance()
    world.advance()  # one was ready before anybody saw the other fail
    last = world.settle()
    assert keywords(last) == ["failed"]
    assert world.record.models["chat"].held is None
    assert world.ready("chat") == 2


def test_a_first_start_that_fails_is_held_and_gives_its_gpu_back() -> None:
    world = fleet(lab(model("chat", args=("--bad",))), [box(gpus=1)])
    world.fails = fails
    assert keywords(world.settle()) == ["held"]
    assert not world.record.replicas
    world.desired = lab(model("chat"))
    assert not world.settle().changes
    assert world.record.models["chat"].held is None


def give_up(world: Fleet, replica: str = "") -> None:
    """Its agent has started it often enough; of all that serve if none is named."""
    for state in world.nodes.values():
        for key, shard in state.shards.items():
            if replica in ("", shard.replica) and shard.state == "ready":
                state.shards[key] = replace(shard, state="failed", last_error="CUDA error", attempts=6)


def test_one_that_served_and_gave_up_is_started_on_another_node_first() -> None:
    """It kept its place until somebody acted, although another machine was free."""
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), box("gpu01"), box("gpu02"))
    old = only_replica(world, "chat")
    give_up(world)
    made = world.one_pass()
    assert keywords(made) == ["restarted"]
    (came,) = made.changes
    assert came.previous == old
    assert came.reason == f"{old} failed on gpu01: CUDA error"
    assert came.placement is not None
    assert came.placement.ranks[0].node == "gpu02", "gpu01 has a GPU less free, and would come first"
    assert not world.settle().changes
    assert world.ready("chat") == 1
    assert world.record.models["chat"].held is None


def test_every_node_is_tried_before_one_where_it_failed_comes_again() -> None:
    """It went to and fro between the two that came first, and never to the third."""
    names = ("gpu01", "gpu02", "gpu03")
    world = settled(lab(model("chat"), nodes=names), *(box(name, gpus=1) for name in names))
    placed: list[str] = []
    while len(placed) < 6:
        (replica,) = world.record.replicas.values()
        placed.append(replica.ranks[0].node)
        give_up(world)
        while not world.ready("chat"):
            world.now = max(world.settle().due or world.now, world.now)
    assert placed == [*names, *names]


def test_one_that_served_and_gave_up_is_tried_in_its_own_place_where_there_is_no_other() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    give_up(world)
    assert not world.settle().changes
    (replica,) = world.record.replicas.values()
    assert replica.n == 2
    assert world.ready("chat") == 1


def test_what_is_given_up_again_and_again_is_tried_ever_less_often_and_never_forgotten() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    tried: list[datetime] = []
    while len(tried) < 7:
        give_up(world)
        made = world.settle()
        if world.ready("chat"):
            tried.append(world.now)
            continue
        assert keywords(made) == ["failed"], "told while it rests"
        assert made.due is not None
        assert made.due > world.now
        assert not made.waiting, "nobody sits and waits for that"
        world.now = made.due
    pauses = [(later - earlier) // timedelta(minutes=1) for earlier, later in pairwise(tried)]
    assert pauses == [5, 10, 20, 40, 60, 60]
    assert world.record.models["chat"].attempts["0"].count == 7
    state = world.nodes["gpu01"]
    state.shards = {key: replace(it, ready_at=world.now) for key, it in state.shards.items()}
    world.now += timedelta(minutes=11)
    world.one_pass()
    assert not world.record.models["chat"].attempts, "it has run for long"


def test_how_long_it_served_is_told_by_the_clock_of_its_own_node() -> None:
    """A clock that was an hour behind made every failure the first one: it was tried again at once, without end."""
    world = settled(lab(model("chat")), box(gpus=1))
    state = world.nodes["gpu01"]
    state.ahead = timedelta(hours=-1)
    for _ in range(2):
        state.shards = {
            key: replace(it, ready_at=world.now + state.ahead, failed_at=world.now + state.ahead)
            for key, it in state.shards.items()
            if it.state == "ready"
        }
        give_up(world)
        world.settle()
    assert world.record.models["chat"].attempts["0"].count == 2


def test_a_spec_that_served_is_not_held_for_not_getting_ready_in_another_place() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), box("gpu01"), box("gpu02"))
    world.fails = lambda step: step.node == "gpu02"
    give_up(world)
    made = world.settle()
    assert keywords(made) == ["failed"]
    assert world.record.models["chat"].held is None
    assert "that was the 2. time in a row; it is tried again after a rest of 5m" in made.changes[0].reason
    assert made.due is not None
    world.now = made.due
    assert not world.settle().changes
    (replica,) = world.record.replicas.values()
    assert (replica.n, replica.ranks[0].node) == (3, "gpu01"), "it was gpu02 that failed last"


def test_a_spec_that_fails_after_it_was_ready_does_not_take_one_replica_after_the_other_along() -> None:
    world = settled(lab(model("chat", replicas=2)), box(gpus=3))
    world.desired = lab(model("chat", args=("--new",), replicas=2))
    while not (
        gone := [each for each in world.record.replicas.values() if each.ordinal == 0 and each.n == 2]
    ):
        world.one_pass()
    first = gone[0]
    while len([each for each in world.record.replicas.values() if each.ordinal == 0]) > 1:
        world.advance()
        world.one_pass()
    world.fails = lambda step: step.launch is not None and "--new" in step.launch.processes[-1].argv
    give_up(world, first.id)
    last = world.settle()
    assert keywords(last) == ["failed", "stalled"]
    assert not last.commands
    assert world.ready("chat") == 2, "the old copy of the other ordinal serves on beside its successor"
    world.desired = lab(model("chat", args=("--mended",), replicas=2))
    assert not world.settle().changes
    assert world.ready("chat") == 2


def test_an_ordinal_that_never_had_room_does_not_hold_up_the_others() -> None:
    world = settled(lab(model("chat")), box(gpus=2))
    world.desired = lab(model("chat", args=("--new",), replicas=2))
    assert not world.settle().changes
    assert world.ready("chat") == 2


# ---- where it may be ---------------------------------------------------------------------------------


def test_new_placement_rules_move_what_they_no_longer_allow() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), box(gpus=1), box("gpu02"))
    rules = PlacementRules(nodes=("gpu02",))
    world.desired = lab(model("chat", placement=rules), nodes=("gpu01", "gpu02"))
    made = world.plan()
    assert [change.action for change in made.changes if change.ordinal is not None] == [Action.MOVE]
    world.settle()
    assert [replica.ranks[0].node for replica in world.record.replicas.values()] == ["gpu02"]


def test_rules_that_still_hold_change_in_place() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), box(gpus=1), box("gpu02"))
    world.desired = lab(model("chat", placement=PlacementRules(nodes=("gpu01",))), nodes=("gpu01", "gpu02"))
    made = world.plan()
    assert [change.action for change in made.changes] == [Action.UPDATE]
    assert [each.path for each in made.changes[0].fields] == ["spec.placement.nodes"]
    assert kinds(made) == [StepKind.PUBLISH]
    assert not world.settle().changes


def test_replicas_that_are_kept_apart_are_apart_after_a_rollout_too() -> None:
    nodes = ("gpu01", "gpu02")
    apart = PlacementRules(spread="node")
    world = settled(
        lab(model("chat", replicas=2, placement=apart), nodes=nodes), box(gpus=4), box("gpu02", gpus=4)
    )
    for flag in ("--b", "--c", "--d"):
        world.desired = lab(model("chat", replicas=2, placement=apart, args=(flag,)), nodes=nodes)
        world.settle()
        assert sorted(it.ranks[0].node for it in world.record.replicas.values()) == ["gpu01", "gpu02"]


def test_what_a_fault_took_is_not_forgotten_when_the_spec_changes() -> None:
    """With maxUnavailable 0 an old copy was stopped though another replica was still missing."""
    strict = Rollout(max_unavailable=0)
    world = settled(lab(model("chat", replicas=2, rollout=strict)), box(gpus=3))
    (lost,) = (it for it in world.record.replicas.values() if it.ordinal == 1)
    state = world.nodes["gpu01"]
    key = f"{lost.id}-r0"
    state.shards[key] = replace(
        state.shards[key], state="failed", started=None, last_error="mismatch: GPU is not free"
    )
    seen = []
    world.check = lambda world: seen.append(world.ready("chat"))
    world.one_pass()
    world.desired = lab(model("chat", replicas=2, rollout=strict, args=("--new",)))
    assert not [it for it in world.settle().changes if it.keyword != "stalled"]
    both = seen.index(2)
    assert min(seen[both:]) == 2


def test_a_cordoned_node_keeps_what_it_runs_and_gets_nothing_new() -> None:
    world = settled(lab(model("chat")), box())
    world.desired = desired([node("gpu01", cordon=True)], [model("chat"), model("code")])
    made = world.plan()
    assert keywords(made) == ["updated", "no-room"]
    assert made.unchanged == 1


def test_a_gang_is_started_leader_first_and_fails_as_a_whole() -> None:
    wanted = lab(model("big", profile(gpus=2, nodes=2)), nodes=("gpu01", "gpu02"))
    world = settled(wanted, box(), box("gpu02"))
    (replica,) = world.record.replicas.values()
    assert [rank.node for rank in replica.ranks] == ["gpu01", "gpu02"]
    state = world.nodes["gpu02"]
    (key,) = state.shards
    state.shards[key] = replace(state.shards[key], state="failed", last_error="lost its leader", attempts=1)
    made = world.plan()
    assert {step.node for step in made.steps if step.kind is StepKind.STOP} == {"gpu01", "gpu02"}
    world.settle()
    assert world.ready("big") == 1
    starts = [
        step for step in fleet(wanted, [box(), box("gpu02")]).plan().steps if step.kind is StepKind.START
    ]
    assert starts[0].id in starts[1].after


def test_a_node_that_is_drained_is_left_by_what_runs_there() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), box(gpus=1), box("gpu02"))
    world.desired = desired([node("gpu01", drain=True), node("gpu02")], [model("chat")])
    made = world.plan()
    assert [(change.action, change.keyword) for change in made.changes] == [
        (Action.UPDATE, "draining"),
        (Action.MOVE, "moved"),
    ]
    assert "gpu01 is being drained" in made.changes[1].reason
    world.settle()
    assert [replica.ranks[0].node for replica in world.record.replicas.values()] == ["gpu02"]


def test_a_new_address_moves_what_is_bound_to_the_old_one() -> None:
    world = settled(lab(model("chat")), box())
    world.desired = desired([replace(node("gpu01"), address="10.9.9.9")], [model("chat")])
    made = world.plan()
    assert keywords(made) == ["address-changed", "moved"]
    assert [each.path for each in made.changes[0].fields] == ["spec.address"]
    world.settle()
    assert world.record.nodes["gpu01"].address == "10.9.9.9"
    assert [endpoint.address for endpoint in world.record.endpoints] == ["10.9.9.9"]


# ---- unknown is not stopped --------------------------------------------------------------------------


def test_nothing_takes_the_place_of_what_can_not_be_asked() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), box(gpus=1), box("gpu02"))
    world.nodes["gpu01"].reach = Reach.UNREACHABLE
    world.desired = lab(new_model(), nodes=("gpu01", "gpu02"))
    made = world.plan()
    assert keywords(made) == ["unreachable", "unknown-node"]
    assert not made.steps
    assert world.settle().changes
    assert [endpoint.state for endpoint in world.record.endpoints] == ["ready"], "published stays published"


def test_a_removed_model_is_not_gone_on_the_word_of_an_unreachable_node() -> None:
    world = settled(lab(model("chat"), model("old")), box())
    world.nodes["gpu01"].reach = Reach.UNREACHABLE
    world.desired = lab(model("chat"))
    world.settle()
    assert any(replica.model == "old" for replica in world.record.replicas.values())
    world.nodes["gpu01"].reach = Reach.OK
    world.settle()
    assert {replica.model for replica in world.record.replicas.values()} == {"chat"}


def test_an_agent_that_died_is_started_again_and_its_shards_are_waited_for() -> None:
    world = settled(lab(model("chat")), box())
    world.nodes["gpu01"].reach = Reach.NO_AGENT
    made = world.plan()
    assert keywords(made) == ["agent-gone"]
    assert kinds(made) == [StepKind.BOOTSTRAP]
    assert made.waiting
    assert not world.settle().changes


def test_an_older_agent_is_upgraded_and_a_newer_one_left() -> None:
    world = settled(lab(model("chat")), box())
    world.nodes["gpu01"].agent = "0.0.9"
    made = world.plan()
    assert keywords(made) == ["agent-older"]
    assert made.changes[0].fields
    world.nodes["gpu01"].agent = "0.2.0"
    assert not world.plan().changes


def test_another_fleets_node_is_left_alone() -> None:
    stranger = box()
    stranger.fleet = "somebody-else"
    made = fleet(lab(model("chat")), [stranger]).plan()
    assert keywords(made) == ["other-fleet", "no-room"]
    assert not made.steps


def test_an_agent_that_says_it_is_another_node_is_left_alone() -> None:
    state = box()
    world = fleet(lab(model("chat")), [state])
    seen = world.observe()
    report = seen.nodes["gpu01"].report
    assert report is not None
    wrong = replace(report, agent=replace(report.agent, node="gpu07"))
    observed = replace(seen, nodes={"gpu01": replace(seen.nodes["gpu01"], report=wrong)})
    made = plan(world.desired, world.record, observed, ADAPTERS, now=NOW, options=OPTIONS)
    assert not made.steps
    assert "gpu07" in made.changes[0].reason


def test_memory_of_our_own_shard_that_the_driver_does_not_name_is_not_foreign() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    state = world.nodes["gpu01"]
    state.facts = replace(state.facts, gpus=(replace(state.facts.gpus[0], memory_used=70 * GIB),))
    state.shards.clear()
    assert keywords(world.plan()) == ["vanished"]
    assert "same place" in world.plan().changes[0].reason


# ---- adoption ----------------------------------------------------------------------------------------


def test_what_runs_unrecorded_and_is_wanted_is_adopted_without_a_restart() -> None:
    world = settled(lab(model("chat")), box())
    before = world.record.replicas
    world.record = replace(world.record, replicas={}, models={}, endpoints=())
    made = world.one_pass()
    assert keywords(made) == ["adopted"]
    assert kinds(made) == [StepKind.PUBLISH]
    world.settle()
    assert world.record.replicas.keys() == before.keys()
    assert world.record.endpoints


def test_of_two_that_could_be_adopted_the_newer_one_is() -> None:
    world = settled(lab(model("chat")), box())
    state = world.nodes["gpu01"]
    (key,) = state.shards
    newer = key.replace(".1-r0", ".2-r0")
    twin = replace(
        state.shards[key],
        shard=ShardId(newer),
        replica=ReplicaId(newer.removesuffix("-r0")),
        claims=Claims(gpus=(GpuClaim(uuid="GPU-gpu01-1"),), ports=(18001,)),
    )
    state.shards[newer] = twin
    world.record = replace(world.record, replicas={}, models={}, endpoints=())
    made = world.plan()
    assert [change.replica for change in made.changes] == [twin.replica]


def test_orders_of_stopped_replicas_are_dropped_along_the_way_but_held_ones_keep_their_logs() -> None:
    world = settled(lab(model("chat"), model("old")), box(gpus=3))
    world.desired = lab(model("chat"))
    world.settle()
    assert any(key.startswith("old") for key in world.nodes["gpu01"].shards)
    world.fails = fails
    world.desired = lab(model("chat"), model("bad", args=("--bad",)))
    world.settle()
    assert not any(key.startswith("old") for key in world.nodes["gpu01"].shards)
    world.desired = lab(model("chat", args=("--new",)), model("bad", args=("--bad",)))
    world.settle()
    assert any(key.startswith("bad") for key in world.nodes["gpu01"].shards)


def test_a_share_that_fits_beside_another_shares_its_gpu() -> None:
    shares = [model(name, profile(gpus=1, share=20 * GIB)) for name in ("a", "b")]
    world = settled(lab(*shares, model("whole")), box())
    uuids = [replica.ranks[0].gpus[0].uuid for replica in world.record.replicas.values()]
    assert sorted(uuids) == ["GPU-gpu01-0", "GPU-gpu01-0", "GPU-gpu01-1"]


def test_what_computes_on_the_cpu_keeps_away_from_gpus_and_within_memory() -> None:
    small = model("cpu", profile(gpus=0, memory=Size(40 * GIB)), replicas=2)
    world = settled(lab(small, nodes=("gpu01", "gpu02")), box(), box("gpu02", gpus=0))
    assert sorted(replica.ranks[0].node for replica in world.record.replicas.values()) == ["gpu01", "gpu02"]
