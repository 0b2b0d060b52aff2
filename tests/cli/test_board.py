"""What a person reads while an apply is at work."""

import io
import re

import pytest

from llmgw.cli.board import LINE, Board
from llmgw.cli.show import PlainProgress, showing
from llmgw.model.ids import JobId
from llmgw.model.plan import Step, StepKind, StepOutcome, StepResult
from llmgw.model.report import JobReport
from llmgw.model.struct import replace
from llmgw.wire.messages import WatchEvent
from tests.controller.passes.doubles import install, launch, plan_of, shard, start, step

DONE = StepResult(outcome=StepOutcome.DONE)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def starting() -> Step:
    spec = replace(launch(), needs=(JobId("install-1"), JobId("fetch-1")))
    return replace(start("start chat-1f0c9a2b-0.1-r0"), launch=spec)


def board(time: Time) -> Board:
    made = Board(time)
    made.planned(plan_of(install("i"), starting()))
    return made


def line(of: Board, time: Time) -> str:
    (row,) = of.rows.values()
    return row.text(time.now)


def fetching(done: int, total: int | None = 400 * 1024**2) -> WatchEvent:
    return WatchEvent(
        job=JobReport(
            job=JobId("fetch-1"),
            kind="fetch",
            target="1",
            description="smollm2",
            state="running",
            done_bytes=done,
            total_bytes=total,
        )
    )


def test_a_replica_is_named_by_model_ordinal_placement_and_node() -> None:
    time = Time()
    assert line(board(time), time) == "chat/0.1 on gpu01: waiting"


def test_a_replica_that_a_later_pass_places_elsewhere_is_named_by_its_first_ranks_node() -> None:
    time = Time()
    made = board(time)
    first = replace(starting(), node="gpu07")
    made.planned(
        plan_of(first, replace(first, id="other rank", shard=f"{str(first.shard)[:-1]}1", node="gpu08"))
    )
    assert line(made, time) == "chat/0.1 on gpu07: waiting"


def test_a_download_shows_bytes_rate_and_time_left() -> None:
    time = Time()
    made = board(time)
    made.seen("gpu01", fetching(0))
    time.now += 10
    made.seen("gpu01", fetching(100 * 1024**2))
    assert line(made, time) == (
        "chat/0.1 on gpu01: fetching smollm2 (10s): 100 MiB of 400 MiB, at 10 MiB/s, 30s left"
    )


def test_a_download_of_unknown_length_promises_nothing() -> None:
    time = Time()
    made = board(time)
    made.seen("gpu01", fetching(0, None))
    time.now += 10
    made.seen("gpu01", fetching(100 * 1024**2, None))
    assert "left" not in line(made, time)


def test_another_nodes_download_is_not_this_replicas() -> None:
    time = Time()
    made = board(time)
    made.seen("gpu02", fetching(10))
    assert line(made, time) == "chat/0.1 on gpu01: waiting"


def test_loading_shows_the_last_line_and_how_long_it_took_last_time() -> None:
    time = Time()
    made = board(time)
    loading = replace(shard("loading"), last_line="loading shard 3 of 7", loading_seconds=95.0)
    made.seen("gpu01", WatchEvent(shard=loading))
    time.now += 20
    assert line(made, time) == (
        "chat/0.1 on gpu01: loading (20s): (took 1m 35s last time) loading shard 3 of 7"
    )


def test_ready_and_failed_are_last_words() -> None:
    time = Time()
    made = board(time)
    made.seen("gpu01", WatchEvent(shard=replace(shard("ready"), loading_seconds=12.0)))
    assert line(made, time) == "chat/0.1 on gpu01: ready after 12s"
    made.seen("gpu01", WatchEvent(shard=replace(shard("failed"), last_error="exited with 1")))
    assert line(made, time) == "chat/0.1 on gpu01: failed: exited with 1"


def test_the_agents_start_shows_at_every_replica_of_its_node() -> None:
    time = Time()
    made = board(time)
    made.step(step("b", StepKind.BOOTSTRAP), None)
    assert line(made, time) == "chat/0.1 on gpu01: starting the agent"


def test_an_agent_that_can_not_be_started_again_is_told_while_it_is_tried() -> None:
    """Nothing but the agent was to be done: no replica had a row, and the waiting was silent for minutes."""
    time = Time()
    made = Board(time)
    begun = replace(step("b", StepKind.BOOTSTRAP), replica=None)
    made.planned(plan_of(begun))
    made.step(begun, None)
    assert line(made, time) == "node gpu01: starting the agent"
    made.step(begun, StepResult(outcome=StepOutcome.FAILED, error="it ended with 1"))
    assert line(made, time) == "node gpu01: failed: it ended with 1"
    made.step(begun, DONE)
    assert line(made, time) == "node gpu01: its agent runs"


def test_a_replica_that_nothing_was_commanded_of_and_that_is_waited_for_gets_a_row() -> None:
    time = Time()
    made = Board(time)
    made.seen("gpu01", WatchEvent(shard=shard("ready")))
    assert not made.rows, "what was ready before is no news"
    made.seen("gpu01", WatchEvent(shard=replace(shard("backoff"), last_error="mismatch: port 8000 is taken")))
    assert line(made, time) == "chat/0.1 on gpu01: backoff: mismatch: port 8000 is taken"


def test_a_replica_that_goes_gets_a_row_only_when_it_is_told_to() -> None:
    time = Time()
    made = Board(time)
    drain = step("d", StepKind.DRAIN)
    made.planned(plan_of(drain))
    assert not made.rows
    made.step(drain, None)
    assert line(made, time) == "chat/0.1 on gpu01: draining"


def test_a_log_gets_one_line_a_stage_and_never_two_for_one() -> None:
    stream = io.StringIO()
    time = Time()
    shown = PlainProgress(board(time), stream)
    begun = starting()
    shown.step(begun, None)
    shown.step(begun, DONE)
    for _ in range(3):
        shown.seen("gpu01", WatchEvent(shard=replace(shard("loading"), last_line="a\nb")))
    shown.said("two\nlines")
    assert stream.getvalue().splitlines() == [
        "chat/0.1 on gpu01: asked to start",
        "chat/0.1 on gpu01: loading: a b",
        "two lines",
    ]


def test_a_line_that_was_cut_shows_it() -> None:
    time = Time()
    made = board(time)
    made.seen("gpu01", WatchEvent(shard=replace(shard("loading"), last_line="loading " + "x" * 200)))
    told = line(made, time)
    assert told.endswith("x…")
    assert len(told) == len("chat/0.1 on gpu01: loading: ") + LINE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_row_is_one_line_of_the_terminal_however_narrow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that ran over were drawn over each other, several times a second."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with showing(stream) as progress:
        progress.planned(plan_of(starting()))
        progress.seen("gpu01", WatchEvent(shard=replace(shard("loading"), last_line="word " * 40)))
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", stream.getvalue())
    rows = [row for row in re.split(r"[\r\n]+", shown) if row]
    assert rows
    assert max(map(len, rows)) <= 40
    assert all(row.startswith("chat/0.1 on gpu01: ") for row in rows)
