"""Our own bare repository below the state directory, and the one lock under which it changes.

No work tree and no index, so no filters, no symlinks on disk and nothing half checked out. Git's children share the lock, so a
``*.lock`` of git found by the next holder belongs to nobody.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from llmgw.clock import Clock
from llmgw.controller.repo.failures import GitError, explained
from llmgw.controller.repo.git import Git, How, Said
from llmgw.controller.repo.locks import FileLock
from llmgw.model.problems import HeldError, RetryError, StalledError

LOCK_WAIT = 120.0  # seconds to wait for another llmgw that is fetching into the same mirror
_TIDY_ABOVE = 4000  # loose objects, from which on reading them one by one is felt
_TIDY_PACKS = 40


class Bare:
    """``mirror.git`` in a state directory."""

    def __init__(self, directory: Path, *, git: Git, clock: Clock, holder: str) -> None:
        self.path = directory / "mirror.git"
        self.git = git
        self._directory = directory
        self._lock = FileLock(
            directory / "mirror.lock", clock=clock, holder=holder, what="bringing commits into the mirror"
        )

    async def run(
        self, *arguments: str, doing: str, stdin: bytes | None = None, how: How | None = None
    ) -> Said:
        """Git in the mirror. Only what :meth:`writing` encloses may change it."""
        return await self.git.run(*arguments, doing=doing, directory=self.path, stdin=stdin, how=how or How())

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[tuple[int, ...]]:
        """The mirror is there, nobody else changes it, and no lock of a killed git is left. Gives the descriptors
        that git must inherit (``How.keep_open``)."""
        try:
            async with self._lock.held(timeout=LOCK_WAIT) as descriptor:
                await self._prepare((descriptor,))
                yield (descriptor,)
        except HeldError as held:
            raise RetryError(str(held)) from held

    async def _prepare(self, keep: tuple[int, ...]) -> None:
        if not (self.path / "HEAD").exists():
            await self.create(keep)
        for stale in _leftovers(self.path):
            with suppress(OSError):
                stale.unlink()

    async def create(self, keep: tuple[int, ...]) -> None:
        """A new and empty one. Made beside and moved into place: a mirror is there whole or not at all."""
        fresh = self._directory / "mirror.new"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            await self.git.run(
                "init",
                "--bare",
                "--quiet",
                "--template=",
                "--",
                str(fresh),
                doing=f"making the mirror {self.path}",
                how=How(keep_open=keep),
            )
            fresh.chmod(0o700)
            fresh.rename(self.path)
        except GitError as wrong:
            raise explained(wrong) from wrong
        except OSError as wrong:
            raise StalledError(
                f"making the mirror {self.path}: {wrong.strerror or wrong}: make room or give the right to write "
                "there, or choose another stateDir"
            ) from wrong

    async def tidy(self, keep: tuple[int, ...], *, timeout: float) -> None:
        """Packs what has become many pieces."""
        said = await self.run(
            "count-objects", "-v", doing="counting the mirror's objects", how=How(keep_open=keep)
        )
        counts = dict(line.split(": ", 1) for line in said.text.splitlines() if ": " in line)
        if int(counts.get("count", 0)) > _TIDY_ABOVE or int(counts.get("packs", 0)) > _TIDY_PACKS:
            with suppress(GitError):  # housekeeping: what it could not do now it does the next time
                await self.run(
                    "gc",
                    "--quiet",
                    doing="packing the mirror",
                    how=How(timeout=timeout, keep_open=keep),
                )


def _leftovers(repository: Path) -> tuple[Path, ...]:
    """What killed gits leave behind. Called under the lock only: nobody alive owns any of it."""
    top = [*repository.glob("*.lock"), repository / "gc.pid"]
    packs = repository / "objects" / "pack"
    return (
        *(path for path in top if path.exists()),
        *repository.glob("refs/**/*.lock"),
        *packs.glob("tmp_*"),
        *packs.glob("*.lock"),
        *packs.glob("*.keep"),
        *repository.glob("fast_import_crash_*"),
    )
