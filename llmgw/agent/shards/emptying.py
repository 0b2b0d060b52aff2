"""Takes what is old out of a log that its engine goes on writing to: what was there is kept as the one previous, and the
space is given back. Where the file system can cut a file's beginning off, nothing that is written meanwhile is lost."""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
from pathlib import Path

from llmgw.model.struct import Struct

log = logging.getLogger(__name__)

CHUNK = 1024 * 1024
"""Bytes copied before others have their turn."""
COLLAPSE_RANGE = 0x08
"""See fallocate(2): the range is taken out, and what follows moves up."""
_libc = ctypes.CDLL(None, use_errno=True)


class Emptied(Struct):
    """``removed`` bytes were taken from the beginning; the previous file holds them from the byte ``begin`` on."""

    removed: int
    begin: int


def previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


async def empty(path: Path, *, keep: int, cut: bool = True) -> Emptied | None:
    """Keeps the last ``keep`` bytes. None: nothing was done. ``cut``: try to cut the beginning off first. Without that, what
    is written between the last look and the emptying is lost: some microseconds' worth."""
    try:
        source = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return await _empty(source, path, keep=keep, cut=cut)
    finally:
        os.close(source)


async def _empty(source: int, path: Path, *, keep: int, cut: bool) -> Emptied | None:
    seen = os.fstat(source)
    # Whole blocks, and not up to the very end: that is what can be cut off.
    whole = (seen.st_size - 1) // seen.st_blksize * seen.st_blksize
    begin = max(0, whole - keep)
    beside = path.with_name(f"{path.name}.new")
    try:
        target = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            await _copy(source, target, begin, whole)
            os.replace(beside, previous(path))  # noqa: PTH105 - same as rename, over an old one
            if cut and _cut(source, whole):
                return Emptied(removed=whole, begin=begin)
            _copy_rest(source, target, whole)
            return _truncate(source, begin)
        finally:
            os.close(target)
    except OSError as wrong:
        return _give_up(wrong, source, path, beside, whole=whole, cut=cut)


def _give_up(
    wrong: OSError, source: int, path: Path, beside: Path, *, whole: int, cut: bool
) -> Emptied | None:
    """On a full disk the space counts for more than the past."""
    with contextlib.suppress(OSError):
        beside.unlink()
    if wrong.errno not in (errno.ENOSPC, errno.EDQUOT):
        log.warning("emptying %s: %s", path, wrong.strerror)
        return None
    log.warning("the disk of %s is full: what it held is dropped", path)
    with contextlib.suppress(OSError):
        previous(path).unlink()
    if cut and _cut(source, whole):
        return Emptied(removed=whole, begin=whole)
    emptied = _truncate(source, 0)
    return Emptied(removed=emptied.removed, begin=emptied.removed)


async def _copy(source: int, target: int, begin: int, end: int) -> None:
    while begin < end:
        sent = os.sendfile(target, source, begin, min(CHUNK, end - begin))
        if not sent:
            return
        begin += sent
        await asyncio.sleep(0)


def _copy_rest(source: int, target: int, begin: int) -> None:
    """Without giving way to anybody: the shorter, the less is lost."""
    while sent := os.sendfile(target, source, begin, CHUNK):
        begin += sent


def _truncate(source: int, begin: int) -> Emptied:
    size = os.fstat(source).st_size
    os.ftruncate(source, 0)  # the engine writes on from the start: it opened the file to append
    return Emptied(removed=size, begin=begin)


def _cut(source: int, length: int) -> bool:
    """False: this file system can't."""
    if length <= 0:
        return False
    zero, size = ctypes.c_int64(0), ctypes.c_int64(length)
    return bool(_libc.fallocate(source, COLLAPSE_RANGE, zero, size) == 0)
