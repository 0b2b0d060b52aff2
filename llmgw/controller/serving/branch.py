"""The branch that is followed: looked at when something hints to it, and from time to time in any case."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from llmgw.controller.fleet import Source
from llmgw.controller.serving.pauses import Pace, first_of
from llmgw.controller.serving.snapshot import Snapshots
from llmgw.model.ids import Commit
from llmgw.model.problems import LlmgwError
from llmgw.model.struct import Struct

log = logging.getLogger("llmgw.serve")

Moved = Callable[[Commit | None, Commit], None]


class Place(Struct):
    """What is known of the branch beside its commits. ``watch`` sets the event it is given when the branch may have moved; None:
    nothing tells, as of a repository on another machine."""

    name: Callable[[], Awaitable[str]]
    watch: Callable[[asyncio.Event], Awaitable[None]] | None = None


class Branch:
    """``moved`` hears of every other commit that the branch points to, once."""

    def __init__(
        self,
        source: Source,
        snapshots: Snapshots,
        *,
        pace: Pace,
        rng: Random,
        moved: Moved,
        place: Place | None = None,
    ) -> None:
        self._source = source
        self._snapshots = snapshots
        self._pace = pace
        self._rng = rng
        self._moved = moved
        self._place = place
        self._turn = asyncio.Lock()
        self._nudge = asyncio.Event()
        self.head: Commit | None = None

    def duties(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to go on beside the passes, by what it does."""
        duties: dict[str, Callable[[], Awaitable[None]]] = {"following the branch": self._follow}
        if self._place is not None and self._place.watch is not None:
            duties["watching the repository"] = partial(self._place.watch, self._nudge)
        return duties

    async def look(self) -> None:
        """One look. What is wrong with the repository stands in the snapshot; ``head`` is the newest commit known."""
        async with self._turn:
            try:
                newest = await self._source.newest()
                if self._place is not None and not self._snapshots.now.ref:
                    self._snapshots.change(ref=await self._place.name())
            except LlmgwError as failed:
                if not self._snapshots.now.source_error:
                    log.warning("source error=%s", failed)
                self._snapshots.change(source_error=str(failed))
                return
            if self._snapshots.now.source_error:
                log.warning("source the repository answers again")
            before, self.head = self.head, newest
            self._snapshots.change(source_error="", head=newest)
        if before != newest:
            self._moved(before, newest)

    async def _follow(self) -> None:
        """For ever: a look from time to time, and one at once where something tells that it may have moved."""
        while True:
            await first_of(self._nudge.wait(), timeout=self._pace.until_look(self._rng))
            self._nudge.clear()
            await self.look()
