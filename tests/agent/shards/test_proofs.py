"""Small parts that proofs of ownership rest on."""

import asyncio
import os
import socket
import subprocess
from pathlib import Path

from llmgw.agent.seams import ProcessId
from llmgw.agent.shards import cgroups, listeners, proc, statusfiles
from llmgw.agent.shards.checks import SystemChecks
from tests.agent.shards.realnode import until


def test_the_version_2_mount_is_found_wherever_it_is() -> None:
    hybrid = (
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
    )
    assert cgroups.mount(hybrid) == Path("/sys/fs/cgroup/unified")
    assert cgroups.mount("30 23 0:26 / /odd\\040place rw - cgroup2 none rw\n") == Path("/odd place")
    assert cgroups.mount("30 23 0:26 / / rw - ext4 /dev/sda rw\n") is None


def test_a_processes_name_can_not_disturb_the_reading(tmp_path: Path) -> None:
    evil = tmp_path / "a) R 1 (b"
    evil.symlink_to("/bin/sleep")
    with subprocess.Popen([str(evil), "60"]) as process:
        try:
            found = proc.stat(process.pid)
            assert found is not None
            assert found.parent == os.getpid()
            assert proc.alive(ProcessId(boot_id="b", pid=process.pid, start=found.start), "b")
            assert not proc.alive(ProcessId(boot_id="b", pid=process.pid, start=found.start + 1), "b")
            assert not proc.alive(ProcessId(boot_id="b", pid=process.pid, start=found.start), "later")
        finally:
            process.kill()


def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen(["true"])
    try:

        async def story() -> None:
            await until(lambda: (found := proc.stat(process.pid)) is not None and found.gone)

        asyncio.run(story())
        assert process.pid not in proc.living()
    finally:
        process.wait()


def test_the_kernels_own_threads_are_nobodys_process() -> None:
    parts = ["1", "(kworker/0:1)", "I", "2", "0", "0", "0", "-1", "2129984", *["0"] * 40]
    told = proc.parse(1, " ".join(parts).encode())
    assert told is not None
    assert told.kernel
    own = proc.stat(os.getpid())
    assert own is not None
    assert not own.kernel


def test_a_mark_is_a_whole_entry_of_the_environment() -> None:
    with subprocess.Popen(["sleep", "60"], env={"A": "1", "AB": "12", "C": ""}) as process:
        try:

            async def story() -> None:
                await until(lambda: proc.has_all(process.pid, (b"A=1", b"AB=12", b"C=")))

            asyncio.run(story())
            for other in (b"B=12", b"A=", b"AB=1", b"=1", b"D="):
                assert not proc.has_all(process.pid, (b"A=1", other))
        finally:
            process.kill()
    assert not proc.has_all(process.pid, (b"A=1",))


def test_listening_sockets_are_found_with_their_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        inodes = listeners.sockets(port)
        assert inodes
        assert listeners.holders(inodes, [os.getpid(), 1]) == [os.getpid()]
    assert not listeners.sockets(port)


def test_a_status_that_is_no_status_is_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"bootId": 1}', "\0" * 100, "[" * 60_000):
        path = tmp_path / "s.engine.json"
        path.write_text(text)
        assert statusfiles.read(path) is None
    assert statusfiles.read(tmp_path / "none.engine.json") is None


async def _checks(port: int, tmp_path: Path) -> None:
    checks = SystemChecks(infiniband=tmp_path)
    assert "127.0.0.1" in await checks.addresses()
    assert not await checks.port_free("127.0.0.1", port)
    assert await checks.path_exists("/")
    assert not await checks.path_exists("/no/such")
    assert await checks.memory_total() > 0
    assert await checks.gid("mlx5_0", 1, 3) == "0000:0000:0000:0000:0000:ffff:0a00:0001"
    assert await checks.gid("mlx5_0", 1, 4) is None


def test_the_node_is_asked_what_it_is(tmp_path: Path) -> None:
    gids = tmp_path / "mlx5_0/ports/1/gids"
    gids.mkdir(parents=True)
    (gids / "3").write_text("0000:0000:0000:0000:0000:ffff:0a00:0001\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        asyncio.run(_checks(server.getsockname()[1], tmp_path))
