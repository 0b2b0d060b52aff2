"""The real agent as a process: alone in its directory, private, quick to end, and its engines outlive it."""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgw.agent.dialing import dial
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import ShardId
from llmgw.model.problems import AgentError, NoAgentError, StalledError
from llmgw.wire.messages import (
    FENCED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MAX_LINE,
    PARSE_ERROR,
    PROTOCOL,
    WRONG_FLEET,
    Accepted,
    CancelParams,
    InstallParams,
    LogLine,
    LogsParams,
    StopParams,
    WatchEvent,
    WatchParams,
)
from tests.agent.agents import FLEET, command, install_spec, until
from tests.agent.processes import Machine, engine_spec, free_port, on_machine

pytestmark = pytest.mark.slow


class Raw:
    """A client that may say anything."""

    def __init__(self, work: Path) -> None:
        self.socket = dial(work)
        self.socket.settimeout(20)

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, params: dict[str, Any], number: int = 1) -> dict[str, Any]:
        line = json.dumps({"jsonrpc": "2.0", "method": method, "id": number, "params": params})
        self.send(line.encode() + b"\n")
        return self.answer()

    def hello(self, fleet: str | None = FLEET) -> dict[str, Any]:
        return self.ask("hello", {"protocol": PROTOCOL, "toolVersion": "1", "fleet": fleet})

    def answer(self) -> dict[str, Any]:
        data = b""
        while not data.endswith(b"\n"):
            part = self.socket.recv(65536)
            if not part:
                raise EOFError
            data += part
        found: dict[str, Any] = json.loads(data)
        return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_engine_outlives_kill_minus_nine_of_its_agent_and_is_adopted_with_its_pid(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, engine_spec(free_port()))
        before = await machine.shard_when(node, lambda shard: shard.state == "ready")
        first_agent = machine.holder(node).pid
        machine.kill_agent(node)
        with pytest.raises(NoAgentError):
            await machine.transport.connect(node, fleet=FLEET)
        await machine.transport.bootstrap(node, fleet=FLEET)
        assert machine.holder(node).pid != first_agent
        seen = await machine.report(node)
        assert [shard.pid for shard in seen.shards] == [before.pid]  # claimed before the first report
        after = await machine.shard_when(node, lambda shard: shard.state == "ready")
        assert (after.pid, after.started) == (before.pid, before.started)
        journal = (await machine.report(node)).journal
        assert len([entry for entry in journal if entry.kind == "agent-started"]) == 2
        as_root = [entry.text for entry in journal if entry.kind == "engine-user"]
        assert all("engines run as root" in text for text in as_root)
        assert len(as_root) == (2 if os.geteuid() == 0 else 0), "never silently"
        await machine.stop(node, after.shard)
        await machine.shard_when(node, lambda shard: shard.state == "stopped")
        assert before.pid is not None
        assert not psutil.pid_exists(before.pid)

    on_machine(tmp_path, main)


def test_a_clean_end_waits_for_no_stream_that_is_open(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, engine_spec(free_port()))
        shard = await machine.shard_when(node, lambda shard: shard.state == "ready")
        async with machine.link(node) as link:
            follow = LogsParams(shard=shard.shard, follow=True)
            streams = [
                asyncio.ensure_future(_drain(link.stream("watch", WatchParams(), WatchEvent))),
                asyncio.ensure_future(_drain(link.stream("logs", follow, LogLine))),
            ]
            with closing(Raw(machine.work(node))) as stuck:
                stuck.hello()
                pid = machine.holder(node).pid
                os.kill(pid, signal.SIGTERM)
                await until(lambda: _ended(pid))
            ends = await asyncio.gather(*streams, return_exceptions=True)
            assert all(isinstance(end, Exception) for end in ends)
        assert shard.pid is not None
        assert psutil.pid_exists(shard.pid)

    on_machine(tmp_path, main)


HANGING = "#include <unistd.h>\nint nvmlInit_v2(void) { for (;;) pause(); }\n"


def test_an_end_takes_two_seconds_at_most_while_a_driver_hangs_and_streams_are_open(tmp_path: Path) -> None:
    """A call into a driver may hang for good: it is a child's, and the child ends with its agent."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc builds the driver that hangs")
    library = tmp_path / "lib" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)],
        input=HANGING,
        text=True,
        check=True,
    )

    async def main(machine: Machine) -> None:
        node = machine.node(env={"LD_LIBRARY_PATH": str(library.parent)})
        await machine.transport.bootstrap(node, fleet=FLEET)
        pid = machine.holder(node).pid
        agent = psutil.Process(pid)
        children: list[psutil.Process] = []

        def hangs() -> bool:
            children[:] = [child for child in agent.children(recursive=True) if library.name in _maps(child)]
            return bool(children)

        async def look() -> None:
            while True:
                await machine.report(node)  # asks for a look now; one that hangs is given up after a while
                await asyncio.sleep(0.1)

        looking = asyncio.ensure_future(look())
        await until(hangs)
        async with machine.link(node) as link:
            stream = asyncio.ensure_future(_drain(link.stream("watch", WatchParams(), WatchEvent)))
            loop = asyncio.get_running_loop()
            begun = loop.time()
            os.kill(pid, signal.SIGTERM)
            await until(lambda: _ended(pid))
            # Two, and what a machine that does much else takes; the driver and the stream would hold it for good.
            assert loop.time() - begun < 15
            await asyncio.gather(stream, looking, return_exceptions=True)
        await until(lambda: not any(child.is_running() for child in children))

    on_machine(tmp_path, main)


def _maps(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return ""


def test_an_end_takes_two_seconds_at_most_while_a_thread_hangs(tmp_path: Path) -> None:
    """A thread that reads a dead disk can't be ended, and Python waits for threads."""
    code = """
import asyncio, time
from llmgw.agent.daemon import leave_at_last
async def main():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    leave_at_last()
asyncio.run(main())
"""
    begun = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    assert ended.returncode == 0
    assert time.monotonic() - begun < 20  # the thread: 60


def test_an_end_in_the_middle_of_starting_a_child_is_not_told_as_a_fault(tmp_path: Path) -> None:
    """Closing a loop whose child still runs makes Python write a traceback into the agent's log."""
    code = """
import asyncio
from llmgw.agent.daemon import leave
async def main():
    child = await asyncio.create_subprocess_exec("sleep", "3", stdin=asyncio.subprocess.PIPE)
    leave()
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=30, capture_output=True, text=True, cwd=tmp_path
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_socket_answers_while_what_an_earlier_agent_left_is_still_being_claimed(tmp_path: Path) -> None:
    """``hello`` at once, everything else once all is claimed."""

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, engine_spec(free_port()))
        before = await machine.shard_when(node, lambda shard: shard.state == "ready")
        machine.kill_agent(node)
        # As when its shim has just been started and has written nothing yet: the agent waits for its word.
        status = machine.work(node) / "status" / f"{before.shard}.engine.json"
        shim = json.loads(status.read_text())["shim"]["pid"]
        hidden = status.with_suffix(".hidden")
        status.rename(hidden)
        order = machine.work(node) / "shards" / f"{before.shard}.json"
        written = json.loads(order.read_text())
        written["processes"] = []
        order.write_text(json.dumps(written))
        starting = asyncio.ensure_future(machine.transport.bootstrap(node, fleet=FLEET))
        work = machine.work(node)
        loop = asyncio.get_running_loop()
        await until(lambda: _listens(work))
        with closing(Raw(work)) as client:
            assert "result" in await asyncio.to_thread(client.hello)
            await asyncio.to_thread(
                client.send, b'{"jsonrpc": "2.0", "id": 2, "method": "report", "params": {}}\n'
            )
            answer = loop.run_in_executor(None, client.answer)
            done, _ = await asyncio.wait({answer}, timeout=0.5)
            assert not done, "not everything is claimed yet"
            hidden.rename(status)
            report = (await asyncio.wait_for(answer, 20))["result"]
        assert [shard["pid"] for shard in report["shards"]] == [before.pid]
        assert psutil.pid_exists(shim)
        await starting

    on_machine(tmp_path, main)


def _listens(work: Path) -> bool:
    try:
        Raw(work).close()
    except (OSError, NoAgentError):
        return False
    return True


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not psutil.pid_exists(pid)


def test_there_is_one_agent_a_work_directory(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        second = subprocess.run(  # noqa: ASYNC221 - it ends at once
            [sys.executable, "-m", "llmgw.agent", "daemon", "--work", str(machine.work(node))],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=Path(__file__).parents[2],
        )
        assert second.returncode == 1
        assert f"another one (pid {machine.holder(node).pid}, version" in second.stderr
        assert (await machine.report(node)).agent.pid == machine.holder(node).pid

    on_machine(tmp_path, main)


def test_two_agents_work_side_by_side(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        nodes = [machine.node("a"), machine.node("b")]
        for node in nodes:
            await machine.transport.bootstrap(node, fleet=FLEET)
            await machine.start(node, engine_spec(free_port()))
        shards = [await machine.shard_when(node, lambda shard: shard.state == "ready") for node in nodes]
        assert shards[0].shard == shards[1].shard
        await machine.stop(nodes[0], shards[0].shard)
        await machine.shard_when(nodes[0], lambda shard: shard.state == "stopped")
        assert (await machine.report(nodes[1])).shards[0].pid == shards[1].pid
        assert shards[1].pid is not None
        assert psutil.pid_exists(shards[1].pid)

    on_machine(tmp_path, main)


def test_a_work_directory_may_have_a_path_longer_than_a_sockets_address(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node(work="~/" + "/".join(["a rather long name with spaces"] * 6))
        assert len(str(machine.work(node))) > 150
        await machine.transport.bootstrap(node, fleet=FLEET)
        assert (await machine.report(node)).agent.node == "n1"

    on_machine(tmp_path, main)


def test_what_the_agent_keeps_is_private_and_what_engines_need_is_not(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        work = machine.work(node)
        assert mode(work) == 0o711
        for name in ("agent.sock", "agent.json", "agent.lock", "agent.log"):
            assert mode(work / name) == 0o600, name
        for name in ("shards", "jobs", "state", "logs", "journal", "status"):
            assert mode(work / name) == 0o700, name
        for name in ("weights", "engines"):
            assert mode(work / name) == 0o755, name
        assert mode(work / "journal" / "journal.jsonl") == 0o600

    old = os.umask(0o077)
    try:
        on_machine(tmp_path, main)
    finally:
        os.umask(old)


def test_a_connection_says_hello_first(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        with closing(Raw(machine.work(node))) as raw:
            assert raw.ask("report", {})["error"]["code"] == INVALID_REQUEST
            assert raw.hello(fleet="another")["error"]["code"] == WRONG_FLEET
            assert raw.ask("report", {})["error"]["code"] == INVALID_REQUEST
            assert "result" in raw.hello()
            assert raw.ask("report", {"surprise": 1})["error"]["code"] == INVALID_PARAMS
            assert raw.ask("report", {})["result"]["agent"]["node"] == "n1"

    on_machine(tmp_path, main)


def test_nonsense_is_answered_and_an_over_long_line_ends_the_connection_and_only_that(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        with closing(Raw(machine.work(node))) as good, closing(Raw(machine.work(node))) as bad:
            good.hello()
            bad.hello()
            bad.send(b"nonsense\n")
            assert bad.answer()["error"]["code"] == PARSE_ERROR
            with pytest.raises((EOFError, OSError)):  # noqa: PT012 - the answer may or may not make it
                bad.send(b"x" * (MAX_LINE + 200_000))
                bad.answer()
                bad.answer()
            assert good.ask("report", {})["result"]["agent"]["node"] == "n1"

    on_machine(tmp_path, main)


def test_a_fence_holds_through_the_socket_and_a_restart(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        stop = StopParams(command=command("a", serial=5), shard=ShardId("chat-1f0c9a2b-0.1-r0"))
        async with machine.link(node) as link:
            await link.request("stop", stop, Accepted, timeout=20)
        machine.kill_agent(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        late = StopParams(command=command("b", serial=4), shard=stop.shard)
        async with machine.link(node) as link:
            with pytest.raises(AgentError) as caught:
                await link.request("stop", late, Accepted, timeout=20)
        assert caught.value.code == FENCED

    on_machine(tmp_path, main)


def test_the_journal_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        machine.kill_agent(node)
        with (machine.work(node) / "journal" / "journal.jsonl").open("ab") as file:
            file.write(b'{"number": 2, "at": "20')
        await machine.transport.bootstrap(node, fleet=FLEET)
        journal = (await machine.report(node)).journal
        assert [entry.number for entry in journal] == list(range(1, len(journal) + 1))
        assert len([entry for entry in journal if entry.kind == "agent-started"]) == 2

    on_machine(tmp_path, main)


def test_a_job_goes_on_without_its_agent_and_is_told_by_the_next_one(tmp_path: Path) -> None:
    python, go, begun = tmp_path / "slow-python", tmp_path / "go", tmp_path / "begun"
    python.write_text(
        f'#!/bin/sh\necho waiting\necho begun >> "{begun}"\nwhile [ ! -e "{go}" ]; do sleep 0.05; done\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        params = InstallParams(command=command("i"), spec=install_spec(python=str(python)))
        async with machine.link(node) as link:
            await link.request("install", params, Accepted, timeout=20)
            await _job_when(machine, node, "running")
        await until(begun.exists)
        before = workers(machine.work(node))
        assert len(before) == 1
        machine.kill_agent(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        await _job_when(machine, node, "running")
        assert workers(machine.work(node)) == before
        go.touch()
        await _job_when(machine, node, "done")
        assert begun.read_text() == "begun\n"
        await until(lambda: not workers(machine.work(node)))
        engine = (await machine.report(node)).facts.engines[0]
        assert (engine.digest, mode(Path(engine.path)) & 0o005) == (params.spec.digest, 0o005)

    on_machine(tmp_path, main)


def test_a_worker_that_was_killed_with_its_agent_is_followed_by_another(tmp_path: Path) -> None:
    python, first = tmp_path / "slow-python", tmp_path / "first"
    python.write_text(
        f'#!/bin/sh\nif mkdir "{first}" 2>/dev/null; then echo waiting; sleep 600; fi\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        params = InstallParams(command=command("i"), spec=install_spec(python=str(python)))
        async with machine.link(node) as link:
            await link.request("install", params, Accepted, timeout=20)
        await until(first.exists)
        machine.kill_agent(node)
        (worker,) = workers(machine.work(node))
        os.kill(worker, signal.SIGKILL)
        await machine.transport.bootstrap(node, fleet=FLEET)
        await _job_when(machine, node, "done")

    on_machine(tmp_path, main)


def test_a_cancelled_job_leaves_no_process_behind(tmp_path: Path) -> None:
    python, begun = tmp_path / "slow-python", tmp_path / "begun"
    python.write_text(f'#!/bin/sh\ntrap "" TERM\necho $$ > "{begun}"\nwhile :; do sleep 600; done\n')
    python.chmod(0o755)

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        params = InstallParams(command=command("i"), spec=install_spec(python=str(python)))
        async with machine.link(node) as link:
            await link.request("install", params, Accepted, timeout=20)
            await until(lambda: begun.exists() and begun.read_text())
            cancel = CancelParams(command=command("c"), job=params.spec.job)
            answer = await link.request("cancel", cancel, Accepted, timeout=20)
        assert answer.job is not None
        assert (answer.job.state, answer.job.error) == ("cancelled", "")
        assert not psutil.pid_exists(int(begun.read_text()))
        assert not workers(machine.work(node))

    on_machine(tmp_path, main)


def workers(work: Path) -> list[int]:
    """Pids of the programs that do the jobs of this work directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            inside = Path(process.cwd()).is_relative_to(work / "jobruns")
            if inside and any("jobs.worker" in word for word in process.cmdline()):
                found.append(process.pid)
    return found


async def _job_when(machine: Machine, node: DesiredNode, state: str) -> None:
    end = asyncio.get_running_loop().time() + 30
    while (jobs := (await machine.report(node)).jobs)[0].state != state:
        assert asyncio.get_running_loop().time() < end, jobs
        await asyncio.sleep(0.02)


def test_secrets_of_the_settings_are_not_in_the_log(tmp_path: Path) -> None:
    canary = "canary-7f3a"

    async def main(machine: Machine) -> None:
        node = machine.node(env={"HTTPS_PROXY": f"http://ann:{canary}@127.0.0.1:1", "HF_TOKEN": canary})
        await machine.transport.bootstrap(node, fleet=FLEET)
        with closing(Raw(machine.work(node))) as raw:
            raw.hello()
            raw.ask("report", {"surprise": canary})
        assert canary in (machine.work(node) / "agent.json").read_text()
        await machine.transport.stop_agent(node)
        assert canary not in (machine.work(node) / "agent.log").read_text()

    on_machine(tmp_path, main)


def test_status_tells_people_what_the_agent_says(tmp_path: Path) -> None:
    def status(work: Path, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "llmgw.agent", "status", "--work", str(work), *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=Path(__file__).parents[2],
        )

    async def main(machine: Machine) -> None:
        node = machine.node(pretended=Facts(memory_total=2**40))
        missing = await asyncio.to_thread(status, machine.work(node))
        assert missing.returncode == 1
        assert "bootstrap the node" in missing.stderr
        await machine.transport.bootstrap(node, fleet=FLEET)
        text = await asyncio.to_thread(status, machine.work(node))
        assert "node n1   fleet fleet-1" in text.stdout
        told = json.loads((await asyncio.to_thread(status, machine.work(node), "--json")).stdout)
        assert told["facts"]["memoryTotal"] == 2**40

    on_machine(tmp_path, main)


def test_a_dead_agents_socket_is_no_obstacle_and_a_foreign_file_there_is_replaced(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        machine.kill_agent(node)
        assert (machine.work(node) / "agent.sock").is_socket()
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.report(node)

    on_machine(tmp_path, main)


def test_broken_settings_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text('{"node": "n1", "surprise": 1}')
    ended = subprocess.run(
        [sys.executable, "-m", "llmgw.agent", "daemon", "--work", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 1
    assert "surprise" in ended.stderr
    assert "bootstrap the node again" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_agent_that_does_not_come_up_is_explained_by_its_log(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        work = machine.work(node)
        (work / "state").mkdir(parents=True)
        (work / "state" / "owner.json").write_text("{")
        with pytest.raises(
            StalledError, match=r"it ended with 1; the end of its log:[\s\S]*state/owner\.json"
        ):
            await machine.transport.bootstrap(node, fleet=FLEET)

    on_machine(tmp_path, main)


def test_too_many_connections_are_told_so(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        held: list[socket.socket] = []
        try:
            for _ in range(64):
                raw = Raw(machine.work(node))
                held.append(raw.socket)
                raw.hello()
            with closing(Raw(machine.work(node))) as surplus:
                assert "holds 64 connections" in surplus.answer()["error"]["message"]
        finally:
            for one in held:
                one.close()

    on_machine(tmp_path, main)
