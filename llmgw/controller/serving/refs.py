"""A repository on this machine whose refs may have moved, as the file system tells it: only ever a reason to look.

What watching is known to miss: a push into a branch folder that is just being made, a repository that was moved away and
made anew, file systems that tell nothing. So whoever waits here looks by himself from time to time as well.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

from watchfiles import Change, awatch

from llmgw.controller.repo.mirror import Mirror
from llmgw.controller.serving.branch import Place
from llmgw.model.problems import RetryError

STEP = 10
"""Milliseconds without another change after which a change is told: a push writes several files."""
DEBOUNCE = 100
"""Milliseconds after which it is told in any case."""
TOGETHER = "packed-refs"
POINTER = 4096  # bytes of a file that says where the repository really is


def repository_of(local: Path) -> Path | None:
    """The folder that holds the refs of a work tree (also a linked one) or of a bare repository; None where there is none."""
    place = local / ".git" if (local / ".git").exists() else local
    if place.is_file():  # a linked work tree, or a submodule
        place = (local / _pointer(place).removeprefix("gitdir:").strip()).resolve()
    if (place / "commondir").is_file():
        place = (place / _pointer(place / "commondir")).resolve()
    return place if (place / "HEAD").is_file() else None


def _pointer(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as opened:
        return opened.read(POINTER).strip()


def place_of(mirror: Mirror) -> Place:
    """The mirror's branch, watched where its repository is on this machine."""
    local = mirror.remote.local
    if local is None:
        return Place(name=mirror.branch)

    async def watch(moved: asyncio.Event) -> None:
        """Until the repository is another one."""
        repository = repository_of(local)
        if repository is None:
            raise RetryError(f"watching {local}: it is no Git repository")
        await Refs(repository, await mirror.branch(), moved).watch()

    return Place(name=mirror.branch, watch=watch)


class Refs:
    """Sets ``moved`` when the branch, or all refs together, may have changed. ``branch`` is a short name."""

    def __init__(self, repository: Path, branch: str, moved: asyncio.Event) -> None:
        self._repository = repository
        self._branch = f"refs/heads/{branch}"
        self._moved = moved

    async def watch(self) -> None:
        """Until cancelled, or until the folder is another one: then it must be watched anew."""
        was = _identity(self._repository)
        async with asyncio.TaskGroup() as group:
            flat = group.create_task(self._told(self._repository, recursive=False))
            deep = [
                group.create_task(self._told(self._repository / name, recursive=True))
                for name in ("refs", "reftable")
                if (self._repository / name).is_dir()
            ]
            while _identity(self._repository) == was:  # noqa: ASYNC110 - nothing tells of a folder that was moved away
                await asyncio.sleep(1.0)
            for task in (flat, *deep):
                task.cancel()
        self._moved.set()

    async def _told(self, folder: Path, *, recursive: bool) -> None:
        changes: AsyncIterator[object] = awatch(
            folder,
            watch_filter=self._counts,
            debounce=DEBOUNCE,
            step=STEP,
            recursive=recursive,
            stop_event=None,
            ignore_permission_denied=True,
        )
        with suppress(FileNotFoundError):  # it was moved away before the watching began
            async with aclosing(changes) as told:  # type: ignore[type-var] # a generator; watchfiles says less
                async for _ in told:
                    self._moved.set()

    def _counts(self, change: Change, path: str) -> bool:  # noqa: ARG002 - watchfiles' signature
        """The branch itself or where it may be packed; never our own state branch, nor git's locks."""
        inside = path.removeprefix(f"{self._repository}/")
        return inside in (self._branch, TOGETHER) or inside.startswith("reftable/")


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
