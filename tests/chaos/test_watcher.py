"""The watcher finds what it watches for, on processes of this machine; a check that can't fail proves nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.chaos.excuses import Excuses
from tests.chaos.seen import Eyes, Seen
from tests.chaos.story import Story
from tests.chaos.watcher import Watcher

ONE, OTHER = "chat-1f0c9a2b-0.1-r0", "chat-1f0c9a2b-1.1-r0"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Named as an engine is."""
    path = tmp_path / "bin" / "sim-engine"
    path.parent.mkdir()
    path.write_text("import sys, time\nprint('up', flush=True)\ntime.sleep(600)\n")
    return path


@contextmanager
def engine(program: Path, shard: str, *words: str, gpus: str = "") -> Iterator["subprocess.Popen[str]"]:
    env = {"LLMGW_SHARD": shard, "CUDA_VISIBLE_DEVICES": gpus}
    command = [sys.executable, str(program), *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "up\n"
            yield running
        finally:
            running.kill()


class Here:
    """The machine itself, taken for one host; only what the test has started counts there."""

    def __init__(self) -> None:
        self.excuses = Excuses()
        eyes = Eyes({Path("/proc/self/ns/net").stat().st_ino: "here"})
        self.watcher = Watcher(lambda: ours(eyes), self.excuses, Story(), settled=0)
        self.watcher.look()

    def broken(self) -> list[str]:
        self.watcher.look()
        return self.watcher.broken


@pytest.fixture
def here() -> Here:
    return Here()


def ours(eyes: Eyes) -> list[Seen]:
    return [one for one in eyes.look() if _parent(one.pid) == os.getpid()]


def _parent(pid: int) -> int | None:
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None  # another test's, that ended meanwhile


def test_two_shards_on_one_gpu_are_found(here: Here, program: Path) -> None:
    with engine(program, ONE, gpus="0"), engine(program, OTHER, gpus="1,2"):
        assert here.broken() == []
        with engine(program, "talk-1f0c9a2b-0.1-r0", gpus="2"):
            (told,) = here.broken()
    assert told.startswith("here: GPU 2 is held twice: ")


def test_two_shards_on_one_port_are_found(here: Here, program: Path) -> None:
    words = ("--host", "10.0.0.1", "--port")
    with engine(program, ONE, *words, "18000"), engine(program, OTHER, *words, "18001"):
        assert here.broken() == []
        with engine(program, "talk-1f0c9a2b-0.1-r0", *words, "18001"):
            (told,) = here.broken()
    assert told.startswith("here: port 10.0.0.1:18001 is held twice: ")


def test_a_shard_that_was_started_twice_is_found_and_one_after_the_other_is_none(
    here: Here, program: Path
) -> None:
    with engine(program, ONE, gpus="0") as first:
        assert here.broken() == []
        here.excuses.note("the test", host="here", shard=ONE)
        first.kill()
        first.wait()
        with engine(program, ONE, gpus="0"):
            assert here.broken() == []
            with engine(program, ONE):
                (told,) = here.broken()
    assert told.startswith(f"here: {ONE} engine is held twice: ")


def test_a_job_may_end_however_long_it_has_taken(here: Here, program: Path) -> None:
    """On a busy machine an install takes longer than an engine needs to settle."""
    with engine(program, "install-424eee67") as job:
        assert here.broken() == []
        job.kill()
        job.wait()
        assert here.broken() == []


def test_an_engine_that_ends_for_no_reason_is_found_and_a_victim_is_excused(
    here: Here, program: Path
) -> None:
    with engine(program, ONE) as victim, engine(program, OTHER) as other:
        assert here.broken() == []
        here.excuses.note("kill it", host="here", shard=ONE)
        for one in (victim, other):
            one.kill()
            one.wait()
        (told,) = here.broken()
    assert told == f"{OTHER} engine on here (pid {other.pid}) has ended, and nobody had done anything to it"


def test_what_was_done_before_an_engine_began_excuses_nothing(here: Here, program: Path) -> None:
    here.excuses.note("too early", host="here", shard=ONE)
    here.excuses.note("too early", host="here")
    with engine(program, ONE) as running:
        assert here.broken() == []
        running.kill()
        running.wait()
        assert len(here.broken()) == 1


def test_the_other_ranks_of_a_victims_replica_may_end_and_other_replicas_may_not(
    here: Here, program: Path
) -> None:
    rank = "gang-1f0c9a2b-0.1-r1"
    with engine(program, rank) as mate, engine(program, "gang-1f0c9a2b-0.2-r1") as other:
        assert here.broken() == []
        here.excuses.note("kill rank 0", host="there", shard="gang-1f0c9a2b-0.1-r0")
        mate.kill()
        mate.wait()
        assert here.broken() == []
        other.kill()
        other.wait()
        assert len(here.broken()) == 1


def test_what_an_engine_forks_is_the_engine(here: Here, program: Path) -> None:
    program.write_text("import os, time\nif os.fork():\n    print('up', flush=True)\ntime.sleep(600)\n")
    eyes = Eyes({Path("/proc/self/ns/net").stat().st_ino: "here"})
    with engine(program, ONE, gpus="0") as running:
        family = {running.pid, *(child.pid for child in psutil.Process(running.pid).children())}
        assert len(family) == 2
        watcher = Watcher(lambda: [one for one in eyes.look() if one.pid in family], Excuses(), Story())
        watcher.look()
        (only,) = watcher.instances().values()
        assert set(only.members) == family
        assert watcher.broken == []
        for pid in family:
            os.kill(pid, signal.SIGKILL)


def test_an_engine_that_hid_before_anybody_looked_is_known_by_its_shim(program: Path) -> None:
    program.write_text(
        "import subprocess, sys\n"
        "hidden = [sys.executable, '-c', 'print(\"up\", flush=True); import time; time.sleep(600)']\n"
        "subprocess.run(hidden, env={})\n"
    )
    eyes = Eyes({Path("/proc/self/ns/net").stat().st_ino: "here"})
    shim = {"LLMGW_SHIM": f"tag/{ONE}/engine"}
    with subprocess.Popen(
        [sys.executable, str(program)], env=shim, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "up\n"
            (hidden,) = psutil.Process(running.pid).children()
            assert [one.shard for one in eyes.look() if one.pid == hidden.pid] == [ONE]
            hidden.kill()
        finally:
            running.kill()
