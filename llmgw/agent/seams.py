"""The agent's seams to its node: starting and finding processes, asking engines, disk, GPUs.

Each is a few methods with the real thing beside the fake: processes.py, probes.py, disk.py and discovery/gpus.py hold
the real ones, fakes.py a pretended node for tests and the simulation.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from llmgw.model.facts import Gpu
from llmgw.model.launch import HttpProbe, Metric
from llmgw.model.report import Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """Who a process is, beyond reuse of its number: ``start`` is field 22 of /proc/PID/stat, in clock ticks."""

    boot_id: str
    pid: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One process to start, with every late value filled in. Holds secrets: never logged, never kept."""

    shard: str
    process: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: str
    log: str
    status_file: str  # where the shim writes who it started and how it ended
    files: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process that was started, or found again: the shim and the engine under it."""

    shard: str
    process: str
    shim: ProcessId | None
    engine: ProcessId | None
    started: datetime


class Spawner(Protocol):
    """Processes of this node."""

    async def spawn(self, order: Order) -> Running:
        """Returns when the shim has executed the engine. Raises StalledError with the reason when it can't."""
        ...

    async def find(self, shard: str, process: str, status_file: str) -> Running | Exit | None:
        """What became of a process that an earlier agent started: still running, how it ended, or nothing known."""
        ...

    def exited(self, running: Running, status_file: str) -> Awaitable[Exit]:
        """Resolves when the process has ended, however that came about."""
        ...

    async def signal(self, running: Running, number: int) -> None:
        """To the engine's process group; nothing to signal is no error."""
        ...

    async def remaining(self, shard: str) -> tuple[int, ...]:
        """Pids that provably belong to the shard and still live, whatever they did to hide (setsid, double fork,
        wiped environment)."""
        ...

    async def kill_remaining(self, shard: str) -> None:
        """SIGKILL to all of them."""
        ...

    async def listener(self, port: int) -> tuple[int, str | None] | None:
        """Pid that listens on a TCP port and the shard it belongs to; None: nobody does. Pid 0: not ours to see."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``status`` 0: nobody answered, ``text`` says why."""

    status: int
    text: str


class Probe(Protocol):
    """Questions to engines, bounded in time and size."""

    async def ask(
        self, host: str, port: int, probe: HttpProbe, *, key: str | None, timeout: float
    ) -> Answer: ...

    async def in_flight(
        self, host: str, port: int, metric: Metric, *, key: str | None, timeout: float
    ) -> float | None:
        """None: the engine does not tell."""
        ...

    async def port_open(self, host: str, port: int, *, timeout: float) -> bool: ...


class Disk(Protocol):
    """Small state files below the work directory: written whole or not at all."""

    async def write(self, name: str, data: bytes) -> None:
        """Temp file, fsync, rename, mode 0600. Raises StalledError naming the file when the disk refuses."""
        ...

    async def read_all(self, folder: str) -> Mapping[str, bytes]:
        """Every file directly below a folder, by name; unreadable ones are reported as problems by the caller."""
        ...

    async def remove(self, name: str) -> None: ...


class Gpus(Protocol):
    """The node's GPUs as they are right now."""

    async def sample(self) -> tuple[Gpu, ...]: ...
