"""Refs of real repositories, watched through the real file system: what is told, what is not, and what ends the watching."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmgw.controller.serving.refs import Refs, repository_of

SOON = 20.0
"""Seconds for what is told at once; a busy machine may be late."""
NEVER = 0.5
"""Seconds in which what is not to be told would have been."""

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.org"))
    },
}


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def commit(folder: Path, text: str) -> None:
    git(folder, "commit", "--quiet", "--allow-empty", "-m", text)


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder, "first")
    return folder


@asynccontextmanager
async def watched(repository: Path, branch: str = "main") -> AsyncIterator[asyncio.Event]:
    """Returns when a first change is seen, so that the watching has begun for sure."""
    moved = asyncio.Event()
    found = repository_of(repository)
    assert found is not None
    task = asyncio.create_task(Refs(found, branch, moved).watch())
    beacon = found / "packed-refs"
    text = beacon.read_text() if beacon.exists() else ""
    async with asyncio.timeout(SOON):
        while not moved.is_set():
            beacon.write_text(text)
            await asyncio.sleep(0.05)
    if not text:
        beacon.unlink()
    await quiet(moved)
    try:
        yield moved
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def quiet(moved: asyncio.Event) -> None:
    """Until nothing more is told of what was done so far."""
    while True:
        moved.clear()
        await asyncio.sleep(NEVER)
        if not moved.is_set():
            return


async def told(moved: asyncio.Event) -> None:
    async with asyncio.timeout(SOON):
        await moved.wait()
    await quiet(moved)


def test_a_commit_in_a_work_tree_is_told(work_tree: Path) -> None:
    async def main() -> None:
        async with watched(work_tree) as moved:
            await asyncio.to_thread(commit, work_tree, "second")
            await told(moved)

    asyncio.run(main())


def test_a_push_to_a_bare_repository_is_told_and_also_that_refs_were_packed(
    work_tree: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.git"
    git(work_tree, "clone", "--quiet", "--bare", str(work_tree), str(bare))
    git(work_tree, "remote", "add", "bare", str(bare))
    commit(work_tree, "second")

    async def main() -> None:
        async with watched(bare) as moved:
            await asyncio.to_thread(git, work_tree, "push", "--quiet", "bare", "main")
            await told(moved)
            await asyncio.to_thread(git, bare, "pack-refs", "--all")
            await told(moved)

    asyncio.run(main())


def test_our_own_state_branch_and_other_branches_are_not_told(work_tree: Path) -> None:
    git(work_tree, "update-ref", "refs/heads/llmgw/state", "HEAD")
    commit(work_tree, "second")

    async def main() -> None:
        async with watched(work_tree) as moved:
            for ref in ("refs/heads/llmgw/state", "refs/heads/other", "refs/tags/v1"):
                await asyncio.to_thread(git, work_tree, "update-ref", ref, "HEAD")
            await asyncio.sleep(2 * NEVER)
            assert not moved.is_set()
            await asyncio.to_thread(commit, work_tree, "third")
            await told(moved)

    asyncio.run(main())


def test_a_repository_that_is_made_anew_ends_the_watching(work_tree: Path) -> None:
    async def main() -> None:
        found = repository_of(work_tree)
        assert found is not None
        moved = asyncio.Event()
        task = asyncio.create_task(Refs(found, "main", moved).watch())
        await asyncio.sleep(NEVER)
        shutil.move(found, work_tree / "away")
        git(work_tree, "init", "--quiet", "--initial-branch", "main")
        async with asyncio.timeout(SOON):
            await task
        assert moved.is_set()

    asyncio.run(main())


def test_linked_work_trees_and_bare_repositories_lead_to_the_folder_with_the_refs(
    work_tree: Path, tmp_path: Path
) -> None:
    linked = tmp_path / "linked"
    git(work_tree, "worktree", "add", "--quiet", "-b", "other", str(linked))
    bare = tmp_path / "bare.git"
    git(work_tree, "clone", "--quiet", "--bare", str(work_tree), str(bare))
    assert repository_of(work_tree) == work_tree / ".git"
    assert repository_of(linked) == work_tree / ".git"
    assert repository_of(bare) == bare
    assert repository_of(tmp_path) is None
