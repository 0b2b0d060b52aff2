"""The record store of a history: the memory store itself, which also remembers every version for the invariants, and
can be unreachable or lose an answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from llmgw.clock import Clock
from llmgw.controller.repo.records import HistoryEntry, MemoryRecordStore, Stored
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.problems import RetryError, UnknownOutcomeError
from llmgw.model.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One commit of the state branch."""

    version: Commit
    record: Record
    plan: Plan | None
    message: str
    at: str


class SimStore:
    """See controller.repo.records.RecordStore."""

    def __init__(self, rng: Random, clock: Clock, *, wrote: Callable[[], None] = lambda: None) -> None:
        self._store = MemoryRecordStore()
        self._rng = rng
        self._clock = clock
        self._wrote = wrote
        self.written: list[Written] = []
        self.plans: dict[int, Plan] = {}
        self.at_intent: dict[str, Callable[[], None]] = {}  # holder -> what to do when it begins to work
        self.trouble: Literal["", "unreachable", "answers get lost"] = ""

    @property
    def record(self) -> Record | None:
        return self.written[-1].record if self.written else None

    async def read(self) -> Stored:
        self._must_answer()
        return await self._store.read()

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        self._must_answer()
        version = await self._store.write(record, after=after, message=message, plan=plan)
        self.written.append(
            Written(
                version=version, record=record, plan=plan, message=message, at=self._clock.now().isoformat()
            )
        )
        if plan is not None:
            if record.serial not in self.plans and record.last_pass is not None:
                self.at_intent.pop(record.last_pass.holder, lambda: None)()
            self.plans[record.serial] = plan
        self._wrote()
        if self.trouble == "answers get lost" and self._rng.random() < 0.5:
            raise UnknownOutcomeError("writing the record: the line broke before the answer came")
        return version

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        self._must_answer()
        entries = await self._store.history(limit)
        at = {written.version: written.at for written in self.written[-limit:]}
        return tuple(replace(entry, at=at[entry.version]) for entry in entries)

    def _must_answer(self) -> None:
        if self.trouble == "unreachable":
            raise RetryError("the repository does not answer")
