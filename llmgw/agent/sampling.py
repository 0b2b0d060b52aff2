"""Keeps the node's facts fresh: looks every half minute and when somebody asks, one look at a time, and never lets a
driver that hangs hold up a report."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from llmgw.model.facts import Facts
from llmgw.model.struct import replace

LOG = logging.getLogger(__name__)

EVERY = 30.0
PATIENCE = 15.0
"""Seconds that a report waits for a new look before it tells the last one, and says so."""


class Sampler:
    """``look`` finds the facts. ``told`` hears of each look."""

    def __init__(
        self,
        look: Callable[[], Awaitable[Facts]],
        *,
        told: Callable[[Facts], Awaitable[None]] | None = None,
        every: float = EVERY,
        patience: float = PATIENCE,
    ) -> None:
        self._look = look
        self._told = told
        self._every = every
        self._patience = patience
        self._latest: Facts | None = None
        self._broken: tuple[str, ...] = ()
        self._taken = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.ensure_future(self._keep_fresh())

    async def close(self) -> None:
        tasks = [task for task in (self._loop, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def facts(self, *, max_age: float) -> Facts:
        """The latest look, or a new one when that is older than ``max_age`` seconds."""
        if self._latest is not None and self._age() <= max_age:
            return self._latest
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._refresh()), timeout=self._patience)
        latest = self._latest if self._latest is not None else Facts()
        if self._broken:
            return replace(latest, problems=(*latest.problems, *self._broken))
        if self._latest is None or self._age() > max_age + self._patience:
            told = f"looking at the node takes longer than {self._patience:.0f} s: these facts are {self._age():.0f} s old"
            return replace(latest, problems=(*latest.problems, told))
        return latest

    def _age(self) -> float:
        return asyncio.get_running_loop().time() - self._taken

    def _refresh(self) -> "asyncio.Task[None]":
        """The look that is under way, or a new one: however many ask, the drivers are asked once."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._take())
        return self._looking

    async def _take(self) -> None:
        """What breaks here, or where it is heard of, must not break the reports of everything else."""
        self._broken = ()
        try:
            self._latest = await self._look()
            self._taken = asyncio.get_running_loop().time()
            if self._told is not None:
                await self._told(self._latest)
        except Exception as wrong:
            LOG.exception("looking at the node")
            self._broken = (f"looking at the node: {type(wrong).__name__}: {wrong}",)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.wait([self._refresh()])
            await asyncio.sleep(self._every)


class FixedFacts:
    """Facts that stay as they are: for tests and the simulation. May be replaced at any time."""

    def __init__(self, facts: Facts) -> None:
        self.now = facts

    async def facts(self, *, max_age: float) -> Facts:  # noqa: ARG002 - always fresh
        return self.now
