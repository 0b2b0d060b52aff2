"""Two things at once, of which neither is left alone when the other fails."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def both(one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """As asyncio.gather, but what goes on when the other has failed is waited for, and the first failure raised then. Left alone
    it would be cut off by the loop's end; a process that is cut off while it starts makes Python (3.11) wait for ever, for pipes
    that it has not been given yet."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second
