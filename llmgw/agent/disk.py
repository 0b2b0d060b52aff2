"""The real Disk: small state files below the work directory, written whole or not at all."""

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from llmgw.model.problems import StalledError

T = TypeVar("T")
MAX_FILE = 16 * 1024 * 1024
"""Bytes read of one state file; a launch spec is some 10 kB."""
MAX_FILES = 10_000


class FileDisk:
    """Names are relative to ``root`` and made of safe parts by whoever calls. One thread does everything, in the order in which it
    was asked: a disk that is slow, or dead, holds up those who wait for it and nobody else. See docs/adr/0015."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")

    async def write(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        await self._done(lambda: _write({self._root / name: data}, lasting=lasting))

    async def write_all(self, files: Mapping[str, bytes]) -> None:
        await self._done(
            lambda: _write({self._root / name: data for name, data in files.items()}, lasting=True)
        )

    async def read(self, name: str) -> bytes | None:
        return await self._done(lambda: _read(self._root / name))

    async def read_all(self, folder: str) -> Mapping[str, bytes]:
        return await self._done(lambda: _read_all(self._root / folder))

    async def move(self, name: str, to: str) -> None:
        await self._done(lambda: _move(self._root / name, self._root / to))

    async def remove(self, name: str) -> None:
        await self._done(lambda: _remove(self._root / name))

    async def remove_folder(self, name: str) -> None:
        await self._done(lambda: _remove_folder(self._root / name))

    async def _done(self, do: Callable[[], T]) -> T:
        """Also for one who is told to end meanwhile: when that has ended, it writes nothing more."""
        doing = asyncio.get_running_loop().run_in_executor(self._thread, do)
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait({doing})
            raise


def _write(files: Mapping[Path, bytes], *, lasting: bool) -> None:
    """Each step of all of them before the next, because each waits for the disk."""
    laid = {path: path.with_name(f".{path.name}.new") for path in files}
    try:
        for path, data in files.items():
            with _naming("writing", path):
                _lay(laid[path], data)
        _sync({beside: path for path, beside in laid.items()})
        for path, beside in laid.items():
            with _naming("writing", path):
                beside.replace(path)
    except StalledError:
        for beside in laid.values():
            with contextlib.suppress(OSError):
                beside.unlink()
        raise
    if lasting:  # a rename is only sure after a power failure when its folder is
        _sync({path.parent: path for path in files})


def _lay(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _sync(places: Mapping[Path, Path]) -> None:
    """Files or folders, each with the name by which a refusal is told. The disk is waited for once, not once for each."""
    if len(places) == 1:
        for place, named in places.items():
            _sync_one(place, named)
        return
    with ThreadPoolExecutor(max_workers=len(places), thread_name_prefix="sync") as threads:
        list(threads.map(_sync_one, places.keys(), places.values()))


def _sync_one(place: Path, named: Path) -> None:
    with _naming("writing", named):
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE)
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _read_all(folder: Path) -> Mapping[str, bytes]:
    try:
        # What begins with a dot is a write that a crash has cut off.
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        return {}
    except OSError as wrong:
        raise _stalled("reading", folder, wrong) from wrong
    files = [folder / name for name in names[:MAX_FILES]]
    # Not a state file, if it can't be read; its reader reports it as unreadable.
    return {path.name: _read(path) or b"" for path in files if path.is_file()}


def _move(path: Path, target: Path) -> None:
    with _naming("moving aside", path):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.replace(target)
    _sync({target.parent: path, path.parent: path})


def _remove(path: Path) -> None:
    with _naming("removing", path):
        try:
            path.unlink()
        except FileNotFoundError:
            return
    _sync({path.parent: path})


def _remove_folder(path: Path) -> None:
    with _naming("removing", path), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


@contextlib.contextmanager
def _naming(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as wrong:
        raise _stalled(doing, path, wrong) from wrong


def _stalled(doing: str, path: Path, wrong: OSError) -> StalledError:
    fixes = {
        errno.ENOSPC: "free space on that disk",
        errno.EDQUOT: "free space or raise the quota of the agent's user there",
        errno.EROFS: "the file system is mounted read-only: see the kernel's log",
        errno.EIO: "the disk is failing: see the kernel's log",
    }
    fix = fixes.get(wrong.errno or 0, "see to its rights and its disk")
    return StalledError(f"{doing} {path}: {wrong.strerror}: {fix}")
