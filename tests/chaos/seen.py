"""Processes of hosts as this machine's kernel shows them: which shard each belongs to, and what it holds."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmgw.model.ids import ShardId, parse_shard_id
from llmgw.model.struct import Struct
from tests.rig import namespaces

PROC: Final = Path("/proc")
STATE, PARENT, SESSION, START, ARGUMENTS = 0, 1, 3, 19, 45
"""Fields of ``/proc/PID/stat``, counted behind the name. The address of the arguments is another after every exec, and the
same in everything that is forked: it tells two starts of one program apart."""


class Seen(Struct):
    """One program of a host, by this machine's pid. ``instance`` is what it shares with all that it forks, and with nobody else."""

    host: str
    pid: int
    start: int
    instance: int
    words: tuple[str, ...]
    shard: str
    gpus: tuple[str, ...]

    @property
    def sidecar(self) -> bool:
        return "sidecar" in self.words

    @property
    def engine(self) -> bool:
        return any(word.endswith("/bin/sim-engine") for word in self.words[:2])

    @property
    def shim(self) -> bool:
        return any(word.endswith("/runtime/shim.py") for word in self.words)

    @property
    def agent(self) -> bool:
        return "daemon" in self.words and "--work" in self.words

    @property
    def ports(self) -> tuple[str, ...]:
        """``host:port`` that it was told to listen on."""
        if not self.engine:
            return ()
        told = dict(zip(self.words, self.words[1:], strict=False))
        found = (f"{told['--host']}:{told['--port']}",) if "--port" in told and "--host" in told else ()
        return (*found, told["--rendezvous"]) if told.get("--rank") == "0" else found


@dataclass(slots=True)
class Eyes:
    """Looks at all processes; what each is, is read once. ``hosts`` are names by the number of their network."""

    hosts: Mapping[int, str]
    _known: dict[tuple[int, int, int], Seen | None] = field(default_factory=dict)

    def look(self) -> list[Seen]:
        """All that live now, and belong to a host."""
        before, self._known, found = self._known, {}, []
        for name in os.listdir(PROC):  # noqa: PTH208 - twenty times a second
            if not name.isdigit():
                continue
            key = identity(int(name))
            if key is None:
                continue
            seen = before[key] if key in before else self._read(key)
            self._known[key] = seen
            if seen is not None:
                found.append(seen)
        return found

    def _read(self, key: tuple[int, int, int]) -> Seen | None:
        pid, start, instance = key
        with suppress(OSError):
            host = self.hosts.get((PROC / str(pid) / "ns" / "net").stat().st_ino)
            if host is None:
                return None
            values = _environment(pid)
            words = tuple(_words((PROC / str(pid) / "cmdline").read_bytes()))
            if identity(pid) == key:  # else it has become another program meanwhile
                return Seen(
                    host=host,
                    pid=pid,
                    start=start,
                    instance=instance,
                    words=words,
                    shard=values.get("LLMGW_SHARD") or _shard_by_shim(pid),
                    gpus=tuple(filter(None, values.get("CUDA_VISIBLE_DEVICES", "").split(","))),
                )
        return None


def identity(pid: int) -> tuple[int, int, int] | None:
    """Pid, start and program. None: it lives no more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - twenty times a second, for each
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[STATE] in b"ZX" else (pid, int(fields[START]), int(fields[ARGUMENTS]))


def alive(one: Seen) -> bool:
    return identity(one.pid) == (one.pid, one.start, one.instance)


def inner_pid(pid: int) -> int:
    """As the host itself counts it; 0: gone."""
    return _numbers(pid)[-1]


def inside(pid: int) -> bool:
    """Whether it is one of the host's own, and not of those out here that hold its namespaces open."""
    return len(_numbers(pid)) > 1


def _numbers(pid: int) -> list[int]:
    """Of one process, in each pid namespace that it is in, from the outermost on."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return [0]


def networks(hosts: Mapping[str, str]) -> dict[int, str]:
    """Hosts' names by the number of their network; ``hosts`` are the names of namespaces by host."""
    return {(namespaces.NAMED / namespace).stat().st_ino: name for name, namespace in hosts.items()}


def _environment(pid: int) -> dict[str, str]:
    return dict(entry.partition("=")[::2] for entry in _words((PROC / str(pid) / "environ").read_bytes()))


def _shard_by_shim(pid: int) -> str:
    """Of a program that had wiped its environment before anybody looked: its shim, to which all that it leaves falls, says it."""
    with suppress(OSError):
        parent = int((PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[PARENT])
        _, _, of = _environment(parent).get("LLMGW_SHIM", "").partition("/")
        shard = ShardId(of.partition("/")[0])
        return shard if parse_shard_id(shard) is not None else ""
    return ""


def _words(data: bytes) -> list[str]:
    return [word for word in data.decode(errors="replace").split("\0") if word]
