"""The record stores of a history: one way to the record for each machine, all versions remembered for the invariants.

The repository can be unreachable, and an answer can get lost.
"""

from collections.abc import Callable
from random import Random
from typing import Literal

from llmgw.clock import Clock
from llmgw.controller.repo.records import HistoryEntry, MemoryRecordStore, RecordStore, Stored
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.problems import RetryError, UnknownOutcomeError
from llmgw.model.record import Record
from llmgw.model.struct import Struct, replace

OpenStore = Callable[[str], RecordStore]
"""A machine's own store, by its name; all of them hold the same record."""


class Written(Struct):
    """One commit of the state branch."""

    version: Commit
    record: Record
    plan: Plan | None
    message: str
    at: str


def in_memory() -> OpenStore:
    """One store that every machine reaches."""
    store = MemoryRecordStore()
    return lambda _: store


class SimStore:
    """What all machines have written, and what is wrong with the repository now."""

    def __init__(
        self,
        rng: Random,
        clock: Clock,
        *,
        opened: OpenStore | None = None,
        wrote: Callable[[], None] = lambda: None,
    ) -> None:
        self._open = opened or in_memory()
        self.rng = rng
        self.clock = clock
        self.wrote = wrote
        self.written: list[Written] = []
        self.plans: dict[int, Plan] = {}
        self.at_intent: dict[str, Callable[[], None]] = {}  # holder -> what to do when it begins to work
        self.at_next_intent: list[Callable[[], None]] = []  # whoever begins it
        self.trouble: Literal["", "unreachable", "answers get lost"] = ""

    @property
    def record(self) -> Record | None:
        return self.written[-1].record if self.written else None

    def at(self, machine: str) -> "MachineStore":
        return MachineStore(self, self._open(machine))

    def remember(self, written: Written) -> None:
        self.written.append(written)
        record, plan = written.record, written.plan
        if plan is not None:
            if record.serial not in self.plans and record.last_pass is not None:
                self.at_intent.pop(record.last_pass.holder, lambda: None)()
                while self.at_next_intent:
                    self.at_next_intent.pop()()
            self.plans[record.serial] = plan
        self.wrote()


class MachineStore:
    """See controller.repo.records.RecordStore."""

    def __init__(self, all_of_them: SimStore, store: RecordStore) -> None:
        self._all = all_of_them
        self._store = store

    async def read(self) -> Stored:
        self._must_answer()
        return await self._store.read()

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        self._must_answer()
        version = await self._store.write(record, after=after, message=message, plan=plan)
        at = self._all.clock.now().isoformat()
        self._all.remember(Written(version=version, record=record, plan=plan, message=message, at=at))
        if self._all.trouble == "answers get lost" and self._all.rng.random() < 0.5:
            raise UnknownOutcomeError("writing the record: the line broke before the answer came")
        return version

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        self._must_answer()
        entries = await self._store.history(limit)
        at = {written.version: written.at for written in self._all.written[-limit:]}
        return tuple(replace(entry, at=at[entry.version]) for entry in entries)

    def _must_answer(self) -> None:
        if self._all.trouble == "unreachable":
            raise RetryError("the repository does not answer")
