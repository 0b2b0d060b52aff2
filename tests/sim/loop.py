"""An event loop whose time is pretended: when nothing is left to run it jumps to the next timer, so that an hour
of waiting passes in no time and every run of the same seed goes the same way."""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


class _Jump(selectors.BaseSelector):
    """A selector that never sleeps: asked to wait, it moves the loop's time instead. Real descriptors are only the
    loop's own wake-up pipe, which nothing here writes to."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("every task waits for something that no timer will bring")
        if timeout > 0:
            self._loop.elapsed += timeout
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class DeadlockError(RuntimeError):
    """Nothing can ever happen again: a lost wake-up."""


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.elapsed = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.elapsed


class LoopClock:
    """The time of day that goes with the loop's time; ``step`` moves it as an administrator or NTP would. Machines have
    one each."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.step = timedelta(0)

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.elapsed) + self.step


def run(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run to the end and leave no task behind."""
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
