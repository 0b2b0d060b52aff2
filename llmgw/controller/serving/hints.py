"""Hints that a pass may be worth while: any number of them, from wherever, come to one wake-up."""

import asyncio
from typing import Literal

from llmgw.model.struct import Struct

Heard = Literal["webhook", "commit", "watch"]
"""What a hint is about: a forge says that there was a push; a commit was seen; anything else, mostly on a node."""
KEPT = 3
"""Reasons that one wake-up tells of; a storm has thousands, all alike."""


class Woken(Struct):
    """``text``: the first few reasons, in words."""

    heard: frozenset[Heard]
    text: str


class Hints:
    """A flag with reasons on it. Nothing is trusted to arrive, and nothing is taken from a hint but that it is time to look."""

    def __init__(self) -> None:
        self._any = asyncio.Event()
        self._urgent = asyncio.Event()
        self._heard: set[Heard] = set()
        self._texts: list[str] = []
        self._more = 0

    def hint(self, heard: Heard, text: str) -> None:
        """Returns at once. Secrets and what strangers wrote do not belong into ``text``."""
        self._heard.add(heard)
        if text not in self._texts:
            if len(self._texts) < KEPT:
                self._texts.append(text)
            else:
                self._more += 1
        self._any.set()
        if heard != "watch":
            self._urgent.set()

    async def wait(self, *, urgent: bool = False) -> None:
        """Until there is a hint, or one about commits; it stays until it is taken."""
        await (self._urgent if urgent else self._any).wait()

    def heard_only(self, heard: Heard) -> bool:
        """Whether all hints that wait are about this."""
        return self._heard == {heard}

    def take(self) -> Woken:
        """All hints so far, as one; of nothing heard there is no text."""
        more = f" and {self._more} more" if self._more else ""
        woken = Woken(heard=frozenset(self._heard), text=f"{', '.join(self._texts)}{more}")
        self._any.clear()
        self._urgent.clear()
        self._heard, self._texts, self._more = set(), [], 0
        return woken
