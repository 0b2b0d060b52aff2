"""Replicas of several nodes: placed, started, lost and started again as wholes."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from llmgw.core.adapter import Need
from llmgw.core.place.candidates import Request
from llmgw.core.place.claims import ledgers
from llmgw.core.place.placement import Placer
from llmgw.core.record import recording
from llmgw.core.seen.condition import Condition, Health
from llmgw.core.seen.survey import SeenShard, survey
from llmgw.core.show import render_status
from llmgw.core.show.status import status
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.ids import ReplicaId, ShardId, digest
from llmgw.model.manifest import GIB, Duration, Gpus, PlacementRules, PortRange, Restart, Rollout, Source
from llmgw.model.plan import Action, Decision, Plan, Step, StepKind
from llmgw.model.record import ReplicaPhase
from llmgw.model.report import Exit, JobReport, Reach, ShardReport
from llmgw.model.struct import replace
from tests.core.builders import NOW, NodeState, a_pass, desired, facts, gpu, model, node, observed, profile
from tests.core.builders import empty_record as no_record
from tests.core.fleets import OPTIONS, Fleet, fleet

PAIR = profile(nodes=2)
NAMES = ("gpu01", "gpu02")


def box(name: str, *, gpus: int = 1) -> NodeState:
    return NodeState(name, facts(name, gpus=gpus))


def lab(*models: DesiredModel, nodes: tuple[str, ...] = NAMES) -> Desired:
    return desired([node(name) for name in nodes], models)


def chat(*, restart: Restart | None = None, **spec: Any) -> DesiredModel:
    return model("chat", replace(PAIR, restart=restart or PAIR.restart), **spec)


def settled(*, gpus: int = 1, nodes: tuple[str, ...] = NAMES, **spec: Any) -> Fleet:
    world = fleet(lab(chat(**spec), nodes=nodes), [box(name, gpus=gpus) for name in nodes])
    world.settle()
    return world


def keywords(made: Plan) -> list[str]:
    return [change.keyword for change in made.changes]


def commands(made: Plan) -> list[str]:
    """Those that are sent now, in their order, by rank: ``start 0``."""
    waits = {step.id for step in made.steps if step.kind.value.startswith("await")}
    ready = []
    for step in made.steps:
        if waits & set(step.after):
            waits.add(step.id)
        elif step.id not in waits and step.shard is not None:
            ready.append(f"{step.kind.value} {step.shard.rpartition('-r')[2]}")
    return ready


def shard_of(world: Fleet, name: str) -> str:
    """The newest rank that a node holds."""
    return max(world.nodes[name].shards, key=lambda key: int(key.rpartition(".")[2].partition("-")[0]))


def alter(world: Fleet, name: str, **changes: Any) -> None:
    key = shard_of(world, name)
    shards = world.nodes[name].shards
    shards[key] = replace(shards[key], since=world.now, **changes)


def rank_dies(world: Fleet, name: str) -> None:
    ended = Exit(at=world.now, signal=9, last_lines=("rank 1 of 2",))
    alter(world, name, state="failed", last_error="engine was ended by signal 9", last_exit=ended, attempts=1)


def live(world: Fleet) -> set[str]:
    ended = ("stopped", "failed")
    return {
        shard.replica
        for it in world.nodes.values()
        for shard in it.shards.values()
        if shard.state not in ended
    }


# ---- places ------------------------------------------------------------------------------------------


def placer(*states: NodeState, nodes: list[DesiredNode] | None = None) -> Placer:
    wanted = desired(nodes or [node(state.name) for state in states])
    seen = survey(wanted, no_record(), observed(*states).nodes, offline=False)
    return Placer(ledgers(seen, ()))


def request(gpus: Gpus | None = None, *, nodes: int = 2, leader_ports: int = 0) -> Request:
    need = Need(ports=1, leader_ports=leader_ports, gpu_memory=0)
    return Request(
        model="chat", gpus=gpus or Gpus(per_node=1), need=need, nodes=nodes, rules=PlacementRules()
    )


def place(finder: Placer, wanted: Request) -> Decision:
    return finder.place(wanted, Counter())


def where(decision: Decision) -> list[str]:
    return [rank.node for rank in decision.ranks]


def of_class(name: str, memory: int, *, count: int = 1) -> NodeState:
    gpus = tuple(gpu(name, index, memory=memory * GIB) for index in range(count))
    return NodeState(name, replace(facts(name), gpus=gpus))


def test_every_rank_gets_a_node_of_its_own() -> None:
    decision = place(placer(box("gpu01", gpus=8), box("gpu02", gpus=8)), request())
    assert where(decision) == ["gpu01", "gpu02"]
    assert not place(placer(box("gpu01", gpus=8)), request()).ranks


def test_ranks_are_alike_even_where_others_come_first() -> None:
    finder = placer(of_class("gpu01", 45), of_class("gpu02", 80), of_class("gpu03", 80))
    assert where(place(finder, request())) == ["gpu02", "gpu03"]


def test_what_is_lacking_for_a_gang_is_told_with_numbers() -> None:
    finder = placer(box("gpu01", gpus=8), box("gpu02", gpus=4), box("gpu03", gpus=4))
    refused = place(finder, request(Gpus(per_node=8)))
    assert refused.reasons == ("it needs 2 nodes at once with 8 whole GPUs each, 1 of 3 has that",)
    assert {each.node: each.reason for each in refused.rejections} == {
        "gpu01": "has room, but not for all ranks together",
        "gpu02": "too few GPUs",
        "gpu03": "too few GPUs",
    }


def test_nodes_that_fit_and_are_not_alike_are_told_by_kind() -> None:
    (reason,) = place(placer(of_class("gpu01", 45), of_class("gpu02", 80)), request()).reasons
    assert reason == (
        "it needs 2 nodes at once with 1 whole GPU each, 2 of 2 have that, but the ranks of one replica must be alike: "
        "h100-45g on gpu01; h100-80g on gpu02"
    )


def test_only_the_leaders_node_gives_the_port_where_they_meet() -> None:
    one_port = PortRange(from_port=18000, to_port=18000)
    nodes = [node("gpu01", ports=one_port), node("gpu02"), node("gpu03")]
    finder = placer(box("gpu01"), box("gpu02"), box("gpu03"), nodes=nodes)
    decision = place(finder, request(leader_ports=1))
    assert [(rank.node, rank.ports) for rank in decision.ranks] == [
        ("gpu02", (18000, 18001)),
        ("gpu01", (18000,)),
    ], "the node without a second port follows"


def test_a_gang_without_a_port_to_meet_at_is_told_so() -> None:
    one_port = PortRange(from_port=18000, to_port=18000)
    nodes = [node(name, ports=one_port) for name in NAMES]
    (reason,) = place(placer(box("gpu01"), box("gpu02"), nodes=nodes), request(leader_ports=1)).reasons
    assert reason.endswith("but none of them has 2 free ports for rank 0")


def test_nodes_of_this_machine_and_of_others_are_not_mixed() -> None:
    nodes = [replace(node("gpu01"), address="127.0.0.1"), node("gpu02")]
    (reason,) = place(placer(box("gpu01"), box("gpu02"), nodes=nodes), request()).reasons
    assert "h100-80g at loopback addresses on gpu01; h100-80g on gpu02" in reason
    both = [replace(it, address="127.0.0.1") for it in nodes]
    assert where(place(placer(box("gpu01"), box("gpu02"), nodes=both), request())) == ["gpu01", "gpu02"]


# ---- starting ----------------------------------------------------------------------------------------


def test_the_leader_starts_first_and_the_others_once_that_is_accepted() -> None:
    made = settled_later(source=Source(path="/models/x")).plan()
    starts = {step.shard or "": step for step in made.steps if step.kind is StepKind.START}
    (leader, worker) = sorted(starts)
    assert f"start {leader}" in starts[worker].after
    assert f"start {worker}" not in starts[leader].after


def settled_later(**spec: Any) -> Fleet:
    return fleet(lab(chat(**spec)), [box(name) for name in NAMES])


def test_nothing_starts_before_every_node_has_what_it_needs() -> None:
    world = settled_later(source=Source(url="https://example.org/x.gguf"))
    first = world.one_pass()
    assert not live(world)
    assert not world.record.replicas
    assert first.waiting
    (wait,) = (step for step in first.steps if step.kind is StepKind.AWAIT_JOBS)
    assert len(wait.after) == 4, "an engine and weights on each of two nodes"
    state = world.nodes["gpu02"]
    state.facts = replace(state.facts, weights=())
    assert StepKind.AWAIT_JOBS in {step.kind for step in world.plan().steps}, "one node is not ready yet"
    world.settle()
    assert world.ready("chat") == 1


def test_a_job_that_failed_on_one_node_starts_nothing_anywhere() -> None:
    url = "https://example.org/x.gguf"
    world = settled_later(source=Source(url=url))
    job = f"fetch-{digest(url)[:8]}"
    world.nodes["gpu02"].jobs[job] = JobReport(
        job=job,  # type: ignore[arg-type] # plain text
        kind="fetch",
        target=digest(url),
        description=url,
        state="failed",
        ended=NOW,
        error="404 Not Found",
    )
    made = world.plan()
    assert keywords(made)[-1] == "job-failed"
    assert f"{job} on gpu02 failed: 404 Not Found" in made.changes[-1].reason
    assert not commands(made)


def test_orders_that_never_came_are_sent_again_and_the_ranks_that_are_there_are_left_alone() -> None:
    world = settled_later(source=Source(path="/models/x"))
    world.one_pass()
    made, seen = world.plan(), world.observe()
    world.record = recording.begin(world.record, world.desired, made, seen, pass_record=a_pass(9, world.now))
    leader = next(step for step in made.steps if step.kind is StepKind.START)
    world.carry_out(leader)
    again = world.plan()
    assert keywords(again) == ["not-started"]
    assert "gpu02 never got the order" in again.changes[0].reason
    assert commands(again) == ["start 1"]
    world.settle()
    (replica,) = world.record.replicas.values()
    assert replica.n == 1
    assert replica.phase is ReplicaPhase.SERVING


def test_it_is_ready_when_its_leader_is_and_every_rank_lives() -> None:
    world = settled_later(source=Source(path="/models/x"))
    while not live(world):
        world.one_pass()
    alter(world, "gpu01", state="ready")
    alter(world, "gpu02", state="loading")
    world.one_pass()
    assert not world.record.endpoints
    alter(world, "gpu02", state="ready")
    world.one_pass()
    (endpoint,) = world.record.endpoints
    assert (endpoint.address, endpoint.port) == ("10.0.0.1", 18000)


# ---- losing a rank -----------------------------------------------------------------------------------


def test_one_dead_rank_stops_all_and_a_new_placement_follows_when_none_is_left() -> None:
    world = settled()
    rank_dies(world, "gpu02")
    made = world.one_pass()
    assert keywords(made) == ["restarted", "rank-lost"]
    assert made.due == made.created + timedelta(seconds=10), "nobody tells when a pause ends"
    assert commands(made) == ["stop 0", "stop 1"]
    assert [each.keyword for each in made.drift] == ["rank-lost"]
    assert not world.record.endpoints
    alter(world, "gpu02", state="stopped")
    world.now += timedelta(minutes=1)
    assert "start 0" not in commands(world.one_pass()), "the leader has not stopped yet"
    alter(world, "gpu01", state="stopped")
    while not commands(made):
        made = world.one_pass()
    world.settle()
    (replica,) = world.record.replicas.values()
    assert replica.n == 2
    failed = world.record.models["chat"].attempts["0"]
    assert (failed.count, failed.error) == (1, "rank 1: engine was ended by signal 9")


def test_a_rank_that_its_node_lost_takes_the_others_along() -> None:
    world = settled()
    world.nodes["gpu02"].shards.clear()
    assert "rank-lost" in keywords(world.one_pass())
    world.settle()
    (replica,) = world.record.replicas.values()
    assert replica.n == 2
    assert "rank 1 is not on gpu02" in world.record.models["chat"].attempts["0"].error


def test_the_first_to_go_explains_it_not_those_it_took_along() -> None:
    world = settled()
    echo = Exit(at=world.now + timedelta(milliseconds=80), code=1)
    cause = Exit(at=world.now, signal=11)
    alter(world, "gpu02", state="failed", last_error="rank 0 went away", last_exit=echo)
    died = {"last_error": "segmentation fault", "last_exit": cause, "failed_at": cause.at}
    alter(world, "gpu01", state="stopping", **died)
    world.one_pass()
    assert world.record.models["chat"].attempts["0"].error == "rank 0: segmentation fault"


def test_restarts_wait_longer_each_time_and_end() -> None:
    restart = Restart(give_up_after=3)
    world = settled(restart=restart)
    placed, again = [], []
    for _ in range(200):
        (newest,) = world.record.replicas or ("",)
        if newest and newest not in placed:
            placed.append(newest)
            again.append(world.now)
        if newest and world.ready("chat"):
            rank_dies(world, "gpu02")
        made = world.one_pass()
        world.advance()
        if not made.commands and not made.waiting:
            break
    assert len(placed) == restart.give_up_after, "the one that served, and two more attempts"
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(again)]
    assert waits[1] > waits[0] >= restart.backoff
    (change,) = world.plan().changes
    assert (change.keyword, change.action) == ("failed", Action.BLOCKED)
    assert "given up after 3 attempts" in change.reason
    assert not live(world), "what has given up holds no GPU"
    world.desired = lab(chat(restart=restart, args=("--mended",)))
    assert not world.settle().changes
    assert world.record.models["chat"].attempts == {}


def test_a_gang_that_served_for_long_begins_to_count_anew() -> None:
    world = settled()
    for long in (False, True):
        ready_at = world.now - timedelta(minutes=11 if long else 1)
        alter(world, "gpu01", ready_at=ready_at)
        rank_dies(world, "gpu02")
        world.settle()
        assert world.record.models["chat"].attempts["0"].count == 1
    alter(world, "gpu01", ready_at=world.now)
    rank_dies(world, "gpu02")
    world.settle()
    assert world.record.models["chat"].attempts["0"].count == 2


def bad(step: Step) -> bool:
    return step.launch is not None and "--bad" in step.launch.processes[-1].argv


def test_a_spec_that_never_gets_ready_is_held_after_its_attempts_and_leaves_what_serves() -> None:
    restart = Restart(give_up_after=2)
    world = settled(gpus=2, restart=restart)
    served = set(world.record.replicas)
    world.fails = bad
    world.desired = lab(chat(restart=restart, args=("--bad",)))
    assert keywords(world.settle()) == ["held"]
    assert set(world.record.replicas) == served == live(world)
    held = world.record.models["chat"].held
    assert held is not None
    assert held.reason.startswith("rank 0: engine exited by itself")
    assert held.last_lines == ("loading", "ValueError: bad flag")
    assert world.record.models["chat"].placements["0"] == 3, "two attempts"


def test_without_auto_revert_a_failed_gang_goes_and_nothing_takes_its_place() -> None:
    restart, rollout = Restart(give_up_after=1), Rollout(auto_revert=False)
    world = settled(restart=restart, rollout=rollout)
    world.fails = bad
    world.desired = lab(chat(restart=restart, rollout=rollout, args=("--bad",)))
    last = world.settle()
    assert keywords(last) == ["held"]
    assert "autoRevert is false" in last.changes[0].reason
    assert not live(world)


def test_a_node_that_was_not_as_planned_counts_as_no_attempt() -> None:
    world = settled_later(source=Source(path="/models/x"))
    while not live(world):
        world.one_pass()
    alter(world, "gpu02", state="failed", last_error="mismatch: port 18000 is taken")
    world.one_pass()
    assert world.record.models["chat"].attempts["0"].count == 0
    world.settle()
    assert not world.record.models["chat"].attempts
    (replica,) = world.record.replicas.values()
    assert replica.n == 2


def test_a_gang_that_fails_after_it_was_ready_does_not_take_the_others_along() -> None:
    """While it waits to be started again it has no copy; its predecessor's fellow must not go for that."""
    restart = Restart(backoff=Duration(120), max_backoff=Duration(120))
    world = settled(gpus=3, replicas=2, restart=restart)
    world.desired = lab(chat(replicas=2, restart=restart, args=("--new",)))
    while (
        not any(it.ordinal == 0 and it.n == 2 for it in world.record.replicas.values())
        or world.ready("chat") < 3
    ):
        world.one_pass()
        world.advance()
    while len([it for it in world.record.replicas.values() if it.ordinal == 0]) > 1:
        world.one_pass()
        world.advance()
    (first,) = (it.id for it in world.record.replicas.values() if it.ordinal == 0)
    dead = world.nodes["gpu02"].shards
    dead[f"{first}-r1"] = replace(dead[f"{first}-r1"], state="failed", last_error="it died")
    for _ in range(12):
        world.one_pass()
        world.advance()
        old = [it for it in world.record.replicas.values() if it.ordinal == 1 and it.n == 1]
        assert [it.phase for it in old] == [ReplicaPhase.SERVING], "it serves on until the other is back"
    assert not world.settle().changes
    assert world.ready("chat") == 2


def test_what_is_left_of_a_gang_that_nobody_recorded_lends_its_name_to_no_other() -> None:
    world = settled(gpus=2)
    world.record = replace(world.record, replicas={}, models={}, endpoints=())
    world.nodes["gpu02"].shards.clear()
    made = world.plan()
    starts = {step.replica for step in made.steps if step.kind is StepKind.START}
    assert len(starts) == 1
    assert not starts & live(world)


def test_the_last_that_serves_of_a_protected_model_is_not_scaled_away_while_the_others_fail() -> None:
    rollout = Rollout(max_surge=0, max_unavailable=1)
    world = settled(replicas=2, gpus=2, protect=True, rollout=rollout)
    world.fails = bad
    world.desired = lab(chat(replicas=2, protect=True, rollout=rollout, args=("--bad",)))
    while "0" not in world.record.models["chat"].attempts:
        world.one_pass()
        world.advance()
    world.desired = lab(chat(replicas=1, protect=True, rollout=rollout, args=("--bad",)))
    world.check = _one_serves
    world.settle()


def _one_serves(world: Fleet) -> None:
    assert world.ready("chat") >= 1


# ---- not known, and going ----------------------------------------------------------------------------


def test_with_one_node_unknown_nothing_is_done_to_any_rank() -> None:
    world = settled(nodes=("gpu01", "gpu02", "gpu03", "gpu04"))
    world.nodes["gpu02"].reach, world.nodes["gpu02"].error = Reach.UNREACHABLE, "no route to host"
    made = world.one_pass()
    assert "unknown-node" in keywords(made)
    assert not made.commands
    assert [it.state for it in world.record.endpoints] == ["ready"], "it may serve still"
    rank_dies(world, "gpu01")
    made = world.one_pass()
    assert not commands(made)
    assert not world.record.endpoints, "a rank that is seen to be dead says enough"
    world.nodes["gpu02"].reach = Reach.OK
    world.settle()
    (replica,) = world.record.replicas.values()
    assert replica.n == 2


def test_it_drains_at_its_leader_and_then_every_rank_is_stopped() -> None:
    world = settled()
    world.desired = lab()
    allow = replace(OPTIONS, allow_prune=True)
    assert commands(world.one_pass(allow)) == ["drain 0"]
    alter(world, "gpu01", state="stopping")
    assert "stop 1" in commands(world.one_pass(allow)), "the others go with their leader"
    world.settle(allow)
    assert not live(world)
    assert not world.record.replicas


def test_a_place_is_kept_while_a_gang_waits_to_be_started_again() -> None:
    world = settled(restart=Restart(backoff=Duration(300), max_backoff=Duration(300)))
    rank_dies(world, "gpu02")
    world.one_pass()
    for _ in range(3):
        world.advance()
    world.desired = desired(
        list(world.desired.nodes.values()), [*world.desired.models.values(), model("also")]
    )
    made = world.one_pass()
    assert "no-room" in keywords(made)
    assert any("is started again at" in text for text in made.waiting)
    world.settle()
    assert world.ready("chat") == 1
    assert world.ready("also") == 0


# ---- shown -------------------------------------------------------------------------------------------


def test_status_names_every_rank_and_the_one_that_is_lost() -> None:
    world = settled()
    rank_dies(world, "gpu02")
    shown = status(world.record, world.observe(), now=world.now, desired=world.desired)
    (row,) = shown.replicas
    assert row.state == "failed"
    assert [(rank.rank, rank.node, rank.state) for rank in row.ranks] == [
        (0, "gpu01", "ready"),
        (1, "gpu02", "failed"),
    ]
    assert "    rank 1 on gpu02: failed" in render_status.status_text(shown)
    world.nodes["gpu02"].reach = Reach.UNREACHABLE
    (row,) = status(world.record, world.observe(), now=world.now).replicas
    assert [rank.state for rank in row.ranks] == ["ready", "unknown"]


def test_a_leader_on_its_way_out_explains_the_rank_that_it_took_along() -> None:
    """The rank that lost its leader was blamed while the leader, never ready, was still being stopped."""
    began = NOW - timedelta(seconds=5)
    leader = rank(0, "stopping", since=began, last_error="not ready in 3 s", failed_at=began)
    worker = rank(
        1, "failed", last_error="its leader went away", last_exit=Exit(at=NOW, code=1), failed_at=NOW
    )
    assert blamed(worker, leader) == 0


LATE = NOW + timedelta(seconds=2)


@pytest.mark.parametrize("seen_first", [0, 1])
def test_who_was_found_not_to_get_ready_is_to_blame_whoever_ended_first(seen_first: int) -> None:
    """The leader's process outlived its peer's: its end, by its agent's own signal, is none of the reasons."""
    ends = (NOW + timedelta(seconds=3), NOW + timedelta(seconds=1))
    leader = rank(0, "failed", failed_at=NOW, last_exit=Exit(at=ends[seen_first], signal=15))
    worker = rank(1, "failed", failed_at=LATE, last_exit=Exit(at=LATE, code=1))
    assert blamed(leader, worker) == blamed(worker, leader) == 0


@pytest.mark.parametrize(("killed", "echo"), [(NOW, LATE), (LATE, NOW)])
def test_a_kill_explains_what_ends_by_itself_in_whatever_order_they_are_seen(
    killed: datetime, echo: datetime
) -> None:
    leader = rank(0, "failed", failed_at=echo, last_exit=Exit(at=echo, code=1))
    worker = rank(1, "failed", failed_at=killed, last_exit=Exit(at=killed, signal=9))
    assert blamed(leader, worker) == blamed(worker, leader) == 1


def test_a_rank_that_its_agent_had_to_kill_is_not_the_cause() -> None:
    leader = rank(0, "failed", failed_at=NOW, last_exit=Exit(at=NOW, code=1))
    worker = rank(1, "failed", failed_at=LATE, last_exit=Exit(at=LATE + timedelta(seconds=5), signal=9))
    assert blamed(leader, worker) == 0


def test_a_rank_that_was_told_to_stop_is_never_to_blame() -> None:
    told = Exit(at=NOW - timedelta(seconds=1), signal=15)
    leader = rank(0, "stopping", reason="stop asked", last_exit=told, last_error="an older trouble")
    worker = rank(1, "failed", failed_at=NOW, last_exit=Exit(at=NOW, code=1))
    assert blamed(leader, worker) == 1


def rank(number: int, state: str, **more: Any) -> SeenShard:
    more.setdefault("since", NOW)
    more.setdefault("reason", "")
    report = ShardReport(
        shard=ShardId(f"chat-1f0c9a2b-0.1-r{number}"),
        replica=ReplicaId("chat-1f0c9a2b-0.1"),
        rank=number,
        ranks=2,
        model="chat",
        profile="pair",
        spec_digest="",
        state=state,
        **more,
    )
    return SeenShard(node=NAMES[number], report=report, at=NOW)


def blamed(*shards: SeenShard) -> int:
    failure = Condition(health=Health.FAILED, text="", shards=shards).failure
    assert failure is not None
    return failure.rank
