"""Blocking work in a thread, awaited from the event loop.

A thread each and no pool: a pool that dead machines have filled would hold up the healthy ones, and its threads would be
waited for when the program ends.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, name: str) -> T:
    """The result of ``work``. A caller who is cancelled leaves the thread behind: what it waits for must be bounded in
    time, or be ended by closing what it works on."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def body() -> None:
        try:
            result = work()
        except BaseException as wrong:  # noqa: BLE001 - whatever it was, it is for the one who waits
            tell(loop, _fail, done, wrong)
        else:
            tell(loop, _succeed, done, result)

    threading.Thread(target=body, name=f"llmgw-ssh-{name}", daemon=True).start()
    return await done


def tell(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *args: object) -> None:
    """Has the loop call something; a loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *args)


def _succeed(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: "asyncio.Future[T]", wrong: BaseException) -> None:
    if not done.done():
        done.set_exception(wrong)
