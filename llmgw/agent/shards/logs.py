"""What engines wrote: ``logs/<shard>/<process>.log``, written by the processes themselves and only read here, so that a
slow reader can never hold up an engine. Emptied in place when large."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from llmgw.wire.messages import LogLine

MAX_LINE = 1024 * 1024
"""Bytes of one line; the rest of a longer one is dropped."""
MAX_LINES = 10_000
MAX_TAIL = 2 * 1024 * 1024
"""Bytes read back for the last lines of one process."""
MAX_SIZE = 64 * 1024 * 1024
CHUNK = 4 * 1024 * 1024
FOLLOW_EVERY = 0.25
LAST_LINE = 4096


@dataclass(slots=True)
class _Reader:
    """A place in one file that is being followed."""

    path: Path
    process: str
    offset: int = 0
    rest: bytes = b""


class LogBook:
    """The logs of one work directory. A file that isn't there is empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, shard: str, process: str) -> Path:
        return self._folder / shard / f"{process}.log"

    def size(self, shard: str, process: str) -> int:
        try:
            return self.path(shard, process).stat().st_size
        except OSError:
            return 0

    def since(self, shard: str, process: str, offset: int, *, most: int) -> str:
        """What was written after ``offset``, its last ``most`` bytes."""
        size = self.size(shard, process)
        begin = offset if offset <= size else 0  # it was emptied meanwhile
        return _read(self.path(shard, process), max(begin, size - most), most).decode(errors="replace")

    def last_line(self, shard: str, process: str) -> str:
        lines = self.since(shard, process, 0, most=LAST_LINE).split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def tail(self, shard: str, processes: tuple[str, ...], lines: int) -> list[LogLine]:
        """The last lines of each process, the engine's last."""
        found: list[LogLine] = []
        for process in processes:
            data = _read(self.path(shard, process), max(0, self.size(shard, process) - MAX_TAIL), MAX_TAIL)
            label = _label(process, processes)
            found += [LogLine(process=label, text=text) for text in _last(data, lines)]
        return found

    async def follow(self, shard: str, processes: tuple[str, ...], lines: int) -> AsyncIterator[LogLine]:
        """The last lines, then each as it is finished; ends never."""
        readers = [
            _Reader(self.path(shard, process), _label(process, processes), self.size(shard, process))
            for process in processes
        ]
        for reader in readers:
            begin = max(0, reader.offset - MAX_TAIL)
            for line in _last(_read(reader.path, begin, reader.offset - begin), lines):
                yield LogLine(process=reader.process, text=line)
        while True:
            quiet = True
            for reader in readers:
                for text in _fresh(reader):
                    quiet = False
                    yield LogLine(process=reader.process, text=text)
            if quiet:
                await asyncio.sleep(FOLLOW_EVERY)

    async def empty_large(self, shard: str, processes: tuple[str, ...], *, above: int = MAX_SIZE) -> None:
        """Keeps one previous. What is written between the copy and the emptying is lost."""
        for process in processes:
            if self.size(shard, process) > above:
                with contextlib.suppress(OSError):  # a full disk: emptying would lose what was not copied
                    await _move_away(self.path(shard, process))


async def _move_away(path: Path) -> None:
    beside = path.with_name(f"{path.name}.new")
    source = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        target = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            offset = 0
            while sent := os.sendfile(target, source, offset, CHUNK):
                offset += sent
                await asyncio.sleep(0)
        finally:
            os.close(target)
        os.replace(beside, path.with_name(f"{path.name}.1"))  # noqa: PTH105 - same as rename, over an old one
        os.ftruncate(source, 0)  # the engine writes on from the start: it opened the file to append
    finally:
        os.close(source)


def _label(process: str, processes: tuple[str, ...]) -> str:
    return process if len(processes) > 1 else ""


def _read(path: Path, offset: int, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(most)
    except OSError:
        return b""


def _last(data: bytes, lines: int) -> list[str]:
    if not data or lines <= 0:
        return []
    texts = data.removesuffix(b"\n").split(b"\n")[-min(lines, MAX_LINES) :]
    return [text[:MAX_LINE].decode(errors="replace") for text in texts]


def _fresh(reader: _Reader) -> list[str]:
    """Lines finished since the last look; a bounded part of them."""
    try:
        size = reader.path.stat().st_size
    except OSError:
        return []
    if size < reader.offset:
        reader.offset, reader.rest = 0, b""
    data = _read(reader.path, reader.offset, MAX_LINE)
    reader.offset += len(data)
    *whole, reader.rest = (reader.rest + data).split(b"\n")
    if len(reader.rest) >= MAX_LINE:
        whole.append(reader.rest)
        reader.rest = b""
    return [line[:MAX_LINE].decode(errors="replace") for line in whole]
