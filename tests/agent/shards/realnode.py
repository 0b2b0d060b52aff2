"""The real spawner on real processes. Whatever a test starts is ended with it, by pid, even when the test fails."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.agent.seams import Order, Running
from llmgw.agent.shards import proc, statusfiles
from llmgw.agent.shards.processes import ShimSpawner, tag_of
from llmgw.clock import SystemClock

SHARD = "chat-abababab-0.1-r0"
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass
class RealNode:
    work: Path
    control_groups: bool = True

    @property
    def tag(self) -> str:
        """As its agents name themselves in what they start."""
        return tag_of(self.work)

    def spawner(self) -> ShimSpawner:
        """A new agent's."""
        return ShimSpawner(self.work, clock=SystemClock(), control_groups=self.control_groups)

    def status_file(self, process: str = "engine", shard: str = SHARD) -> str:
        return str(self.work / "status" / f"{shard}.{process}.json")

    def order(self, *argv: str, process: str = "engine", shard: str = SHARD, **changes: Any) -> Order:
        given: dict[str, Any] = {
            "shard": shard,
            "process": process,
            "argv": argv,
            "env": {"PATH": PATH},
            "directory": str(self.work / "home" / "me" / shard),
            "log": str(self.work / "logs" / shard / f"{process}.log"),
            "status_file": self.status_file(process, shard),
        }
        return Order(**{**given, **changes})

    def python(self, code: str, **changes: Any) -> Order:
        return self.order(sys.executable, "-I", "-S", "-c", code, **changes)

    async def start(self, order: Order) -> Running:
        return await self.spawner().spawn(order)

    def status_text(self) -> str:
        return Path(self.status_file()).read_text()

    def set_status_text(self, text: str) -> None:
        Path(self.status_file()).write_text(text)

    def sleep(self, seconds: int) -> str:
        """Code for a stand-in that no other test's, of this run or another's, can be taken for."""
        return f"import time; time.sleep({seconds}) # {self.work}"

    def sleepers(self) -> list[int]:
        """Pids of those."""
        words = {self.sleep(seconds).encode() for seconds in (301, 302, 303)}
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in pids if lives(pid) and words & set(shown(pid, "cmdline").split(b"\0"))]

    def log(self, process: str = "engine", shard: str = SHARD) -> str:
        path = self.work / "logs" / shard / f"{process}.log"
        return path.read_text() if path.exists() else ""

    def end_all(self) -> None:
        """By what the status files name and what provably belongs to it; the last resort of every test."""
        spawner = self.spawner()
        for path in (self.work / "status").glob("*.json"):
            status = statusfiles.read(path)
            for process in (status.engine, status.shim) if status else ():
                if process is not None and proc.alive(process, spawner.boot_id):
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            shard = path.name.removesuffix(".json").rpartition(".")[0]
            asyncio.run(end_shard(spawner, shard))


@contextmanager
def real_node(work: Path) -> Iterator[RealNode]:
    node = RealNode(work=work)
    try:
        yield node
    finally:
        node.end_all()


async def end_shard(spawner: ShimSpawner, shard: str) -> None:
    async def nothing() -> bool:
        await spawner.kill_remaining(shard)
        return not await spawner.remaining(shard)

    await until(nothing)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(condition: Any, *, within: float = 20) -> None:
    """``condition`` may be asynchronous. Fails when it does not come true in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert loop.time() < end, "waited too long"
        await asyncio.sleep(0.02)


def shown(pid: int, what: str) -> bytes:
    """What /proc shows of a process; nothing once it has gone."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def lives(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and not found.gone
