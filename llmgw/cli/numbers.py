"""Whole numbers on the command line: what is none is refused with what is expected."""

from typing import Any

import click


class Whole(click.IntRange):
    """From ``least`` to ``most``; ``example`` is what the refusal shows."""

    def __init__(self, least: int, most: int | None = None, *, example: int) -> None:
        super().__init__(least, most)
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            bounds = f"from {self.min} up" if self.max is None else f"from {self.min} to {self.max}"
            self.fail(
                f"{value!r:.80} is no whole number {bounds}: write one such as {self.example}", param, ctx
            )
