"""Real processes under real shims: started, found again, ended, and nothing of them left."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.agent.seams import Order, Running
from llmgw.model.problems import StalledError
from llmgw.model.report import Exit
from tests.agent.shards.realnode import SHARD, RealNode, free_port, lives, shown, until

SLEEP = "import time; time.sleep(300)"
HIDE = """
import os, subprocess, sys, time
# One child in a session of its own, one orphaned twice over, one with an empty environment.
subprocess.Popen([sys.executable, "-I", "-S", "-c", {first!r}], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", {second!r}], {{}})
    os._exit(0)
os.wait()
subprocess.Popen(["env", "-i", sys.executable, "-I", "-S", "-c", {third!r}], start_new_session=True)
print("hidden", flush=True)
"""


def hide(node: RealNode) -> str:
    return HIDE.format(first=node.sleep(301), second=node.sleep(302), third=node.sleep(303))


def laid(order: Order) -> dict[str, str]:
    """The files that were laid below the home."""
    home = Path(order.directory)
    return {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}


def exit_of(found: Running | Exit | None) -> Exit:
    assert isinstance(found, Exit)
    return found


def running(found: Running | Exit | None) -> Running:
    assert isinstance(found, Running)
    return found


def pid_of(found: Running) -> int:
    assert found.engine is not None
    return found.engine.pid


def test_the_environment_is_exact_and_nothing_is_inherited(node: RealNode) -> None:
    code = """
import os, resource, signal
print(sorted(open("/proc/self/environ").read().rstrip(chr(0)).split(chr(0))))
print(sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")))
print(os.getcwd(), oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_CORE), os.getsid(0) == os.getpid())
print(open("/proc/self/oom_score_adj").read().strip(), [n for n in (1, 2, 13, 15) if signal.getsignal(n) == signal.SIG_IGN])
"""

    async def story() -> None:
        order = node.order(sys.executable, "-S", "-c", code, env={"PATH": "/usr/bin", "A": "1"})
        started = await node.start(order)
        assert (await node.spawner().exited(started, order.status_file)).code == 0
        env, descriptors, place, score = node.log().splitlines()
        names = {entry.partition("=")[0] for entry in eval(env)}
        assert names == {"PATH", "A", "SPT_NOENV", "LLMGW_SHARD", "LLMGW_AGENT"}
        assert f"LLMGW_SHARD={SHARD}" in env
        assert descriptors == "[]"
        assert place == f"{order.directory} 0o77 (0, 0) True"
        # Python itself ignores SIGPIPE (13); the rest is as a fresh process has it.
        assert score == "0 [13]"

    asyncio.run(story())


def test_files_and_modes(node: RealNode) -> None:
    async def story() -> None:
        order = node.python(SLEEP, files={"conf/engine.yaml": "key: s3cret\n"})
        await node.start(order)
        home = Path(order.directory)
        assert laid(order) == {"conf/engine.yaml": "key: s3cret\n"}
        expected = {
            home: 0o700,
            home.parent: 0o700,
            home / "conf/engine.yaml": 0o600,
            Path(order.log): 0o600,
            Path(order.log).parent: 0o700,
            Path(order.status_file): 0o600,
            Path(order.status_file).parent: 0o700,
        }
        assert {path: stat.S_IMODE(path.stat().st_mode) for path in expected} == expected

    asyncio.run(story())


def test_no_secret_stands_in_any_command_line_or_status(node: RealNode) -> None:
    async def story() -> None:
        started = await node.start(node.python(SLEEP, env={"KEY": "canary-5e1f"}, files={"k": "canary-5e1f"}))
        assert started.shim is not None
        for pid in (started.shim.pid, pid_of(started)):
            assert shown(pid, "cmdline")
            assert b"canary" not in shown(pid, "cmdline")
        assert b"canary" not in shown(started.shim.pid, "environ")
        assert "canary" not in node.status_text()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit(7)", (7, None)),
        ("import os; os.kill(os.getpid(), 11)", (None, 11)),
        ("pass", (0, None)),
    ],
)
def test_how_it_ended_is_known_though_nobody_watched(
    node: RealNode, code: str, expected: tuple[int | None, int | None]
) -> None:
    async def story() -> None:
        await node.start(node.python(code))
        later = node.spawner()

        async def ended() -> bool:
            return isinstance(await later.find(SHARD, "engine", node.status_file()), Exit)

        await until(ended)
        found = exit_of(await later.find(SHARD, "engine", node.status_file()))
        assert (found.code, found.signal) == expected

        async def nothing() -> bool:
            return not await later.remaining(SHARD)

        await until(nothing)  # the shim looks for what may be left, and ends

    asyncio.run(story())


def test_what_can_not_be_executed_is_said_and_leaves_nothing(node: RealNode) -> None:
    async def story() -> None:
        with pytest.raises(StalledError, match="executing /no/such/engine: No such file or directory"):
            await node.spawner().spawn(node.order("/no/such/engine"))

        async def nothing_left() -> bool:
            return not await node.spawner().remaining(SHARD)

        await until(nothing_left)  # the shim itself ends a moment after it has told
        found = exit_of(await node.spawner().find(SHARD, "engine", node.status_file()))
        assert "No such file" in found.detail

    asyncio.run(story())


def test_an_engine_whose_status_file_is_lost_is_found_by_what_its_order_says(node: RealNode) -> None:
    """It was taken for dead, and killed to be started again."""

    async def story() -> None:
        order = node.python(SLEEP)
        started = await node.spawner().spawn(order)
        Path(order.status_file).write_bytes(b"{")  # noqa: ASYNC240 - a test's few bytes
        later = node.spawner()
        assert running(await later.find(SHARD, "engine", order.status_file, known=started)) == started
        # From then on it is known twice again.
        assert running(await node.spawner().find(SHARD, "engine", order.status_file)) == started
        await later.signal(started, signal.SIGKILL)
        await later.exited(started, order.status_file)
        assert not isinstance(await later.find(SHARD, "engine", order.status_file, known=started), Running)

    asyncio.run(story())


def test_the_same_process_is_never_started_twice(node: RealNode) -> None:
    async def story() -> None:
        order = node.python(SLEEP)
        results = await asyncio.gather(
            *(node.spawner().spawn(order) for _ in range(4)), return_exceptions=True
        )
        started = [result for result in results if isinstance(result, Running)]
        assert len(started) == 1
        assert all(isinstance(r, StalledError) for r in results if not isinstance(r, Running))
        with pytest.raises(StalledError, match="it runs already"):
            await node.spawner().spawn(order)
        assert running(await node.spawner().find(SHARD, "engine", order.status_file)) == started[0]

    asyncio.run(story())


def shims_without_an_order(node: RealNode) -> list[int]:
    """Pids of those that have started nothing."""
    mark = f"LLMGW_SHIM={node.tag}/{SHARD}/engine".encode()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if lives(pid) and mark in shown(pid, "environ").split(b"\0")]


def test_a_shim_that_was_prepared_is_the_one_that_gets_the_order(node: RealNode) -> None:
    async def story() -> None:
        spawner = node.spawner()
        await spawner.prepare(SHARD, "engine")
        await spawner.prepare(SHARD, "engine")
        await until(lambda: len(shims_without_an_order(node)) == 1)
        [prepared] = shims_without_an_order(node)
        assert not Path(node.status_file()).exists()  # noqa: ASYNC240 - a look at a name
        started = await spawner.spawn(node.python(SLEEP))
        assert not lives(prepared), "it has detached itself"
        assert started.shim is not None
        assert shims_without_an_order(node) == [started.shim.pid]

    asyncio.run(story())


def test_a_shim_that_gets_no_order_leaves_nothing(node: RealNode) -> None:
    async def story() -> None:
        spawner = node.spawner()
        await spawner.prepare(SHARD, "engine")
        await until(lambda: shims_without_an_order(node))
        await spawner.dismiss(SHARD)
        await spawner.dismiss(SHARD)
        assert not shims_without_an_order(node)
        assert await spawner.find(SHARD, "engine", node.status_file()) is None
        assert not list(node.work.rglob("*"))
        assert isinstance(await spawner.spawn(node.python(SLEEP)), Running), "and does not stand in the way"

    asyncio.run(story())


def test_a_shim_that_waits_for_its_order_ends_with_its_agent(node: RealNode) -> None:
    agent = f"""
import asyncio
from pathlib import Path
from tests.agent.shards.realnode import SHARD, RealNode
async def main():
    await RealNode(work=Path({str(node.work)!r})).spawner().prepare(SHARD, "engine")
    print("prepared", flush=True)
    await asyncio.sleep(300)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", agent], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"prepared\n"
            asyncio.run(until(lambda: shims_without_an_order(node)))
        finally:
            child.kill()
    asyncio.run(until(lambda: not shims_without_an_order(node)))
    assert not list(node.work.rglob("*"))


def test_an_agent_killed_by_kill_9_leaves_the_engine_and_the_next_adopts_it(node: RealNode) -> None:
    agent = f"""
import asyncio, sys
from pathlib import Path
from tests.agent.shards.realnode import RealNode
async def main():
    node = RealNode(work=Path({str(node.work)!r}))
    print((await node.start(node.python({SLEEP!r}))).engine.pid, flush=True)
    await asyncio.sleep(300)
asyncio.run(main())
"""
    child = subprocess.Popen(
        [sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    try:
        pid = int(child.stdout.readline())
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()

    async def story() -> None:
        spawner = node.spawner()
        found = running(await spawner.find(SHARD, "engine", node.status_file()))
        assert pid_of(found) == pid
        assert found.shim is not None
        watch = asyncio.ensure_future(spawner.exited(found, node.status_file()))
        await asyncio.sleep(0.05)
        assert not watch.done()
        await spawner.signal(found, signal.SIGTERM)
        assert (await asyncio.wait_for(watch, 10)).signal == signal.SIGTERM

    asyncio.run(story())


def test_children_that_hide_are_killed_when_their_engine_ends(node: RealNode) -> None:
    async def story() -> None:
        started = await node.start(node.python(hide(node) + "sys.exit(3)"))
        spawner = node.spawner()
        assert (await spawner.exited(started, node.status_file())).code == 3

        async def nothing() -> bool:
            return not await spawner.remaining(SHARD)

        await until(nothing)
        assert not node.sleepers()

    asyncio.run(story())


def test_children_that_hide_are_found_and_killed_even_without_the_shim(node: RealNode) -> None:
    if node.spawner().control_group is None:
        pytest.skip(
            "needs a place in a version 2 control group: what has left its session and environment leaves no other trace"
        )

    async def story() -> None:
        started = await node.start(node.python(hide(node) + "time.sleep(300)"))
        spawner = node.spawner()
        await until(lambda: "hidden" in node.log())
        await until(lambda: len(node.sleepers()) == 3)
        assert started.shim is not None
        os.kill(started.shim.pid, signal.SIGKILL)
        os.kill(pid_of(started), signal.SIGKILL)
        assert (await spawner.exited(started, node.status_file())).detail
        assert set(node.sleepers()) <= set(await spawner.remaining(SHARD))
        await spawner.kill_remaining(SHARD)

        async def nothing() -> bool:
            return not await spawner.remaining(SHARD)

        await until(nothing)
        assert not node.sleepers()

    asyncio.run(story())


def test_without_control_groups_sessions_and_markers_find_what_is_left(node: RealNode) -> None:
    node.control_groups = False
    code = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-I", "-S", "-c", {node.sleep(301)!r}])
subprocess.Popen([sys.executable, "-I", "-S", "-c", {node.sleep(302)!r}], start_new_session=True)
print("hidden", flush=True)
time.sleep(300)
"""

    async def story() -> None:
        started = await node.start(node.python(code))
        await until(lambda: "hidden" in node.log())
        await until(lambda: len(node.sleepers()) == 2)
        assert started.shim is not None
        os.kill(started.shim.pid, signal.SIGKILL)
        os.kill(pid_of(started), signal.SIGKILL)
        spawner = node.spawner()
        await spawner.exited(started, node.status_file())
        assert set(await spawner.remaining(SHARD)) == set(node.sleepers())
        await spawner.kill_remaining(SHARD)
        await until(lambda: not node.sleepers())

    asyncio.run(story())


def test_a_shim_ignores_what_would_end_it(node: RealNode) -> None:
    async def story() -> None:
        started = await node.start(node.python(SLEEP))
        assert started.shim is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(started.shim.pid, number)
        await asyncio.sleep(0.1)
        assert lives(started.shim.pid)
        assert lives(pid_of(started))

    asyncio.run(story())


def test_a_foreign_process_is_never_ours(node: RealNode) -> None:
    stranger = subprocess.Popen(["sleep", "300"], env={"LLMGW_SHARD": SHARD}, start_new_session=True)

    async def story() -> None:
        await node.start(node.python(SLEEP))
        spawner = node.spawner()
        assert await spawner.owner(stranger.pid) is None
        assert stranger.pid not in await spawner.remaining(SHARD)
        await spawner.kill_remaining(SHARD)
        assert lives(stranger.pid)

    try:
        asyncio.run(story())
    finally:
        stranger.kill()
        stranger.wait()


def test_another_agents_shard_of_the_same_name_is_foreign(node: RealNode, tmp_path: Path) -> None:
    other = RealNode(work=tmp_path / "another")
    other.work.mkdir()

    async def story() -> None:
        started = await other.start(other.python(SLEEP))
        spawner = node.spawner()
        assert not await spawner.remaining(SHARD)
        assert await spawner.owner(pid_of(started)) is None
        await spawner.kill_remaining(SHARD)
        assert lives(pid_of(started))

    try:
        asyncio.run(story())
    finally:
        other.end_all()


def test_a_number_that_was_taken_over_by_another_process_is_not_the_engine(node: RealNode) -> None:
    async def story() -> None:
        started = await node.start(node.python(SLEEP))
        assert started.engine is not None
        text = node.status_text()
        node.set_status_text(text.replace(f'"start": {started.engine.start}', '"start": 1'))
        found = await node.spawner().find(SHARD, "engine", node.status_file())
        assert not isinstance(found, Running)
        node.set_status_text(text)

    asyncio.run(story())


def test_a_status_of_an_earlier_boot_means_that_nothing_runs(node: RealNode) -> None:
    async def story() -> None:
        started = await node.start(node.python(SLEEP))
        spawner = node.spawner()
        text = node.status_text()
        node.set_status_text(text.replace(spawner.boot_id, "another-boot"))
        assert not isinstance(await spawner.find(SHARD, "engine", node.status_file()), Running)
        node.set_status_text(text)
        assert running(await spawner.find(SHARD, "engine", node.status_file())).engine == started.engine

    asyncio.run(story())


def test_a_listener_is_named_with_its_shard_also_when_a_child_listens(node: RealNode) -> None:
    port = free_port()
    code = f"""
import os, socket, time
if os.fork() == 0:
    s = socket.socket(); s.bind(("127.0.0.1", {port})); s.listen()
    print("listening", flush=True)
time.sleep(300)
"""

    async def story() -> None:
        spawner = node.spawner()
        assert await spawner.listener(port) is None
        started = await node.start(node.python(code))
        await until(lambda: "listening" in node.log())
        found = await spawner.listener(port)
        assert found is not None
        assert found[1] == SHARD
        assert found[0] != pid_of(started)

    asyncio.run(story())


def test_a_listener_is_named_with_its_shard_though_its_status_file_is_broken(node: RealNode) -> None:
    """It was taken for a stranger's, and the shard never became ready again."""
    port = free_port()
    code = f"""
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", {port})); s.listen()
print("listening", flush=True)
time.sleep(300)
"""

    async def story() -> None:
        node.control_groups = False
        order = node.python(code)
        started = await node.start(order)
        await until(lambda: "listening" in node.log())
        Path(order.status_file).write_bytes(b"{")  # noqa: ASYNC240 - a test's few bytes
        assert await node.spawner().listener(port) == (pid_of(started), SHARD)

    asyncio.run(story())
