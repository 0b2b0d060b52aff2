"""Work that goes on beside the loop, and is begun again when it ends or breaks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import Random

from llmgw.controller.serving.pauses import Pauses
from llmgw.model.problems import LlmgwError

log = logging.getLogger("llmgw.serve")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before it is begun again."""


async def kept(doing: str, work: Callable[[], Awaitable[None]], rng: Random) -> None:
    """For ever. What was wrong is told."""
    pauses = Pauses(FIRST_PAUSE, LONGEST_PAUSE, rng)
    loop = asyncio.get_running_loop()
    while True:
        since = loop.time()
        try:
            await work()
        except LlmgwError as failed:
            log.warning("%s: %s", doing, failed)
        except Exception:  # it is begun again, whatever it was
            log.exception("%s broke, and is begun again", doing)
        if loop.time() - since > LONGEST_PAUSE:
            pauses.reset()
        await asyncio.sleep(pauses.next())


async def ended(tasks: "Iterable[asyncio.Task[None]]") -> None:
    """All of them, and nothing of them is left."""
    for task in (every := tuple(tasks)):
        task.cancel()
    await asyncio.gather(*every, return_exceptions=True)
