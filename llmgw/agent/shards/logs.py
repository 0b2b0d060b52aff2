"""What engines wrote: ``logs/<shard>/<process>.log``, written by the processes themselves and only read here, so that a
slow reader can never hold up an engine. Emptied in place when large; readers go on where they were, over an emptying
too."""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.agent.shards import emptying
from llmgw.wire.messages import LogLine

MAX_LINE = 1024 * 1024
"""Bytes of one line; the rest of a longer one is dropped."""
MAX_SENT = 3 * 1024 * 1024
"""Bytes of a line as JSON: control characters take six each there, and a message holds 4 MiB."""
MAX_LINES = 10_000
MAX_TAIL = 2 * 1024 * 1024
"""Bytes read back for the last lines of one process."""
MAX_SIZE = 64 * 1024 * 1024
FOLLOW_EVERY = 0.25
LAST_LINE = 4096
CONTROL = re.compile(r"[\x00-\x1f]")
AGENT = "agent"
"""Who speaks in what the agent itself adds, such as how the engine has ended."""
NOTES_KEPT = 50


@dataclass(slots=True)
class _Moved:
    """How a file's beginning has moved: it now starts at ``start``, counted from the first byte that was ever seen of it; the
    previous file holds what came from ``kept_from`` on until then."""

    start: int = 0
    kept_from: int = 0


@dataclass(slots=True)
class _Reader:
    """A place in one log that is being followed, counted like ``_Moved``."""

    path: Path
    process: str
    at: int = 0
    rest: bytes = b""
    dropping: bool = False  # the rest of a line that was too long


@dataclass(slots=True)
class _Notes:
    """What the agent has to say of a shard, numbered."""

    lines: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))
    last: int = 0

    def after(self, number: int) -> list[str]:
        return [text for noted, text in self.lines if noted > number]


class LogBook:
    """The logs of one work directory. A file that isn't there is empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moved: dict[Path, _Moved] = {}
        self._notes: dict[str, _Notes] = {}

    def path(self, shard: str, process: str) -> Path:
        return self._folder / shard / f"{process}.log"

    def size(self, shard: str, process: str) -> int:
        return _size(self.path(shard, process))

    def note(self, shard: str, text: str) -> None:
        """For those who follow."""
        notes = self._notes.setdefault(shard, _Notes())
        notes.last += 1
        notes.lines.append((notes.last, text))

    def forget(self, shard: str) -> None:
        """Its files are gone."""
        self._notes.pop(shard, None)
        self._moved = {path: moved for path, moved in self._moved.items() if path.parent.name != shard}

    def place(self, shard: str, process: str) -> int:
        """Where the next byte will be written: what ``since`` counts from."""
        return self._start(self.path(shard, process)) + self.size(shard, process)

    def since(self, shard: str, process: str, place: int, *, most: int) -> str:
        """What was written after a place, its last ``most`` bytes."""
        path = self.path(shard, process)
        end = self._start(path) + _size(path)
        begin = place if place <= end else self._start(path)  # somebody else has emptied it meanwhile
        return self._between(path, max(begin, end - most, self._of(path).kept_from), end).decode(
            errors="replace"
        )

    def last_line(self, shard: str, process: str) -> str:
        lines = self.since(shard, process, 0, most=LAST_LINE).split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def tail(self, shard: str, processes: tuple[str, ...], lines: int) -> list[LogLine]:
        """The last lines of each process, the engine's last."""
        found: list[LogLine] = []
        for process in processes:
            path = self.path(shard, process)
            texts = self._tail(path, self._start(path) + _size(path), lines)
            found += [LogLine(process=_label(process, processes), text=text) for text in texts]
        return found

    async def follow(self, shard: str, processes: tuple[str, ...], lines: int) -> AsyncIterator[LogLine]:
        """The last lines, then each as it is finished; ends never."""
        readers = [
            _Reader(self.path(shard, name), _label(name, processes), at=self.place(shard, name))
            for name in processes
        ]
        noted = self._notes[shard].last if shard in self._notes else 0
        for reader in readers:
            for text in self._tail(reader.path, reader.at, lines):
                yield LogLine(process=reader.process, text=text)
        while True:
            notes = self._notes.get(shard, _Notes())
            fresh, noted = notes.after(noted), max(noted, notes.last)
            quiet = True
            for reader in readers:
                while texts := self._fresh(reader):
                    quiet = False
                    for text in texts:
                        yield LogLine(process=reader.process, text=text)
            for text in fresh:  # after what was written until then
                yield LogLine(process=AGENT, text=text)
            if quiet:
                await asyncio.sleep(FOLLOW_EVERY)

    async def empty_large(self, shard: str, processes: tuple[str, ...], *, above: int = MAX_SIZE) -> None:
        """Keeps one previous."""
        for process in processes:
            path = self.path(shard, process)
            if _size(path) > above and (done := await emptying.empty(path, keep=above)) is not None:
                start = self._start(path)
                self._moved[path] = _Moved(start=start + done.removed, kept_from=start + done.begin)

    # ---- Places ---------------------------------------------------------------------------------------------

    def _of(self, path: Path) -> _Moved:
        """An earlier agent may have emptied it: then it counts from the beginning of the previous file."""
        if path not in self._moved:
            self._moved[path] = _Moved(start=_size(emptying.previous(path)))
        return self._moved[path]

    def _start(self, path: Path) -> int:
        return self._of(path).start

    def _read(self, path: Path, place: int, most: int) -> bytes:
        """From the previous file or from the present one, whichever holds that place."""
        moved = self._of(path)
        if place >= moved.start:
            return _bytes(path, place - moved.start, most)
        wanted = min(most, moved.start - place)
        return _bytes(emptying.previous(path), place - moved.kept_from, wanted)

    def _between(self, path: Path, begin: int, end: int) -> bytes:
        middle = max(begin, min(end, self._start(path)))
        older = self._read(path, begin, middle - begin) if begin < middle else b""
        return older + self._read(path, middle, end - middle)

    def _tail(self, path: Path, end: int, lines: int) -> list[str]:
        moved = self._of(path)
        begin = max(moved.kept_from, end - MAX_TAIL)
        data = self._between(path, begin, end)
        if lines <= 0 or not data:
            return []
        texts = data.removesuffix(b"\n").split(b"\n")
        if begin > moved.kept_from and len(texts) > 1:
            del texts[0]  # the end of a line
        return [_shown(text) for text in texts[-min(lines, MAX_LINES) :]]

    def _fresh(self, reader: _Reader) -> list[str]:
        """Lines finished since the last look; a bounded part of them."""
        moved = self._of(reader.path)
        end = moved.start + _size(reader.path)
        if reader.at > end:  # somebody else has emptied it
            reader.at, reader.rest, reader.dropping = moved.start, b"", False
        if reader.at < moved.kept_from:  # too slow by a whole file
            reader.at, reader.rest = moved.kept_from, b""
        if reader.at == end:
            return []
        data = self._read(reader.path, reader.at, MAX_LINE)
        reader.at = reader.at + len(data) if data else max(reader.at, moved.start)
        return list(_lines(reader, data))


def _lines(reader: _Reader, data: bytes) -> Iterator[str]:
    *whole, reader.rest = (reader.rest + data).split(b"\n")
    for line in whole:
        if not reader.dropping:
            yield _shown(line)
        reader.dropping = False
    if len(reader.rest) > MAX_LINE:
        if not reader.dropping:
            yield _shown(reader.rest)
        reader.rest, reader.dropping = b"", True


def _label(process: str, processes: tuple[str, ...]) -> str:
    return process if len(processes) > 1 else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _bytes(path: Path, offset: int, most: int) -> bytes:
    if most <= 0:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(most)
    except OSError:
        return b""


def _shown(line: bytes) -> str:
    text = line[:MAX_LINE].decode(errors="replace")
    if len(line) * 6 <= MAX_SENT or len(json.dumps(text, ensure_ascii=False).encode()) <= MAX_SENT:
        return text
    return CONTROL.sub(" ", text)
