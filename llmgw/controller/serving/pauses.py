"""How long to wait before the next look and the next try, and waiting for the first of several things."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from llmgw.model.struct import Struct

MOST_DOUBLINGS = 16


class Pace(Struct):
    """Seconds. ``poll``, give or take ``jitter``, between looks at the branch; ``resync``, more or less, between passes that nobody
    hinted at."""

    poll: float
    jitter: float
    resync: float

    def until_look(self, rng: Random) -> float:
        return max(self.poll + rng.uniform(-self.jitter, self.jitter), 0.1)

    def until_pass(self, rng: Random) -> float:
        return self.resync * rng.uniform(0.9, 1.1)


class Pauses:
    """Doubles from ``first`` to ``longest`` seconds; a random half of each, so that many who lost the same thing at the
    same moment do not come back at the same moment."""

    def __init__(self, first: float, longest: float, rng: Random) -> None:
        self._first = first
        self._longest = longest
        self._rng = rng
        self._failed = 0

    @property
    def failing(self) -> bool:
        return self._failed > 0

    def next(self) -> float:
        """Seconds, after one more failure."""
        whole = min(self._first * 2.0 ** min(self._failed, MOST_DOUBLINGS), self._longest)
        self._failed += 1
        return whole / 2 + self._rng.uniform(0, whole / 2)

    def reset(self) -> None:
        self._failed = 0


async def first_of(*things: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    """Until one of them has ended or ``timeout`` seconds went by; the others are cancelled, and nothing of them is left."""
    tasks = [asyncio.ensure_future(thing) for thing in things]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
