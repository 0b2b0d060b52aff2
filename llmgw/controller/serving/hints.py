"""Hints that a pass may be worth while: any number of them, from wherever, come to one wake-up."""

import asyncio
from dataclasses import dataclass
from typing import Literal

Trigger = Literal["webhook", "watch"]
KEPT = 3
"""Reasons that one wake-up tells of; a storm has thousands, all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Woken:
    """``trigger``: ``webhook`` where one of the hints was; ``text``: the first few, in words."""

    trigger: Trigger
    text: str


class Hints:
    """A flag with reasons on it. Nothing is trusted to arrive and nothing is taken from a hint but that it is time to look."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._texts: list[str] = []
        self._more = 0
        self._webhook = False

    def hint(self, trigger: Trigger, text: str) -> None:
        """Returns at once. Secrets and what strangers wrote do not belong into ``text``."""
        if trigger == "webhook":
            self._webhook = True
        if text not in self._texts:
            if len(self._texts) < KEPT:
                self._texts.append(text)
            else:
                self._more += 1
        self._event.set()

    @property
    def waiting(self) -> bool:
        """Whether somebody has hinted and nobody has taken it yet."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Until there is a hint; it stays until it is taken."""
        await self._event.wait()

    def take(self) -> Woken | None:
        """All hints so far, as one; None where there is none."""
        if not self._event.is_set():
            return None
        more = f" and {self._more} more" if self._more else ""
        woken = Woken(trigger="webhook" if self._webhook else "watch", text=f"{', '.join(self._texts)}{more}")
        self._event.clear()
        self._texts, self._more, self._webhook = [], 0, False
        return woken
