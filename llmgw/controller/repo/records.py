"""The seam to the record: read it, and replace it only if nobody else did meanwhile.

Two stores, one contract (tests/controller/test_record_stores.py): :class:`MemoryRecordStore` here and the state
branch in :mod:`llmgw.controller.repo.state_branch`.
"""

from typing import Protocol

from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.problems import StaleError, StalledError
from llmgw.model.record import Record
from llmgw.model.struct import Struct


class Stored(Struct):
    """A record as it was read: ``version`` is the commit that holds it, None before the first write."""

    record: Record | None
    version: Commit | None
    pending_plan: Plan | None = None
    """The plan of a pass that has begun and has not told its outcome."""


class HistoryEntry(Struct):
    """One commit of the state branch: its sentence and its trailers."""

    version: Commit
    at: str  # ISO 8601
    subject: str
    body: str
    trailers: tuple[tuple[str, str], ...]


class RecordStore(Protocol):
    async def read(self) -> Stored:
        """The newest record. Raises RecordError when there is one that can't be read: a broken record must
        never look like an empty one; RetryError when the repository does not answer."""
        ...

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        """Compare-and-swap: becomes the newest record only if ``after`` still is the newest version.

        ``plan`` is kept beside an intent and dropped by the outcome. Raises :class:`LostRaceError` when somebody else
        wrote, UnknownOutcomeError or RetryError when the repository can't be reached, RecordError when it refuses."""
        ...

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        """Newest first."""
        ...


class RecordError(StalledError):
    """The record can't be read, or not be written: no commit can be applied until somebody has mended that."""


class LostRaceError(StaleError):
    """Somebody else wrote the record first: read it and plan again."""


class MemoryRecordStore:
    """The fake: the same contract without Git. Not durable."""

    def __init__(self) -> None:
        self._versions: list[tuple[Commit, Record, Plan | None, str]] = []

    async def read(self) -> Stored:
        if not self._versions:
            return Stored(record=None, version=None)
        version, record, plan, _ = self._versions[-1]
        return Stored(record=record, version=version, pending_plan=plan)

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        newest = self._versions[-1][0] if self._versions else None
        if newest != after:
            raise LostRaceError(
                f"the record moved from {after} to {newest} while this pass was planning: plan again"
            )
        version = Commit(f"{len(self._versions) + 1:040x}")
        self._versions.append((version, record, plan, message))
        return version

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        return tuple(
            entry_of(version, message) for version, _, _, message in reversed(self._versions[-limit:])
        )


def entry_of(version: Commit, message: str, at: str = "") -> HistoryEntry:
    """A commit's message taken apart: subject, body, and the trailers of its last paragraph."""
    subject, _, rest = message.strip().partition("\n")
    paragraphs = rest.strip().split("\n\n")
    lines = paragraphs[-1].splitlines() if paragraphs else []
    pairs = [line.partition(": ") for line in lines]
    if not lines or not all(separator and key.startswith("Llmgw-") for key, separator, _ in pairs):
        return HistoryEntry(version=version, at=at, subject=subject, body=rest.strip(), trailers=())
    trailers = tuple((key, value) for key, _, value in pairs)
    return HistoryEntry(
        version=version, at=at, subject=subject, body="\n\n".join(paragraphs[:-1]), trailers=trailers
    )
