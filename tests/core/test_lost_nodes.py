"""Nodes that fall silent: how long they are waited for, what is started elsewhere, what happens when they come back."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.record import recording
from llmgw.core.record.latecomers import expecting
from llmgw.core.seen import silence
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import Fence
from llmgw.model.manifest import FleetSpec, Rollout, Unreachable
from llmgw.model.plan import Action, Plan, StepKind
from llmgw.model.record import GivenUp, NodeRecord, ReplicaPhase
from llmgw.model.report import Reach, Report
from llmgw.model.struct import replace
from tests.core.builders import FLEET, NOW, NodeState, a_pass, desired, facts, model, node, profile
from tests.core.fleets import Fleet, fleet

GRACE = timedelta(minutes=5)
FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")


def lab(*models: DesiredModel, nodes: tuple[str, ...] = FOUR, **rules: object) -> Desired:
    spec = FleetSpec(unreachable=Unreachable(**rules))  # type: ignore[arg-type] # the test's own words
    return desired([node(name) for name in nodes], models, fleet=spec)


def settled(wanted: Desired, *, gpus: int = 1) -> Fleet:
    world = fleet(wanted, [NodeState(name, facts(name, gpus=gpus)) for name in wanted.nodes])
    world.settle()
    return world


def lose(world: Fleet, *names: str) -> None:
    for name in names:
        world.nodes[name].reach = Reach.UNREACHABLE
        world.nodes[name].error = "no route to host"


def come_back(world: Fleet, *names: str) -> None:
    for name in names:
        world.nodes[name].reach = Reach.OK


def after(world: Fleet, wait: timedelta) -> Plan:
    """One pass that sees the silence, then one that long afterwards."""
    world.one_pass()
    world.now += wait
    return world.one_pass()


def where(world: Fleet, name: str) -> dict[str, str]:
    """Nodes by replica; of a gang its ranks'."""
    return {
        replica.id.rpartition("-")[2]: "+".join(rank.node for rank in replica.ranks)
        for replica in world.record.replicas.values()
        if replica.model == name
    }


def keywords(made: Plan) -> dict[str, str]:
    return {change.address: change.keyword for change in made.changes}


# ---- grace -------------------------------------------------------------------------------------------


def test_a_node_that_is_silent_for_less_than_its_grace_is_waited_for() -> None:
    world = settled(lab(model("chat")))
    lose(world, "gpu01")
    made = after(world, GRACE - timedelta(seconds=1))
    assert not made.commands
    assert world.record.nodes["gpu01"].unreachable_since == world.now - (GRACE - timedelta(seconds=1))
    assert keywords(made) == {"node/gpu01": "unreachable", "model/chat/0": "unknown-node"}
    over = world.now + timedelta(seconds=1)
    assert f"nothing takes its place before {over:%Y-%m-%d %H:%M:%S}Z" in made.changes[1].reason
    assert made.due == over
    assert made.created == world.now


def test_after_its_grace_what_ran_there_is_started_elsewhere_with_a_number_more() -> None:
    world = settled(lab(model("chat")))
    lose(world, "gpu01")
    made = after(world, GRACE)
    (change,) = [change for change in made.changes if change.model == "chat"]
    assert (change.action, change.keyword) == (Action.MOVE, "node-lost")
    assert "gpu01 has been silent since 2026-03-01" in change.reason
    assert (change.previous or "").endswith("-0.1")
    world.settle()
    assert where(world, "chat") == {"0.1": "gpu01", "0.2": "gpu02"}
    assert [it.replica.rpartition("-")[2] for it in world.record.endpoints] == ["0.2"]
    quiet = world.plan()
    assert not quiet.commands
    assert not quiet.waiting
    assert keywords(quiet) == {"node/gpu01": "unreachable"}, "nothing is wrong with the model any more"


def test_of_two_copies_the_older_goes_when_the_node_is_back() -> None:
    world = settled(lab(model("chat")))
    lose(world, "gpu01")
    after(world, GRACE)
    world.settle()
    come_back(world, "gpu01")
    made = world.plan()
    kinds = [(step.kind, step.node) for step in made.steps if step.node is not None]
    assert kinds == [(StepKind.DRAIN, "gpu01"), (StepKind.STOP, "gpu01")]
    world.settle()
    assert where(world, "chat") == {"0.2": "gpu02"}
    assert world.nodes["gpu01"].shards == {} or all(
        shard.state == "stopped" for shard in world.nodes["gpu01"].shards.values()
    )


def test_the_older_copy_stays_when_only_it_serves() -> None:
    world = settled(lab(model("chat")))
    lose(world, "gpu01")
    after(world, GRACE)
    assert where(world, "chat") == {"0.1": "gpu01", "0.2": "gpu02"}
    come_back(world, "gpu01")
    made = world.one_pass()
    assert [step.node for step in made.steps if step.kind is StepKind.STOP] == ["gpu02"]
    assert world.ready("chat") == 1
    world.settle()
    assert where(world, "chat") == {"0.1": "gpu01"}
    assert not world.plan().changes


def test_what_a_silent_node_holds_stays_held_and_nothing_is_placed_there() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), gpus=2)
    lose(world, "gpu01")
    after(world, GRACE)
    world.settle()
    world.desired = lab(model("chat"), model("code", replicas=2), nodes=("gpu01", "gpu02"))
    made = world.settle()
    assert "no-room" in keywords(made).values(), "gpu01 has a free GPU and is not to be had"
    come_back(world, "gpu01")
    made = world.plan()
    (started,) = [step for step in made.steps if step.kind is StepKind.START]
    assert started.launch is not None
    held = {gpu.uuid for shard in world.nodes["gpu01"].shards.values() for gpu in shard.claims.gpus}
    assert not held & {gpu.uuid for gpu in started.launch.claims.gpus}


def test_all_replicas_of_a_lost_node_come_back_at_once_whatever_a_rollout_would_allow() -> None:
    chat = model("chat", replicas=3, rollout=Rollout(max_surge=0))
    world = settled(lab(chat, nodes=("gpu01", "gpu02")), gpus=3)
    assert set(where(world, "chat").values()) == {"gpu01"}
    lose(world, "gpu01")
    made = after(world, GRACE)
    assert len([step for step in made.steps if step.kind is StepKind.START]) == 3
    world.settle()
    assert world.ready("chat") >= 3
    come_back(world, "gpu01")
    world.settle()
    assert set(where(world, "chat")) == {"0.2", "1.2", "2.2"}


def test_where_nothing_fits_the_replica_is_told_with_every_candidate() -> None:
    world = settled(lab(model("chat"), model("code"), nodes=("gpu01", "gpu02")))
    lose(world, "gpu01")
    made = after(world, GRACE)
    change = next(change for change in made.changes if change.model == "chat")
    assert (change.action, change.keyword) == (Action.BLOCKED, "no-room")
    assert change.placement is not None
    assert {each.node for each in change.placement.rejections} == {"gpu01", "gpu02"}
    assert where(world, "chat") == {"0.1": "gpu01"}, "nothing is lost from the record"


def test_a_node_without_an_agent_is_as_silent_as_one_that_is_not_reached() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")))
    world.nodes["gpu01"].reach = Reach.NO_AGENT
    world.refuses = lambda step: step.kind is StepKind.BOOTSTRAP
    after(world, GRACE)
    for _ in range(4):
        world.one_pass()
        world.advance()
    assert where(world, "chat") == {"0.1": "gpu01", "0.2": "gpu02"}
    assert world.ready("chat") >= 1


def test_a_first_agent_that_can_not_be_installed_is_nobodys_loss() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01",)))
    world.desired = lab(model("chat"), nodes=("gpu01", "gpu02", "gpu03", "gpu04"))
    for name in FOUR[1:]:
        world.nodes[name] = NodeState(name, facts(name), reach=Reach.UNREACHABLE, error="refused")
    lose(world, "gpu01")
    made = after(world, GRACE)
    assert "brake" not in made.changes[0].reason


# ---- gangs -------------------------------------------------------------------------------------------

PAIR = profile(gpus=1, nodes=2)


def test_a_gang_with_a_rank_on_a_lost_node_comes_back_as_a_whole() -> None:
    world = settled(lab(model("big", PAIR), nodes=("gpu01", "gpu02", "gpu03")))
    assert where(world, "big") == {"0.1": "gpu01+gpu02"}
    lose(world, "gpu01")
    made = after(world, GRACE)
    assert [(step.kind, step.node) for step in made.steps if step.node] == [(StepKind.STOP, "gpu02")]
    assert {change.keyword for change in made.changes if change.model == "big"} == {"rank-lost", "node-lost"}
    world.settle()
    assert where(world, "big") == {"0.1": "gpu01+gpu02", "0.2": "gpu02+gpu03"}
    come_back(world, "gpu01")
    world.settle()
    assert where(world, "big") == {"0.2": "gpu02+gpu03"}
    assert world.ready("big") == 1


def test_a_gang_whose_leader_answers_serves_until_another_is_ready() -> None:
    world = settled(lab(model("big", PAIR)))
    lose(world, "gpu02")
    made = after(world, GRACE)
    assert {step.node for step in made.steps if step.kind is StepKind.START} == {"gpu03", "gpu04"}
    stops = [step for step in made.steps if step.kind is StepKind.STOP]
    assert [step.node for step in stops] == ["gpu01"]
    assert world.record.replicas[stops[0].replica or ""].phase is ReplicaPhase.SERVING
    world.settle()
    assert where(world, "big") == {"0.1": "gpu01+gpu02", "0.2": "gpu03+gpu04"}
    assert world.nodes["gpu01"].shards[stops[0].shard or ""].state == "stopped"


def test_a_gang_whose_leader_answers_is_not_stopped_where_no_other_fits() -> None:
    world = settled(lab(model("big", PAIR), nodes=("gpu01", "gpu02", "gpu03")))
    lose(world, "gpu02")
    made = after(world, GRACE)
    assert not [step for step in made.steps if step.kind is StepKind.STOP]
    assert keywords(made)["model/big/0"] == "no-room"
    assert "whose leader answers, serves on" in made.blocked[-1].reason


# ---- the brake ---------------------------------------------------------------------------------------


def test_while_many_are_silent_at_once_nothing_is_moved_and_the_plan_says_so() -> None:
    world = settled(lab(model("chat"), model("code")))
    lose(world, "gpu01", "gpu02")
    made = after(world, GRACE)
    assert not made.commands
    (told,) = [change for change in made.changes if change.address == "node/gpu01"]
    assert "while the brake holds: 2 of 4 nodes are silent at once" in told.reason
    assert "llmgw node remove gpu01 --lost" in told.reason
    assert "as long as the brake holds" in next(c.reason for c in made.changes if c.model == "chat")
    assert made.due is None
    come_back(world, "gpu02")
    made = world.one_pass()
    assert keywords(made)["model/chat/0"] == "node-lost"


@pytest.mark.parametrize(
    ("lost", "brake", "holds"), [(1, 0.0, False), (2, 0.5, False), (3, 0.5, True), (4, 1.0, False)]
)
def test_the_brake_counts_at_least_two_and_more_than_its_share(
    lost: int, brake: float, *, holds: bool
) -> None:
    world = settled(lab(model("chat"), brake=brake))
    lose(world, *FOUR[:lost])
    made = after(world, GRACE)
    (told,) = [change for change in made.changes if change.address == "node/gpu01"]
    assert ("brake" in told.reason) is holds


def test_nodes_that_are_being_drained_hold_no_brake() -> None:
    world = settled(lab(model("chat")))
    rest = [node(name, drain=True) for name in FOUR[2:]]
    world.desired = desired([node("gpu01"), node("gpu02"), *rest], [model("chat")])
    world.settle()
    lose(world, "gpu01", "gpu03", "gpu04")
    assert keywords(after(world, GRACE))["model/chat/0"] == "node-lost"


# ---- flapping ----------------------------------------------------------------------------------------


def test_a_node_that_flaps_every_minute_moves_nothing() -> None:
    world = settled(lab(model("chat")))
    for _ in range(20):
        lose(world, "gpu01")
        after(world, timedelta(minutes=1))
        come_back(world, "gpu01")
        after(world, timedelta(minutes=1))
    assert where(world, "chat") == {"0.1": "gpu01"}


def test_a_moment_of_answering_does_not_start_the_grace_anew() -> None:
    world = settled(lab(model("chat")))
    lose(world, "gpu01")
    after(world, GRACE - timedelta(seconds=30))
    come_back(world, "gpu01")
    after(world, timedelta(seconds=10))
    lose(world, "gpu01")
    assert not after(world, timedelta(seconds=39)).commands
    world.now += timedelta(seconds=1)
    assert keywords(world.one_pass())["model/chat/0"] == "node-lost"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), max_size=12))
def test_what_is_held_against_a_node_is_never_more_than_one_grace_nor_forgotten_early(
    turns: list[tuple[int, int]],
) -> None:
    """A bucket that fills while it is silent and empties while it answers, counted second by second in words of its own."""
    state, now, owed = NodeRecord(name="n", address="a"), NOW, 0.0
    for silent, answering in turns:
        state = silence.fell_silent(state, now)
        now += timedelta(seconds=silent)
        owed = min(owed + silent, GRACE.total_seconds())
        state = silence.answered(state, now, grace=GRACE.total_seconds())
        assert state.forgiven_at is not None
        assert (state.forgiven_at - now).total_seconds() == owed
        now += timedelta(seconds=answering)
        owed = max(owed - answering, 0.0)


def test_a_clock_that_was_set_back_gives_nobody_up() -> None:
    world = settled(lab(model("chat")))
    lose(world, "gpu01")
    world.one_pass()
    world.now -= timedelta(hours=2)
    assert not world.one_pass().commands
    come_back(world, "gpu01")
    world.one_pass()
    assert where(world, "chat") == {"0.1": "gpu01"}


# ---- wiped, fenced, given up -------------------------------------------------------------------------


def test_a_wiped_node_needs_no_grace_once_a_fresh_agent_answers() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")))
    state = world.nodes["gpu01"]
    state.shards.clear()
    state.reach, state.fleet = Reach.NO_AGENT, None
    state.facts = replace(state.facts, boot_id="another")
    made = world.one_pass()
    assert [step.kind for step in made.commands] == [StepKind.BOOTSTRAP]
    assert keywords(world.plan())["model/chat/0"] == "vanished"
    world.settle()
    assert where(world, "chat") == {"0.1": "gpu01"}
    assert world.ready("chat") == 1


def test_an_agent_that_obeys_a_newer_record_is_left_alone_and_the_way_out_is_told() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")))
    state = world.nodes["gpu01"]
    newer = Fence(fleet=FLEET, serial=world.record.serial + 3, intent="f" * 40)  # type: ignore[arg-type] # a commit

    def fenced() -> Report:
        report = state.observation().report
        assert report is not None
        return replace(report, fence=newer)

    seen = world.observe()
    seen = replace(seen, nodes={**seen.nodes, "gpu01": replace(seen.nodes["gpu01"], report=fenced())})
    world.observe = lambda: seen  # type: ignore[method-assign] # an agent with a memory
    world.now += GRACE * 2
    made = world.one_pass()
    assert not made.commands
    told = next(change for change in made.changes if change.address == "node/gpu01")
    assert told.keyword == "newer-record"
    assert f"obeys serial {newer.serial}" in told.reason
    assert "llmgw recover" in told.reason
    world.now += GRACE * 2
    assert not world.one_pass().commands, "it is not silent: nothing is started elsewhere"


def test_what_was_given_up_is_told_to_stop_when_it_comes_back() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")))
    (lost,) = world.record.replicas
    given = GivenUp(replica=world.record.replicas[lost].id, node="gpu01", by="ann", at=NOW)
    world.record = replace(world.record, replicas={}, given_up=(given,))
    lose(world, "gpu01")
    world.settle()
    assert where(world, "chat") == {"0.2": "gpu02"}
    come_back(world, "gpu01")
    made = world.plan()
    assert keywords(made) == {"model/chat": "given-up"}
    assert "given up together with gpu01 by ann" in made.changes[0].reason
    assert [(step.kind, step.node) for step in made.commands] == [(StepKind.STOP, "gpu01")]
    world.settle()
    assert not world.plan().changes
    assert all(shard.state == "stopped" for shard in world.nodes["gpu01"].shards.values())


def test_what_comes_up_by_an_order_that_came_late_is_told_to_stop_and_why() -> None:
    wanted = lab(model("chat"), nodes=("gpu01", "gpu02"))
    world = fleet(wanted, [NodeState(name, facts(name, gpus=1)) for name in wanted.nodes])
    world.one_pass()  # its start comes, though whoever takes the pass over does not see it yet
    intent = replace(world.record, last_pass=a_pass(world.record.serial, world.now))
    world.record = expecting(replace(intent, replicas={}), before=intent, by="ben@desk", at=NOW)
    assert [each.replica for each in world.record.given_up] == list(intent.replicas)
    world.desired = lab(nodes=("gpu01", "gpu02"))
    (told,) = (change for change in world.plan().changes if change.keyword == "given-up")
    assert (
        f"its order, of serial {intent.serial}, came after ben@desk had taken that pass over" in told.reason
    )
    world.settle()
    assert not world.plan().changes


def test_what_the_record_knows_is_not_expected_to_stop() -> None:
    world = settled(lab(model("chat")))
    assert expecting(world.record, before=world.record, by="ben@desk", at=NOW).given_up == ()


def test_what_was_given_up_is_adopted_where_nobody_took_its_place() -> None:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")))
    (lost,) = world.record.replicas
    given = GivenUp(replica=world.record.replicas[lost].id, node="gpu01", by="ann", at=NOW)
    world.record = replace(world.record, replicas={}, given_up=(given,))
    made = world.one_pass()
    assert keywords(made) == {"model/chat/0": "adopted"}
    assert world.record.given_up == ()


def test_silence_is_written_down_once() -> None:
    world = settled(lab(model("chat")))
    lose(world, "gpu01")
    once = recording.observe(world.record, world.observe(), world.now, grace=300)
    assert recording.observe(once, world.observe(), world.now + GRACE, grace=300) is once


# ---- whatever happens --------------------------------------------------------------------------------


def never_twice(world: Fleet) -> None:
    """No GPU and no port of a node is held by two shards that live, whether or not the node can be asked."""
    for state in world.nodes.values():
        living = [shard.claims for shard in state.shards.values() if shard.state not in ("stopped", "failed")]
        for held in (
            [gpu.uuid for claims in living for gpu in claims.gpus],
            [port for claims in living for port in claims.ports],
        ):
            assert len(held) == len(set(held)), f"{state.name}: {held}"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FOUR), st.sampled_from(["cut", "heal", "wipe", "drain"]), st.integers(0, 400)
        ),
        max_size=10,
    )
)
def test_whatever_nodes_do_nothing_is_held_twice_and_in_the_end_there_is_one_copy_of_each(
    deeds: list[tuple[str, str, int]],
) -> None:
    wanted = lab(model("chat", replicas=2), model("big", PAIR), model("code"))
    world = settled(wanted, gpus=2)
    world.check = never_twice
    for name, deed, wait in deeds:
        state = world.nodes[name]
        if deed == "cut":
            lose(world, name)
        elif deed == "heal":
            come_back(world, name)
        elif deed == "wipe":
            state.shards.clear()
            state.reach = Reach.NO_AGENT
        else:
            it = world.desired.nodes[name]
            turned = replace(it, spec=replace(it.spec, drain=not it.spec.drain))
            world.desired = replace(world.desired, nodes={**world.desired.nodes, name: turned})
        world.one_pass()
        world.advance()
        world.now += timedelta(seconds=wait)
        world.one_pass()
    for state in world.nodes.values():
        if state.reach is Reach.UNREACHABLE:
            state.reach = Reach.OK
    world.desired = wanted
    made = world.settle()
    assert not made.changes
    copies = sorted((replica.model, replica.ordinal) for replica in world.record.replicas.values())
    assert copies == [("big", 0), ("chat", 0), ("chat", 1), ("code", 0)]
    assert (world.ready("chat"), world.ready("big"), world.ready("code")) == (2, 1, 1)
