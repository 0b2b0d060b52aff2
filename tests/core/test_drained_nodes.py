"""Nodes that are to be empty: by their manifests, or because Git does not name them any more."""

from collections.abc import Iterator

from llmgw.core.record import recording
from llmgw.core.record.leaving import with_leaving
from llmgw.core.show.status import NodeRow, status
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import JobId, ReplicaId, ShardId
from llmgw.model.manifest import Rollout
from llmgw.model.plan import Action, Plan, StepKind
from llmgw.model.report import ByHand, JobReport, Reach
from llmgw.model.struct import replace
from tests.core.builders import NOW, NodeState, a_pass, desired, facts, model, node, profile
from tests.core.fleets import Fleet, fleet

TWO = ("gpu01", "gpu02")


def lab(*models: DesiredModel, nodes: tuple[str, ...] = TWO, drained: tuple[str, ...] = ()) -> Desired:
    return desired([node(name, drain=name in drained) for name in nodes], models)


def settled(*models: DesiredModel, nodes: tuple[str, ...] = TWO, gpus: int = 1) -> Fleet:
    world = fleet(lab(*models, nodes=nodes), [NodeState(name, facts(name, gpus=gpus)) for name in nodes])
    world.settle()
    return world


def drain(world: Fleet, *names: str) -> None:
    nodes = [
        replace(it, spec=replace(it.spec, drain=it.name in names)) for it in world.desired.nodes.values()
    ]
    world.desired = replace(world.desired, nodes={it.name: it for it in nodes})


def leave_git(world: Fleet, name: str) -> None:
    nodes = {key: it for key, it in world.desired.nodes.items() if key != name}
    world.desired = with_leaving(replace(world.desired, nodes=nodes), world.record)


def where(world: Fleet) -> set[str]:
    return {rank.node for replica in world.record.replicas.values() for rank in replica.ranks}


def told(made: Plan) -> list[tuple[str, str]]:
    return [(change.action.value, change.keyword) for change in made.changes]


def row(world: Fleet, name: str) -> NodeRow:
    shown = status(world.record, world.observe(), now=world.now, desired=world.desired)
    return next(each for each in shown.nodes if each.name == name)


def notices(made: Plan) -> list[str]:
    return [notice.text for notice in made.warnings]


# ---- draining ----------------------------------------------------------------------------------------


def test_what_runs_there_moves_the_new_one_first() -> None:
    world = settled(model("chat"))
    drain(world, "gpu01")
    made = world.plan()
    assert told(made) == [("~", "draining"), (">", "moved")]
    assert [each.path for each in made.changes[0].fields] == ["spec.drain"]
    world.check = lambda it: None if it.ready("chat") else fail("a moment without a ready replica")
    last = world.settle()
    assert where(world) == {"gpu02"}
    assert not last.changes
    assert notices(last) == ["node/gpu01: drained: its agent reports no live shard and no job"]
    assert row(world, "gpu01").drain == "drained"


def passes(world: Fleet) -> Iterator[Plan]:
    """Until nothing is to be done any more."""
    for _ in range(30):
        made = world.one_pass()
        yield made
        if not made.commands and not made.waiting:
            return
        world.advance()
    raise AssertionError("not settled")


def fail(what: str) -> None:
    raise AssertionError(what)


def test_what_fits_nowhere_else_stays_and_every_candidate_is_told() -> None:
    world = settled(model("chat"), model("code"))
    drain(world, "gpu01")
    made = world.settle()
    (blocked,) = made.blocked
    assert (blocked.keyword, blocked.model) == ("no-room", "chat")
    assert blocked.placement is not None
    assert {each.node: each.reason for each in blocked.placement.rejections}["gpu01"] == "being drained"
    assert "gpu02" in {each.node for each in blocked.placement.rejections}
    assert "serves on. Make room on another node, or take back what moves it" in blocked.reason
    assert "gpu01 is being drained" in blocked.reason
    assert world.ready("chat") == 1
    assert "is left" in row(world, "gpu01").drain


def test_a_node_is_only_drained_when_its_agent_says_so() -> None:
    world = settled(model("chat"))
    drain(world, "gpu01")
    world.settle()
    state = world.nodes["gpu01"]
    state.reach, state.error = Reach.UNREACHABLE, "no route to host"
    assert row(world, "gpu01").drain.startswith("being drained: what is left there is not known: ")
    state.reach = Reach.OK
    state.jobs["j"] = JobReport(
        job=JobId("fetch-1"), kind="fetch", target="x", description="", state="running"
    )
    assert row(world, "gpu01").drain == "being drained: fetch-1 (running) is left"
    state.jobs.clear()
    (shard,) = world.nodes["gpu02"].shards.values()
    hand = ByHand(verb="started", by="ben", at=NOW)
    stray = replace(
        shard, shard=ShardId("old-00000000-0.1-r0"), replica=ReplicaId("old-00000000-0.1"), by_hand=hand
    )
    state.shards = {stray.shard: stray}
    (text,) = [text for text in notices(world.plan()) if text.startswith("node/gpu01")]
    assert "old-00000000-0.1-r0 (ready, started by hand by ben, nobody recorded it) is left" in text


def test_without_a_surge_it_goes_before_it_comes_elsewhere_and_the_outage_is_told() -> None:
    world = settled(model("chat", rollout=Rollout(max_surge=0)))
    drain(world, "gpu01")
    made = world.plan()
    (change,) = [change for change in made.changes if change.model == "chat"]
    assert change.action is Action.DESTROY_BEFORE_CREATE
    assert change.outage.startswith("chat does not answer")
    world.settle()
    assert where(world) == {"gpu02"}


def test_the_last_ready_replica_of_a_protected_model_moves_only_beside_a_new_one() -> None:
    world = settled(model("chat", protect=True, rollout=Rollout(max_surge=0)))
    drain(world, "gpu01")
    assert [change.keyword for change in world.plan().blocked] == ["protected"]
    world.settle()
    assert where(world) == {"gpu01"}
    world = settled(model("chat", protect=True))
    drain(world, "gpu01")
    world.check = lambda it: None if it.ready("chat") else fail("not a moment without one")
    world.settle()
    assert where(world) == {"gpu02"}


def test_a_gang_moves_as_a_whole_also_into_a_place_that_holds_a_part_of_itself() -> None:
    pair = model("big", profile(gpus=1, nodes=2))
    world = settled(pair, nodes=("gpu01", "gpu02", "gpu03"))
    drain(world, "gpu01")
    made = world.plan()
    (change,) = [change for change in made.changes if change.model == "big"]
    assert change.action is Action.DESTROY_BEFORE_CREATE
    world.settle()
    assert where(world) == {"gpu02", "gpu03"}
    assert world.ready("big") == 1


def test_nothing_moves_back_when_the_node_is_not_drained_any_more() -> None:
    world = settled(model("chat"))
    drain(world, "gpu01")
    world.settle()
    drain(world)
    made = world.plan()
    assert told(made) == [("~", "undrained")]
    assert {step.kind for step in made.commands} <= {StepKind.PUBLISH, StepKind.FORGET}
    world.settle()
    assert where(world) == {"gpu02"}
    assert row(world, "gpu01").drain == ""


def test_a_drain_that_is_cut_off_by_a_failure_starts_again_where_it_stood() -> None:
    world = settled(model("chat", replicas=2), gpus=2)
    drain(world, "gpu01")
    for _ in range(3):
        world.one_pass()
        world.advance()
    world.nodes["gpu01"].reach = Reach.UNREACHABLE
    world.one_pass()
    world.nodes["gpu01"].reach = Reach.OK
    world.settle()
    assert where(world) == {"gpu02"}


# ---- not in Git any more -----------------------------------------------------------------------------


def test_a_node_that_left_git_is_emptied_by_the_way_recorded_last_and_then_forgotten() -> None:
    world = settled(model("chat"))
    leave_git(world, "gpu01")
    assert world.desired.nodes["gpu01"].address == world.record.nodes["gpu01"].address
    made = world.plan()
    assert told(made) == [(">", "moved")]
    assert "gpu01 is not in Git any more" in made.changes[0].reason
    assert "node/gpu01: not in Git any more: it is forgotten once chat" in "".join(notices(made))
    removed = [made for made in passes(world) if ("-", "node-removed") in told(made)]
    assert len(removed) == 1
    assert where(world) == {"gpu02"}
    assert "gpu01" not in world.record.nodes
    leave_git(world, "gpu01")
    assert "gpu01" not in world.desired.nodes
    assert not world.plan().changes


def test_a_node_that_left_git_and_is_not_reached_loses_nothing_from_the_record() -> None:
    world = settled(model("chat"), model("code"))
    leave_git(world, "gpu01")
    world.nodes["gpu01"].reach, world.nodes["gpu01"].error = Reach.UNREACHABLE, "no route to host"
    made = world.settle()
    change = made.changes[0]
    assert (change.address, change.action, change.keyword) == ("node/gpu01", Action.BLOCKED, "node-removed")
    assert "no route to host" in change.reason
    assert "10.0.0.1" in change.reason
    assert "llmgw node remove gpu01 --lost" in change.reason
    assert where(world) == {"gpu01", "gpu02"}


def test_the_way_to_a_node_is_recorded_as_it_changes_and_never_of_one_that_left() -> None:
    world = settled(model("chat"))
    kept = world.record.nodes["gpu01"].spec
    assert kept == world.desired.nodes["gpu01"].spec
    leave_git(world, "gpu01")
    made, seen = world.plan(), world.observe()
    intent = recording.begin(world.record, world.desired, made, seen, pass_record=a_pass(9, world.now))
    assert intent.nodes["gpu01"].spec == kept
