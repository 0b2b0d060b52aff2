"""Ending tasks for good. Before Python 3.12 ``asyncio.wait_for`` loses a cancellation that comes in the moment its answer
does: a task that was told to end goes on then, and whoever waits for its end waits for ever."""

import asyncio
from typing import Any

AGAIN_AFTER = 2.0
"""Seconds until a task is told once more: what it does in its own ``finally`` takes less."""


async def cancelled(*tasks: "asyncio.Task[Any] | None") -> None:
    """Returns when all have ended; how does not matter."""
    left = {task for task in tasks if task is not None}
    ending = tuple(left)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_AFTER)
    await asyncio.gather(*ending, return_exceptions=True)
