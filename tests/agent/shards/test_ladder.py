"""Each proof of what belongs to a shard, alone: a process that has shed every other one is still found and killed; one
that has shed them all is not taken for ours."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from llmgw.agent.shards import proc, traces
from llmgw.agent.shards.belongings import Belongings
from tests.agent.shards.realnode import SHARD, RealNode, lives, until

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root may give its engines a group of their own")

HIDER = """
import os, sys
# Twice orphaned, so that neither a parent nor a waiting shim leads to it. Then it sheds what it is told to.
keep = set({keep!r})
if os.fork() == 0:
    if "session" not in keep:
        os.setsid()
    if os.fork():
        os._exit(0)
    if "group" not in keep and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(0, 0, 0)
    if "log" not in keep:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
    env = dict(os.environ) if "marker" in keep else {{}}
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", {sleep!r}], env)
os.wait()
import time
time.sleep(300)
"""


async def hidden(node: RealNode, *keep: str) -> int:
    """Pid of a process that shows these traces only, after its engine and its shim were killed."""
    started = await node.start(node.python(HIDER.format(keep=keep, sleep=node.sleep(301))))
    await until(lambda: len(node.sleepers()) == 1)
    [pid] = node.sleepers()
    assert started.shim is not None
    assert started.engine is not None
    os.kill(started.shim.pid, signal.SIGKILL)
    os.kill(started.engine.pid, signal.SIGKILL)
    await node.spawner().exited(started, node.status_file())
    return pid


def test_only_of_a_shard_that_was_never_started_here_it_is_sure_that_nothing_is_left(node: RealNode) -> None:
    async def story() -> None:
        assert not await node.spawner().used(SHARD)
        started = await node.start(node.order("/bin/true"))
        spawner = node.spawner()
        assert await spawner.used(SHARD)
        await spawner.exited(started, node.status_file())
        logs = node.work / "logs" / SHARD
        shutil.rmtree(logs)
        assert await spawner.used(SHARD), "its status stands"
        shutil.rmtree(node.work / "status")
        logs.mkdir()
        assert await spawner.used(SHARD), "its log's folder stands"

    asyncio.run(story())


def found_and_killed(node: RealNode, *keep: str) -> None:
    async def story() -> None:
        pid = await hidden(node, *keep)
        spawner = node.spawner()
        assert await spawner.remaining(SHARD) == (pid,)
        assert await spawner.owner(pid) == SHARD
        assert await spawner.strays(frozenset()) == (SHARD,)
        assert await spawner.strays(frozenset({SHARD})) == ()
        await spawner.kill_remaining(SHARD)
        await until(lambda: not lives(pid))
        assert await spawner.remaining(SHARD) == ()

    asyncio.run(story())


def test_the_control_group_alone_is_proof(node: RealNode) -> None:
    if node.spawner().control_group is None:
        pytest.skip("there is no version 2 control group to write to")
    found_and_killed(node)


@pytest.mark.parametrize("trace", ["session", pytest.param("group", marks=needs_root), "marker", "log"])
def test_without_control_groups_each_other_trace_alone_is_proof(node: RealNode, trace: str) -> None:
    if trace == "session" and not ROOT:
        pytest.skip("a wiped environment is one that can be read")
    node.control_groups = False
    found_and_killed(node, trace)


@needs_root
def test_what_has_shed_every_trace_is_foreign_and_never_touched(node: RealNode) -> None:
    node.control_groups = False

    async def story() -> None:
        pid = await hidden(node)
        spawner = node.spawner()
        try:
            assert await spawner.remaining(SHARD) == ()
            assert await spawner.owner(pid) is None
            await spawner.kill_remaining(SHARD)
            assert lives(pid)
        finally:
            os.kill(pid, signal.SIGKILL)

    asyncio.run(story())


def test_reading_a_log_or_writing_into_it_otherwise_is_no_proof(node: RealNode) -> None:
    """A person's ``tail -f`` and editor are not ours."""
    node.control_groups = False

    async def story() -> None:
        await node.start(node.python("print('hello', flush=True)"))
        await until(lambda: "hello" in node.log())
        path = node.work / "logs" / SHARD / "engine.log"
        with path.open("rb") as read, path.open("r+b") as write:
            tail = await asyncio.create_subprocess_exec(
                sys.executable, "-c", node.sleep(301), stdin=read, stdout=write
            )
        try:
            assert await node.spawner().owner(tail.pid) is None
        finally:
            tail.kill()
            await tail.wait()

    asyncio.run(story())


def test_a_group_id_is_a_shards_own(node: RealNode) -> None:
    one, other = traces.group_of("tag", "a"), traces.group_of("tag", "b")
    assert one != other != traces.group_of("tag2", "b")
    assert traces.FIRST_GROUP <= one < traces.FIRST_GROUP + traces.GROUPS < 2**31
    assert proc.real_group(os.getpid()) == os.getgid()
    assert proc.real_group(2**30) is None


def test_shards_whose_group_ids_fall_together_have_none(tmp_path: Path) -> None:
    """There are 67 million; still, a wrong one would end a healthy engine."""
    seen: dict[int, str] = {}
    for number in range(10**6):
        name = f"chat-{number:08x}-0.1-r0"
        twin = seen.setdefault(traces.group_of("tag", name), name)
        if twin != name:
            break
    else:
        pytest.fail("no two of a million fall together")
    belongings = Belongings(
        status_folder=tmp_path / "status", log_folder=tmp_path / "logs", place=None, tag="tag", boot_id="boot"
    )
    (tmp_path / "logs" / name).mkdir(parents=True)
    assert belongings.group(name) == traces.group_of("tag", name)
    (tmp_path / "logs" / twin).mkdir()
    assert belongings.group(name) is None
    assert belongings.group(twin) is None
    assert belongings.group(SHARD) == traces.group_of("tag", SHARD)


@needs_root
def test_what_a_dead_shard_leaves_in_shared_memory_is_removed_and_nothing_else(node: RealNode) -> None:
    foreign = tempfile.NamedTemporaryFile(dir=traces.SHARED_MEMORY, prefix="llmgw-test-")  # noqa: SIM115 - see finally
    name = Path(foreign.name).name
    code = f"""
import os, time
with open("/dev/shm/{name}-left", "wb") as file:
    file.write(b"x" * 8192)
os.mkdir("/dev/shm/{name}-folder")
open("/dev/shm/{name}-folder/inside", "w").close()
os.symlink("{foreign.name}", "/dev/shm/{name}-link")
print("left", flush=True)
time.sleep(300)
"""

    def left() -> set[str]:
        return {path.name for path in traces.SHARED_MEMORY.glob(f"{name}*")}

    async def story() -> None:
        spawner = node.spawner()
        started = await spawner.spawn(node.python(code))
        await until(lambda: "left" in node.log())
        assert await spawner.remaining(SHARD)
        assert len(left()) == 4, "as long as it lives"
        await spawner.signal(started, signal.SIGKILL)

        async def nothing() -> bool:
            return not await spawner.remaining(SHARD)

        await until(nothing)
        assert left() == {name}

    try:
        asyncio.run(story())
    finally:
        foreign.close()


def test_a_stray_job_is_no_shard(node: RealNode) -> None:
    """Jobs run under shims too: they are not this folder's to kill."""
    node.control_groups = False

    async def story() -> None:
        await node.spawner().spawn(
            node.order(sys.executable, "-c", node.sleep(301), shard="fetch-abababab", process="job")
        )
        await until(lambda: len(node.sleepers()) == 1)
        assert await node.spawner().strays(frozenset()) == ()

    asyncio.run(story())


def test_survivors_are_described_with_what_they_are_at(node: RealNode) -> None:
    """A parent in vfork waits uninterruptibly for its child."""
    code = "import ctypes, os, time\npid = ctypes.CDLL(None).vfork()\nif pid == 0:\n    time.sleep(300)\n"

    async def story() -> None:
        started = await node.start(node.python(code))
        assert started.engine is not None
        pid = started.engine.pid
        await until(lambda: (one := proc.stat(pid)) is not None and one.state == "D")
        told = await node.spawner().describe((pid, 2**30))
        assert f"pid {pid} (python" in told
        assert "uninterruptible wait" in told
        assert f"pid {2**30} (gone)" in told

    asyncio.run(story())


def test_a_shim_is_spared_for_its_last_word_unless_its_time_is_over(node: RealNode) -> None:
    async def story() -> None:
        started = await node.start(node.python(node.sleep(301)))
        assert started.shim is not None
        spawner = node.spawner()
        await spawner.kill_remaining(SHARD)
        assert (await spawner.exited(started, node.status_file())).signal == signal.SIGKILL
        first = started.shim.pid
        await until(lambda: not lives(first))
        again = await node.start(node.python(node.sleep(302)))
        await spawner.kill_remaining(SHARD, shims=True)
        await spawner.exited(again, node.status_file())
        assert again.shim is not None
        shim = again.shim.pid
        await until(lambda: not lives(shim))

    asyncio.run(story())
