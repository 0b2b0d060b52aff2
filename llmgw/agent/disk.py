"""The real Disk: small state files below the work directory, written whole or not at all."""

import contextlib
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from llmgw.model.problems import StalledError

MAX_FILE = 16 * 1024 * 1024
"""Bytes read of one state file; a launch spec is some 10 kB."""
MAX_FILES = 10_000


class FileDisk:
    """Names are relative to ``root`` and made of safe parts by whoever calls."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def write(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        self._write(self._root / name, data, lasting=lasting)

    async def read(self, name: str) -> bytes | None:
        try:
            return _read_whole(self._root / name)
        except FileNotFoundError:
            return None
        except OSError:
            return b""

    async def read_all(self, folder: str) -> Mapping[str, bytes]:
        return self._read_all(self._root / folder)

    async def move(self, name: str, to: str) -> None:
        path, target = self._root / name, self._root / to
        try:
            _rename(path, target)
        except OSError as wrong:
            raise _stalled("moving aside", path, wrong) from wrong

    async def remove(self, name: str) -> None:
        path = self._root / name
        try:
            _unlink(path)
        except OSError as wrong:
            raise _stalled("removing", path, wrong) from wrong

    async def remove_folder(self, name: str) -> None:
        path = self._root / name
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as wrong:
            raise _stalled("removing", path, wrong) from wrong

    def _write(self, path: Path, data: bytes, *, lasting: bool) -> None:
        beside = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                with os.fdopen(descriptor, "wb", closefd=False) as file:
                    file.write(data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            beside.replace(path)
            if lasting:
                _sync_folder(path.parent)
        except OSError as wrong:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise _stalled("writing", path, wrong) from wrong

    def _read_all(self, folder: Path) -> Mapping[str, bytes]:
        try:
            # What begins with a dot is a write that a crash has cut off.
            names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
        except FileNotFoundError:
            return {}
        except OSError as wrong:
            raise _stalled("reading", folder, wrong) from wrong
        files = [folder / name for name in names[:MAX_FILES]]
        return {path.name: _read(path) for path in files if path.is_file()}


def _read(path: Path) -> bytes:
    try:
        return _read_whole(path)
    except OSError:
        return b""  # not a state file; its reader reports it as unreadable


def _read_whole(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE)


def _rename(path: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.replace(target)
    _sync_folder(target.parent)
    _sync_folder(path.parent)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """A rename is only sure after a power failure when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stalled(doing: str, path: Path, wrong: OSError) -> StalledError:
    fixes = {
        errno.ENOSPC: "free space on that disk",
        errno.EDQUOT: "free space or raise the quota of the agent's user there",
        errno.EROFS: "the file system is mounted read-only: see the kernel's log",
        errno.EIO: "the disk is failing: see the kernel's log",
    }
    fix = fixes.get(wrong.errno or 0, "see to its rights and its disk")
    return StalledError(f"{doing} {path}: {wrong.strerror}: {fix}")
