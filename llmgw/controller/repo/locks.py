"""A kernel file lock with a name on it: one process at a time, and those who wait are told for whom.

The kernel lets go of it when its holder ends, however that comes about: no stale locks, nothing to break. It
orders the processes of one machine; across machines the state branch does (see state_branch).
"""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

from llmgw.clock import Clock
from llmgw.model.problems import HeldError, StalledError
from llmgw.model.struct import Struct

FLEET_LOCK = "apply.lock"
"""Name of the lock below a fleet's state directory that whoever changes the fleet holds."""

WAIT = "wait for it to end, or wait here with --lock-timeout"
_LOOK_AGAIN = (
    0.05  # seconds; the kernel tells nobody when a lock comes free, unless a thread is spent on waiting
)
_MAX_NOTE = 4096  # bytes; a note is about 150


class Holding(Struct):
    """Who holds a lock, as they wrote it down: good for telling people, not for deciding."""

    holder: str
    pid: int
    since: str  # ISO 8601
    what: str = ""

    def __str__(self) -> str:
        doing = f" ({self.what})" if self.what else ""
        return f"{self.holder}{doing}, pid {self.pid}, since {self.since}"


class FileLock:
    """``async with lock.held(timeout=0): ...``. Exclusive against other processes and other tasks alike."""

    __slots__ = ("_clock", "_holder", "_instead", "_path", "_what")

    def __init__(self, path: Path, *, clock: Clock, holder: str, what: str = "", instead: str = WAIT) -> None:
        """``what`` and ``instead`` are for messages: what the holder is at, and what whoever comes second can do."""
        self._path = path
        self._clock = clock
        self._holder = holder
        self._what = what
        self._instead = instead

    @property
    def path(self) -> Path:
        return self._path

    @asynccontextmanager
    async def held(self, *, timeout: float = 0) -> AsyncIterator[int]:
        """Waits up to ``timeout`` seconds; gives the lock's descriptor, which a child process may inherit to share
        in the holding. Raises HeldError naming the holder, StalledError when the lock file can't
        be used at all."""
        descriptor = self._open()
        try:
            await self._acquire(descriptor, timeout)
            self._sign(descriptor)
            try:
                yield descriptor
            finally:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def holding(self) -> Holding | None:
        """What the holder wrote down; None when nobody did."""
        try:
            with self._path.open("rb") as file:
                noted = json.loads(file.read(_MAX_NOTE))
            return Holding(
                holder=str(noted["holder"]),
                pid=int(noted["pid"]),
                since=str(noted["since"]),
                what=str(noted.get("what", "")),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _open(self) -> int:
        try:
            make_private_folder(self._path.parent)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as wrong:
            raise StalledError(
                f"opening the lock file {self._path}: {wrong.strerror or wrong}: "
                "check who owns the state directory, or choose another with --state-dir"
            ) from wrong

    async def _acquire(self, descriptor: int, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while not _try_lock(descriptor, self._path):
            left = until - loop.time()
            if left <= 0:
                raise self._held(timeout)
            await asyncio.sleep(min(_LOOK_AGAIN, left))

    def _held(self, waited: float) -> HeldError:
        holding = self.holding()
        who = str(holding) if holding else "a process that has not written down who it is"
        after = f" after waiting {timedelta(seconds=waited)}" if waited else ""
        return HeldError(
            f"{self._what or 'taking the lock'} at {self._path}: held{after} by {who}: {self._instead}"
        )

    def _sign(self, descriptor: int) -> None:
        note = {
            "holder": self._holder,
            "pid": os.getpid(),
            "since": self._clock.now().isoformat(timespec="seconds").replace("+00:00", "Z"),
            "what": self._what,
        }
        with suppress(OSError):  # a full disk takes the name from the lock, not the lock
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode()[:_MAX_NOTE], 0)


def make_private_folder(folder: Path) -> None:
    """The folder and whatever is missing above it, 0700: state and secrets are nobody else's to read."""
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    for above in reversed(missing):
        above.mkdir(mode=0o700, exist_ok=True)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as wrong:
        raise StalledError(
            f"locking {path}: {wrong.strerror or wrong}: the file system of the state directory must support "
            "locks; choose another directory with --state-dir"
        ) from wrong
    return True
