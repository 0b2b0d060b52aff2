"""What people are shown of what runs."""

import json
from datetime import timedelta

from llmgw.core.show import render_status
from llmgw.core.show.newest import Newest, newest_text
from llmgw.core.show.status import Status, status
from llmgw.model.facts import Gpu
from llmgw.model.ids import Commit
from llmgw.model.manifest import GIB
from llmgw.model.report import ComputesOn, Exit, JobReport, Reach
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.core.builders import NodeState, desired, facts, model, node
from tests.core.fleets import Fleet, fleet


def world_of_two() -> Fleet:
    wanted = desired([node("gpu01"), node("gpu02")], [model("chat"), model("code")])
    world = fleet(wanted, [NodeState("gpu01", facts("gpu01")), NodeState("gpu02", facts("gpu02"))])
    world.settle()
    return world


def shown(world: Fleet) -> Status:
    return status(world.record, world.observe(), now=world.now, desired=world.desired)


def test_a_row_says_what_runs_where_and_what_it_computes_on() -> None:
    world = world_of_two()
    state = world.nodes["gpu01"]
    (key,) = state.shards
    on = ComputesOn(gpus={"GPU-gpu01-0": 10 * GIB})
    state.shards[key] = replace(state.shards[key], computes_on=on)
    other = world.nodes["gpu02"]
    (second,) = other.shards
    other.shards[second] = replace(other.shards[second], computes_on=ComputesOn())
    rows = shown(world).replicas
    assert [(row.model, row.state, row.nodes, row.gpus) for row in rows] == [
        ("chat", "ready", ("gpu01",), ("gpu01:0",)),
        ("code", "ready", ("gpu02",), ("gpu02:0",)),
    ]
    assert [row.computes_on for row in rows] == [("gpu01:0",), ("cpu",)]
    assert rows[0].url == "http://10.0.0.1:18000/v1"
    assert [each.keyword for each in world.plan().drift] == ["on-cpu"]


def test_the_newest_commit_stands_above_while_it_is_not_applied() -> None:
    newest = Newest(
        commit=Commit("b" * 40), branch="main", author="Ann <ann@example.org>", subject="Two of them"
    )
    told = render_status.status_text(replace(shown(world_of_two()), newest=newest))
    assert told.splitlines()[1] == (
        "Newest commit bbbbbbbbbb of main (Two of them, by Ann <ann@example.org>) is not applied yet: "
        "`llmgw plan` says what it would change"
    )
    assert "applied in part only" in newest_text(replace(newest, partly=True))
    told = newest_text(replace(newest, subject="x" * 500, author="", problems=("chat.yaml:3: no", "other")))
    assert told.endswith(
        "…) is not applied and can't be: chat.yaml:3: no (and 1 more); `llmgw plan` says all of it"
    )
    assert len(told) < 250


def test_many_gpus_take_little_room() -> None:
    """Eight GPUs made the row of a replica wider than any terminal."""
    seen = shown(world_of_two())
    row = seen.replicas[0]
    for gpus, told in (
        ([f"gpu01:{index}" for index in range(8)], " 0-7 "),
        (["gpu01:0", "gpu01:1", "gpu01:5"], " 0-1,5 "),
        (["gpu01:0", "gpu01:1", "gpu02:0", "gpu02:1"], " gpu01:0-1 gpu02:0-1 "),
        (["GPU-8d3f", "gpu01:1"], " GPU-8d3f,gpu01:1 "),
    ):
        text = render_status.status_text(replace(seen, replicas=(replace(row, gpus=tuple(gpus)),)))
        assert told in text


def test_what_is_wrong_stands_below_its_row() -> None:
    world = world_of_two()
    state = world.nodes["gpu01"]
    (key,) = state.shards
    state.shards[key] = replace(
        state.shards[key], state="backoff", reason="next try in 20 s", last_error="exited with code 1"
    )
    world.nodes["gpu02"].reach, world.nodes["gpu02"].error = Reach.UNREACHABLE, "no route to host"
    seen = shown(world)
    assert [row.state for row in seen.replicas] == ["backoff", "unknown"]
    assert [row.ready for row in seen.models] == [0, 0]
    text = render_status.status_text(seen)
    assert "    next try in 20 s" in text
    assert "    last error: exited with code 1" in text
    assert "no route to host" in text


def test_how_an_engine_ended_is_shown_as_long_as_it_does_not_run_again() -> None:
    world = world_of_two()
    state = world.nodes["gpu01"]
    (key,) = state.shards
    exit_ = Exit(
        at=world.now, code=1, traceback="Traceback:\n  File\nValueError: no", last_lines=("see above",)
    )
    for over, told in (
        (exit_, ("Traceback:", "  File", "ValueError: no")),
        (replace(exit_, traceback=""), ("see above",)),
    ):
        state.shards[key] = replace(state.shards[key], state="backoff", last_exit=over)
        assert shown(world).replicas[0].ended == told
        assert f"      {told[-1]}\n" in render_status.status_text(shown(world))
    state.shards[key] = replace(state.shards[key], state="ready")
    assert shown(world).replicas[0].ended == ()


def test_a_download_shows_bytes_rate_and_time_left() -> None:
    world = world_of_two()
    world.nodes["gpu01"].jobs["fetch-1"] = JobReport(
        job="fetch-1",  # type: ignore[arg-type] # plain text
        kind="fetch",
        target="d",
        description="weights of chat",
        state="running",
        done_bytes=2 * GIB,
        total_bytes=6 * GIB,
        started=world.now - timedelta(seconds=20),
    )
    (job,) = shown(world).jobs
    assert job.left == 40
    assert "2.0 GiB of 6.0 GiB, 102 MiB/s, 40s left" in render_status.status_text(shown(world))


def test_what_nobody_recorded_is_shown_as_such() -> None:
    world = world_of_two()
    world.record = replace(world.record, replicas={})
    assert [row.recorded for row in shown(world).replicas] == [False, False]
    assert "ready (unrecorded)" in render_status.status_text(shown(world))


def test_unhealthy_gpus_and_free_ones_are_counted() -> None:
    world = world_of_two()
    state = world.nodes["gpu01"]
    sick: Gpu = replace(state.facts.gpus[0], health=("pending page retirement",))
    state.facts = replace(state.facts, gpus=(sick,))
    row = shown(world).nodes[0]
    assert (row.gpus, row.gpus_free) == (1, 0)
    assert row.problems == ("GPU 0: pending page retirement",)


def test_status_is_json_as_well() -> None:
    seen = shown(world_of_two())
    again = codec.from_json(Status, json.loads(json.dumps(codec.to_json(seen))), strict=True)
    assert again == seen


def test_history_lines_up() -> None:
    row = ("12", "2026-03-01 10:00:00Z", "ann@desk (cron)", "1f0c9a2b3d", "done", "Start 1 replica of chat")
    assert render_status.history_text([row]).splitlines() == [
        "SERIAL  WHEN                  BY               COMMIT      OUTCOME  WHAT",
        "12      2026-03-01 10:00:00Z  ann@desk (cron)  1f0c9a2b3d  done     Start 1 replica of chat",
    ]
    assert render_status.history_text([]) == "Nothing was ever applied.\n"


def test_a_held_model_names_the_commit_its_author_and_what_was_written_last() -> None:
    world = world_of_two()
    broken = model("chat", args=("--bad",))
    world.fails = lambda step: step.launch is not None and "--bad" in step.launch.processes[-1].argv
    world.desired = replace(desired([node("gpu01"), node("gpu02")], [broken]), author="Ann <ann@example.org>")
    world.settle()
    row = next(row for row in shown(world).models if row.name == "chat")
    assert row.held_since == "commit cccccccccc by Ann <ann@example.org>"
    assert row.held_lines == ("loading", "ValueError: bad flag")
    text = render_status.status_text(shown(world))
    assert "chat: held since commit cccccccccc by Ann <ann@example.org>:\n      | loading\n" in text


def test_who_waits_for_room_is_told_with_whom_it_was_evicted_for() -> None:
    world = world_of_two()
    urgent = model("urgent", priority=900)
    nodes = [node("gpu01"), node("gpu02")]
    world.desired = desired(nodes, [model("chat"), model("code"), urgent])
    world.settle()
    text = render_status.status_text(shown(world))
    assert "chat/0 waits for room: evicted for model/urgent/0 (commit cccccccccc, serial " in text
    assert "not placed" not in text
