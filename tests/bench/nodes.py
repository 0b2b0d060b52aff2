"""What the machines of a rig have computed: the side of a measurement that a fleet's own machines would carry."""

import os
from contextlib import suppress
from pathlib import Path

from tests.rig import namespaces
from tests.rig.rig import Rig

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of(rig: Rig) -> float:
    """CPU seconds of all hosts' processes so far, the ended ones among them: whoever waits for a child takes over its times."""
    networks = {(namespaces.NAMED / host.namespace).stat().st_ino for host in rig.hosts}
    return sum(_seconds(entry) for entry in _processes(networks))


def pids_of(rig: Rig) -> frozenset[int]:
    """Of all hosts' processes."""
    networks = {(namespaces.NAMED / host.namespace).stat().st_ino for host in rig.hosts}
    return frozenset(int(entry.name) for entry in _processes(networks))


def memory_of(rig: Rig, word: str) -> tuple[int, ...]:
    """Bytes that each process with the word in its command line has to itself, its share of what it has in common counted."""
    networks = {(namespaces.NAMED / host.namespace).stat().st_ino for host in rig.hosts}
    found = []
    for entry in _processes(networks):
        with suppress(OSError):
            if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(pss(int(entry.name)))
    return tuple(found)


def pss(pid: int) -> int:
    """Bytes that a process has to itself, and its share of what it has in common with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def cpu_seconds(pid: int) -> float:
    """Of a process, and of its children that have ended. Its own to the nanosecond: the kernel's ticks are ten milliseconds,
    and a process that timers wake always works in the moment of one."""
    own = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            own += int((thread / "schedstat").read_text().split()[0])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own / 1e9 + sum(int(field) for field in fields[13:15]) / TICKS


def _processes(networks: set[int]) -> list[Path]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "ns" / "net").stat().st_ino in networks:
                    found.append(entry)
    return found


def _seconds(process: Path) -> float:
    with suppress(OSError):
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / TICKS
    return 0.0
