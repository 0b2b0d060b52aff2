"""What jobs do to files: markers of completeness, free space, hashing and copying in a thread that stops when told.

A target is complete when its marker is there: the marker is written last, whole, and only then is the target used.
"""

import asyncio
import ctypes
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from llmgw.model.problems import StalledError
from llmgw.wire import codec

T = TypeVar("T")

CHUNK = 1024 * 1024
MAX_MARKER = 64 * 1024
RESERVE = 1024**3
"""Bytes of a disk that no job may use up: logs, state files and people need some."""
_libc = ctypes.CDLL(None, use_errno=True)


class NoSpaceError(StalledError):
    """The disk has no room for what was asked."""


def require_space(folder: Path, need: int, *, reserve: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < need + reserve:
        raise NoSpaceError(
            f"{what}: {gib(need)} needed and {gib(reserve)} kept free, but the disk of {folder} has {gib(free)}:"
            " free space there, or give the node another directory in its manifest"
        )


def gib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB"


def mismatch(what: str, *, found: str, expected: str) -> StalledError:
    return StalledError(
        f"verifying {what}: its SHA-256 is {found}, expected {expected}: what came is not what the manifest names:"
        " correct its sha256, or see who changed the file"
    )


def disk_refused(doing: str, folder: Path, wrong: OSError) -> StalledError:
    """What an error of the operating system means for a job."""
    where = wrong.filename or folder
    if wrong.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"{doing}: {wrong.strerror}: {where}: free space on that disk")
    return StalledError(f"{doing}: {wrong.strerror}: {where}: see to the node's disk")


def read_marker(kind: type[codec.T], file: Path) -> codec.T | None:
    """None: not complete, or the marker is no marker of ours; the target is then made anew."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_MARKER + 1)
        return codec.loads(kind, data, strict=False)
    except (OSError, codec.CodecError):
        return None


def write_marker(value: object, file: Path) -> None:
    """Whole or not at all, and on the disk when this returns."""
    beside = file.with_name(file.name + ".new")
    with beside.open("wb") as stream:
        stream.write(codec.dumps_readable(value))
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Everything below a folder is on the disk when this returns."""
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(parent) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(parent))


def sync_disk(folder: Path) -> None:
    """Everything on the disk of a folder is really there when this returns: of an engine's tens of thousands of files, each by
    itself would take minutes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Nothing there is no error; what can't be removed is."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
        return
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def tree_size(folder: Path) -> int:
    """Bytes below a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


class Stopped(Exception):  # noqa: N818 - no error: how a thread leaves when its job was cancelled
    """The job was cancelled while a thread worked for it."""


async def in_thread(work: Callable[[threading.Event], T]) -> T:
    """Runs ``work(stop)``; on cancel ``stop`` is set and the thread's end awaited, so that nothing is written later."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        with suppress(Stopped, OSError, asyncio.CancelledError):
            await task
        raise


def copy_hashed(
    source: IO[bytes], sink: IO[bytes] | None, *, stop: threading.Event, told: Callable[[int], None]
) -> str:
    """SHA-256 of what was copied (or only read). ``told`` gets the bytes so far."""
    sha = hashlib.sha256()
    done = 0
    while data := source.read(CHUNK):
        if stop.is_set():
            raise Stopped
        sha.update(data)
        if sink is not None:
            sink.write(data)
        done += len(data)
        told(done)
    return sha.hexdigest()
