"""Why a pass must send nothing more: the first reason counts, and whoever waits is woken."""

import asyncio

from llmgw.model.record import Outcome


class Halt:
    """Set from a signal handler, a newer commit, a lost lease, or an agent that obeys somebody newer."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.outcome: Outcome | None = None
        self.reason = ""

    @property
    def called(self) -> bool:
        return self.outcome is not None

    def now(self, outcome: Outcome, reason: str) -> None:
        if self.outcome is None:
            self.outcome, self.reason = outcome, reason
            self._event.set()

    async def wait(self) -> None:
        """Until halted."""
        await self._event.wait()

    async def sleep(self, seconds: float) -> bool:
        """Sleep unless halted; True: halted."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
