"""Real repositories to read from and write to, made with plain git."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.repo.git import Git, GitEnvironment
from llmgw.controller.repo.objects import ObjectStore

START = datetime(2026, 11, 29, 12, 0, tzinfo=timezone.utc)
IDENTITY = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class Work:
    """A work tree that a person commits in."""

    path: Path

    def git(self, *arguments: str, stdin: bytes | None = None) -> str:
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", "-C", str(self.path), *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            env=IDENTITY,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def commit(self, files: Mapping[str, str | bytes], message: str = "Change") -> str:
        self.write(files)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


MakeWork = Callable[..., Work]


@pytest.fixture
def make_work(tmp_path: Path) -> MakeWork:
    def make(name: str = "fleet", *, branch: str = "main", bare: bool = False) -> Work:
        path = tmp_path / name
        path.mkdir()
        work = Work(path)
        work.git("init", "--quiet", f"--initial-branch={branch}", *(["--bare"] if bare else []))
        return work

    return make


@pytest.fixture
def work(make_work: MakeWork) -> Work:
    work = make_work()
    work.commit({"manifests/a.yaml": "a: 1\n"}, "First")
    return work


@pytest.fixture
def git(tmp_path: Path) -> Git:
    home = tmp_path / "home"
    home.mkdir()
    return Git(GitEnvironment(path=os.environ["PATH"], home=str(home)))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


MakeStore = Callable[..., ObjectStore]


@pytest.fixture
def make_objects(tmp_path: Path, git: Git, clock: FakeClock) -> MakeStore:
    def make(name: str = "state") -> ObjectStore:
        return ObjectStore(tmp_path / name, git=git, clock=clock, holder="ann@box")

    return make
