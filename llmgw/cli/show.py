"""Shows a board: moving lines on a terminal, one plain line for each new stage elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from llmgw.cli import output
from llmgw.cli.board import Board
from llmgw.model.plan import Plan, Step, StepResult
from llmgw.wire.messages import WatchEvent

if TYPE_CHECKING:
    from rich.live import Live

EVERY = 10.0
"""Seconds between two plain lines about a stage that has not changed: a log is read later, by people."""


class PlainProgress:
    """For logs and pipes."""

    def __init__(self, board: Board, stream: TextIO) -> None:
        self._board = board
        self._stream = stream
        self._told: dict[str, tuple[str, float]] = {}

    def planned(self, plan: Plan) -> None:
        self._board.planned(plan)

    def step(self, step: Step, result: StepResult | None) -> None:
        self._board.step(step, result)
        self._tell()

    def seen(self, node: str, event: WatchEvent) -> None:
        self._board.seen(node, event)
        self._tell()

    def said(self, text: str) -> None:
        self._line(text)

    def _tell(self) -> None:
        now = self._board.now()
        for name, row in self._board.rows.items():
            stage, at = self._told.get(name, ("waiting", now))
            if row.stage != stage or (not row.over and row.detail and now - at >= EVERY):
                self._told[name] = (row.stage, now)
                self._line(row.text(now))

    def _line(self, text: str) -> None:
        print(" ".join(output.redactor()(text).split()), file=self._stream, flush=True)


class LiveProgress:
    """For a terminal: the rows stay where they are and change."""

    def __init__(self, board: Board, live: "Live") -> None:
        self._board = board
        self._live = live

    def planned(self, plan: Plan) -> None:
        self._board.planned(plan)

    def step(self, step: Step, result: StepResult | None) -> None:
        self._board.step(step, result)

    def seen(self, node: str, event: WatchEvent) -> None:
        self._board.seen(node, event)

    def said(self, text: str) -> None:
        self._live.console.print(output.redactor()(text), markup=False, highlight=False)


@contextmanager
def showing(stream: TextIO) -> Iterator[PlainProgress | LiveProgress]:
    """The progress of one apply. On a terminal, the rows stand at the bottom until it ends."""
    board = Board(time.monotonic)
    if not output.is_terminal(stream):
        yield PlainProgress(board, stream)
        return
    from rich.console import Console  # noqa: PLC0415 - only for a terminal
    from rich.live import Live  # noqa: PLC0415 - same
    from rich.text import Text  # noqa: PLC0415 - same

    def rows() -> Text:
        now = board.now()
        return Text("\n", no_wrap=True, overflow="ellipsis").join(
            Text(" ".join(output.redactor()(row.text(now)).split()), style=_style(row.stage))
            for row in board.rows.values()
        )

    with Live(console=Console(file=stream), get_renderable=rows, refresh_per_second=8) as live:
        yield LiveProgress(board, live)


def _style(stage: str) -> str:
    return {"ready": "green", "failed": "red", "unknown": "red", "backoff": "yellow"}.get(stage, "")
