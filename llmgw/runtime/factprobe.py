"""What a machine is, read only, for machines without an agent: prints Facts as JSON.

Runs by itself, standard library only, on any Python from 3.7: ``python3 -I -S - < factprobe.py``. Starts nothing but
``nvidia-smi``, with a deadline; changes nothing.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from typing import Any

DEADLINE = 10
MIB = 1024 * 1024
GIB = 1024 * MIB
QUERY = "index,uuid,name,memory.total,memory.used,memory.free,pci.bus_id,compute_cap,driver_version"
NOISE = re.compile(r"^(nvidia|tesla|geforce|quadro|generation|graphics|\d+gb|hbm\d*e?|sxm\d*|pcie|nvl)$")


def first_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


def memory() -> tuple[int, int | None]:
    """Total and available bytes."""
    found: dict[str, int] = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, rest = line.partition(":")
                found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return found.get("MemTotal", 0), found.get("MemAvailable")


def os_name() -> str:
    try:
        with open("/etc/os-release", errors="replace") as file:
            for line in file:
                if line.startswith("PRETTY_NAME="):
                    return line.partition("=")[2].strip().strip("\"'")
    except OSError:
        pass
    return ""


def disks(folders: list[str]) -> list[dict[str, Any]]:
    """Of the nearest directory that exists; several on one file system are told each."""
    found = []
    for folder in folders:
        there = os.path.abspath(folder)
        while not os.path.isdir(there) and there != "/":
            there = os.path.dirname(there)
        try:
            usage = shutil.disk_usage(there)
        except OSError:
            continue
        found.append({"path": folder, "total": usage.total, "free": usage.free})
    return found


def interfaces() -> list[dict[str, Any]]:
    """Names and states from /sys; IPv4 addresses from the kernel, IPv6 from /proc."""
    addresses = ipv6_addresses()
    found = []
    for name in sorted(os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net") else []):
        ipv4 = ipv4_address(name)
        speed = first_line("/sys/class/net/%s/speed" % name)
        found.append(
            {
                "name": name,
                "addresses": ([ipv4] if ipv4 else []) + addresses.get(name, []),
                "speed": int(speed) if speed.isdigit() and int(speed) > 0 else None,
                "up": first_line("/sys/class/net/%s/operstate" % name) in ("up", "unknown"),
            }
        )
    return found


def ipv4_address(name: str) -> str | None:
    """The first address, by SIOCGIFADDR."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        with open("/proc/net/if_inet6") as file:
            for line in file:
                cells = line.split()
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(cells[0]))
                found.setdefault(cells[5], []).append(address)
    except (OSError, ValueError, IndexError):
        pass
    return found


def gpu_class(name: str, total: int) -> str:
    words = re.split(r"[^a-z0-9.]+", name.lower())
    kept = [word for word in words if word and not NOISE.match(word)]
    return "%s-%dg" % ("-".join(kept) or "gpu", round(total / GIB))


def mib(cell: str) -> int | None:
    return int(cell) * MIB if cell.isdigit() else None


def gpus() -> tuple[list[dict[str, Any]], str, list[str]]:
    """GPUs, driver and problems by nvidia-smi; nothing of it where there is none."""
    if shutil.which("nvidia-smi") is None:
        return [], "", []
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--format=csv,noheader,nounits", "--query-gpu=" + QUERY],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=DEADLINE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as wrong:
        return [], "", ["asking for GPUs by nvidia-smi: %s" % wrong]
    problems: list[str] = []
    found: list[dict[str, Any]] = []
    driver = ""
    if answer.returncode != 0:
        problems.append(
            "nvidia-smi ended with %d: %s" % (answer.returncode, text(answer.stderr or answer.stdout))
        )
    for row in csv.reader(text(answer.stdout).splitlines(), skipinitialspace=True):
        if len(row) != 9 or not row[0].isdigit() or not row[1].startswith("GPU-"):
            if answer.returncode == 0:
                problems.append("nvidia-smi: %s" % ",".join(row))
            continue
        driver = driver or row[8]
        found.append(gpu(row))
    return found, driver, problems


def gpu(row: list[str]) -> dict[str, Any]:
    total = mib(row[3]) or 0
    return {
        "uuid": row[1],
        "index": int(row[0]),
        "name": row[2],
        "class": gpu_class(row[2], total),
        "memoryTotal": total,
        "memoryUsed": mib(row[4]) or 0,
        "memoryFree": mib(row[5]),
        "pci": row[6],
        "computeCapability": row[7] if re.match(r"^\d+\.\d+$", row[7]) else "",
        "health": [] if total else ["the driver does not tell its memory"],
    }


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()[-4000:]


def facts(folders: list[str]) -> dict[str, Any]:
    total, available = memory()
    libc, version = platform.libc_ver()
    ports = first_line("/proc/sys/net/ipv4/ip_local_port_range").split()
    shm = disks(["/dev/shm"])  # noqa: S108 - asks for its size, writes nothing
    found, driver, problems = gpus()
    return {
        "hostname": socket.gethostname(),
        "bootId": first_line("/proc/sys/kernel/random/boot_id"),
        "arch": platform.machine(),
        "libc": "%s-%s" % (libc or "unknown", version) if version else libc or "musl",
        "os": os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "memoryTotal": total,
        "memoryAvailable": available,
        "shmTotal": shm[0]["total"] if shm else None,
        "ephemeralPorts": [int(ports[0]), int(ports[1])] if len(ports) == 2 else None,
        "driver": driver,
        "gpuSource": "nvidia-smi" if found else "none",
        "gpus": found,
        "interfaces": interfaces(),
        "disks": disks(folders),
        "problems": problems,
    }


if __name__ == "__main__":
    json.dump(facts(sys.argv[1:] or ["/"]), sys.stdout)
    sys.stdout.write("\n")
