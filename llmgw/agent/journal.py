"""What happened on the node, numbered and bounded: the controller reads it from where it stopped.

Numbers only grow, over restarts too. A reader who knows a higher number than the journal (the node lost its last
writes in a power failure) makes it continue above that number; the gap tells that entries were lost.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from llmgw.clock import Clock
from llmgw.model.problems import StalledError
from llmgw.model.report import JournalEntry
from llmgw.wire import codec
from llmgw.wire.messages import NO_JOURNAL

KEEP = 5_000
"""Entries kept: at one restart loop a minute and 4 entries each, most of a day."""
MAX_TEXT = 4_000
MAX_FIELD = 1_000
MAX_READ = 1_000
"""Entries of one report."""
MAX_READ_SIZE = 512 * 1024
MAX_LINE = 64 * 1024
MAX_FILE = 64 * 1024 * 1024


class JournalStore(Protocol):
    """Where the lines are kept."""

    def load(self) -> list[bytes]:
        """All lines, whole ones only."""
        ...

    def append(self, line: bytes) -> None: ...

    def replace(self, lines: Iterable[bytes]) -> None: ...


class MemoryJournalStore:
    """Lines that outlive the journal object but not the process: for tests and the simulation."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def load(self) -> list[bytes]:
        return list(self.lines)

    def append(self, line: bytes) -> None:
        self.lines.append(line)

    def replace(self, lines: Iterable[bytes]) -> None:
        self.lines = list(lines)


class FileJournalStore:
    """``journal.jsonl``: appended, and rewritten beside and renamed when it has grown to twice what is kept. A last
    line that a crash cut in two is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[bytes]:
        try:
            with self._path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - MAX_FILE))
                data = file.read(MAX_FILE)
                whole = data.rfind(b"\n") + 1
                if whole != len(data):
                    file.truncate(start + whole)
        except FileNotFoundError:
            return []
        except OSError as wrong:
            raise StalledError(f"reading {self._path}: {wrong.strerror}: see to that file") from wrong
        return data[:whole].splitlines()

    def append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            left = line + b"\n"
            while left:  # a disk that fills up takes a part, and refuses the rest
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)

    def replace(self, lines: Iterable[bytes]) -> None:
        beside = self._path.with_suffix(".new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(descriptor)
        beside.replace(self._path)


class Journal:
    """Never raises for the disk's sake: what happened is still told to those who watch and ask, and ``problem`` says
    that it is not being kept."""

    def __init__(self, *, store: JournalStore, clock: Clock, keep: int = KEEP) -> None:
        self._store = store
        self._clock = clock
        self._keep = keep
        self._listeners: list[Callable[[JournalEntry], None]] = []
        self.problem = ""
        self._entries: deque[JournalEntry] = deque(maxlen=keep)
        lines = store.load()
        self._stored = len(lines)
        self.last = 0
        for line in lines:
            try:
                entry = codec.loads(JournalEntry, line[:MAX_LINE], strict=False)
            except codec.CodecError:
                continue  # one broken line must not hide the others
            if entry.number > self.last:
                self._entries.append(entry)
                self.last = entry.number

    def listen(self, listener: Callable[[JournalEntry], None]) -> None:
        self._listeners.append(listener)

    def append(
        self, kind: str, subject: str, text: str, fields: Mapping[str, str] | None = None
    ) -> JournalEntry:
        entry = JournalEntry(
            number=self.last + 1,
            at=self._clock.now(),
            kind=kind,
            subject=subject,
            text=text[:MAX_TEXT],
            fields={name: value[:MAX_FIELD] for name, value in (fields or {}).items()},
        )
        self.last = entry.number
        self._entries.append(entry)
        self._keep_on_disk(entry)
        for listener in self._listeners:
            listener(entry)
        return entry

    def _keep_on_disk(self, entry: JournalEntry) -> None:
        try:
            if self._stored >= 2 * self._keep or self.problem:
                self._store.replace(codec.dumps(kept) for kept in self._entries)
                self._stored = len(self._entries)
            else:
                self._store.append(codec.dumps(entry))
                self._stored += 1
            self.problem = ""
        except OSError as wrong:
            self.problem = f"the journal can't be written: {wrong.strerror}: free space on the node's disk"

    def after(self, number: int) -> tuple[JournalEntry, ...]:
        """The oldest entries above ``number``, bounded in count and size: the rest comes with the next report."""
        if number >= NO_JOURNAL:
            return ()
        self.last = max(self.last, number)
        found: list[JournalEntry] = []
        size = 0
        for entry in self._entries:
            if entry.number > number:
                size += len(entry.text) + sum(map(len, entry.fields.values()))
                if len(found) == MAX_READ or (found and size > MAX_READ_SIZE):
                    break
                found.append(entry)
        return tuple(found)
