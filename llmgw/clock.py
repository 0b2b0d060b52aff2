"""The clock: the one place where the shells read the time of day. The pure floors never import it.

Waiting goes through the event loop (``asyncio.sleep``, ``asyncio.timeout``), whose time the simulation drives.
"""

from datetime import datetime, timedelta, timezone
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, in UTC."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(timezone.utc)  # noqa: TID251 - this is the clock


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self, start: datetime) -> None:
        self.time = start

    def now(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
