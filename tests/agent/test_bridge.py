"""The bridge carries lines both ways, tells where noise ends, and goes when either side goes."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from llmgw.agent.server import listen
from llmgw.wire.doorway import BRIDGE_MAGIC
from tests.agent.agents import FLEET
from tests.agent.processes import Machine, on_machine

ROOT = Path(__file__).parents[2]


@contextmanager
def bridge(work: Path) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [sys.executable, "-m", "llmgw.agent", "bridge", "--work", str(work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        process.wait()


def accept(listener: socket.socket) -> socket.socket:
    listener.settimeout(30)
    connection, _ = listener.accept()
    connection.settimeout(30)
    return connection


def test_requests_and_answers_go_through_after_the_magic_line(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        hello = {
            "jsonrpc": "2.0",
            "method": "hello",
            "id": 1,
            "params": {"protocol": "1.0", "toolVersion": "1"},
        }
        with bridge(machine.work(node)) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == BRIDGE_MAGIC
            process.stdin.write(json.dumps(hello).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["result"]["node"] == "n1"
            process.stdin.close()
            assert process.wait(timeout=10) == 0

    on_machine(tmp_path, main)


def test_no_agent_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with bridge(tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.wait(timeout=30) == 69
        assert process.stdout.read() == b""
        assert b"no agent listens" in process.stderr.read()


def test_it_ends_when_the_agent_ends_and_has_told_everything(tmp_path: Path) -> None:
    with listen(tmp_path) as listener, bridge(tmp_path) as process:
        agent = accept(listener)
        agent.sendall(b"last words\n")
        agent.close()
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait(timeout=30) == 0
    assert out == BRIDGE_MAGIC + b"last words\n"


def test_megabytes_go_both_ways_at_once(tmp_path: Path) -> None:
    there, back = os.urandom(3_000_000), os.urandom(3_000_000)
    with listen(tmp_path) as listener, bridge(tmp_path) as process:
        agent = accept(listener)
        assert process.stdin is not None
        assert process.stdout is not None
        received = bytearray()

        def read_there() -> None:
            while len(received) < len(there):
                received.extend(agent.recv(65536))

        writers = [
            threading.Thread(target=process.stdin.write, args=(there,)),
            threading.Thread(target=agent.sendall, args=(back,)),
            threading.Thread(target=read_there),
        ]
        for thread in writers:
            thread.start()
        assert process.stdout.read(len(BRIDGE_MAGIC) + len(back)) == BRIDGE_MAGIC + back
        process.stdin.flush()
        for thread in writers:
            thread.join(timeout=30)
        agent.close()
    assert bytes(received) == there


def test_it_loads_nothing_that_takes_time_because_it_starts_with_every_connection() -> None:
    script = "import sys, llmgw.agent.__main__, llmgw.agent.bridge; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    loaded = set(
        subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, cwd=ROOT
        ).stdout.split()
    )
    assert "llmgw.agent.dialing" in loaded
    assert loaded.isdisjoint({"asyncio", "dataclasses", "inspect", "json", "logging", "msgspec"})
    assert len({name for name in loaded if name.startswith("llmgw")}) < 10


@pytest.mark.parametrize("arguments", [[], ["stop"], ["fly", "--work", "x"], ["status", "--work"]])
def test_wrong_usage_has_its_own_exit_code(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "llmgw.agent", *arguments],
        capture_output=True,
        timeout=30,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == 64
    assert b"usage: llmgw-agent" in ended.stderr
