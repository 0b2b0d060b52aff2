"""The real record stores for a history: one bare repository, and a mirror for each machine that applies.

Git runs in a thread with a loop of its own, and pretended time stands still meanwhile: a history in Git goes the way of the
same history in memory.
"""

import asyncio
import os
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from llmgw.clock import Clock, SystemClock
from llmgw.controller.repo.git import Git, GitEnvironment
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.records import HistoryEntry, Stored
from llmgw.controller.repo.remote import remote_of
from llmgw.controller.repo.state_branch import GitRecordStore
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.record import Record

T = TypeVar("T")
STATE = "llmgw/state"


class GitStores:
    """Opens a machine's store by its name; see store.OpenStore."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.bare = folder / "fleet.git"
        self._folder = folder
        self._loop = loop
        subprocess.run(["git", "init", "--quiet", "--bare", str(self.bare)], check=True)

    def __call__(self, machine: str) -> "InThread":
        return InThread(self._store(machine, SystemClock()), self._loop)

    def versions(self) -> tuple[str, ...]:
        """All commits of the state branch, newest first, as git itself tells them."""
        said = subprocess.run(
            ["git", "-C", str(self.bare), "rev-list", STATE], capture_output=True, text=True, check=True
        )
        return tuple(said.stdout.split())

    def _store(self, machine: str, clock: Clock) -> GitRecordStore:
        git = Git(GitEnvironment(path=os.environ["PATH"], home=str(self._folder)))
        objects = ObjectStore(self._folder / machine, git=git, clock=clock, holder=machine)
        remote = remote_of(str(self.bare), base=self._folder)
        return GitRecordStore(objects, remote, ref=STATE, author=machine, clock=clock)


class InThread:
    """A RecordStore whose work is done elsewhere while everything here waits."""

    def __init__(self, store: GitRecordStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    async def read(self) -> Stored:
        return self._done(self._store.read())

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        return self._done(self._store.write(record, after=after, message=message, plan=plan))

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        return self._done(self._store.history(limit))

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def git_stores(folder: Path) -> Iterator[GitStores]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="git")
    thread.start()
    try:
        yield GitStores(folder, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
