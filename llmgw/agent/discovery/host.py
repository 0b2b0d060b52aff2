"""The machine itself: CPUs, memory, kernel, libc, disks."""

import os
import platform
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil

from llmgw.model.facts import Disk, Facts

MAX_FILE = 64 * 1024


def host_facts(folders: Iterable[Path], proc: Path = Path("/proc"), etc: Path = Path("/etc")) -> Facts:
    """All that needs neither GPU nor network. ``folders``: whose disks matter."""
    memory = psutil.virtual_memory()
    libc, version = platform.libc_ver()
    problems: list[str] = []
    found = disks(folders, problems)
    return Facts(
        hostname=socket.gethostname(),
        boot_id=boot_id(proc),
        arch=platform.machine(),
        libc=f"{libc or 'unknown'}-{version}" if version else libc or "musl",
        os=_os_name(etc),
        kernel=platform.release(),
        python=platform.python_version(),
        cpus=len(os.sched_getaffinity(0)),
        memory_total=memory.total,
        memory_available=memory.available,
        shm_total=_shm_total(),
        ephemeral_ports=_ephemeral_ports(proc),
        disks=found,
        problems=tuple(problems),
    )


def boot_id(proc: Path = Path("/proc")) -> str:
    return _first_line(proc / "sys" / "kernel" / "random" / "boot_id")


def disks(folders: Iterable[Path], problems: list[str]) -> tuple[Disk, ...]:
    """One that is there and can't be asked, as a mount whose server is gone, is a problem."""
    found = []
    for folder in folders:
        try:
            usage = shutil.disk_usage(folder)
        except FileNotFoundError:
            continue
        except OSError as wrong:
            problems.append(
                f"looking at the disk of {folder}: {wrong.strerror}: is what is mounted there alive?"
            )
            continue
        found.append(Disk(path=str(folder), total=usage.total, free=usage.free))
    return tuple(found)


def _shm_total() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").total  # noqa: S108 - asks for its size, writes nothing
    except OSError:
        return None


def _ephemeral_ports(proc: Path) -> tuple[int, int] | None:
    numbers = _first_line(proc / "sys" / "net" / "ipv4" / "ip_local_port_range").split()
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None


def _os_name(etc: Path) -> str:
    try:
        with (etc / "os-release").open(errors="replace") as file:
            lines = file.read(MAX_FILE).splitlines()
    except OSError:
        return ""
    named = [line.partition("=")[2].strip("\"'") for line in lines if line.startswith("PRETTY_NAME=")]
    return named[0] if named else ""


def _first_line(file: Path) -> str:
    try:
        with file.open(errors="replace") as stream:
            return stream.readline(4096).strip()
    except OSError:
        return ""
