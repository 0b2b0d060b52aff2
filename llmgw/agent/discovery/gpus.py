"""The node's GPUs: through NVML in a child process, else through nvidia-smi, else none. What can't be read is a problem
that is reported, never a failure."""

import asyncio
import csv
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from llmgw.agent.discovery.commands import AskError, ask_program
from llmgw.model.facts import Gpu, GpuProcess

DEADLINE = 10.0
ABSENT_FOR = 300.0
"""Seconds until a machine without a driver is asked again: a driver may be installed under a running agent."""
CHILD = Path(__file__).with_name("nvml_child.py")
DEVICE = "/dev/nvidiactl"
MIB = 1024**2
GIB = 1024**3

_NOISE = re.compile(r"^(nvidia|tesla|geforce|quadro|generation|graphics|\d+gb|hbm\d*e?|sxm\d*|pcie|nvl)$")
_QUERY = "index,uuid,name,memory.total,memory.used,memory.free,pci.bus_id,compute_cap,driver_version"
_APPS = "gpu_uuid,pid,used_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What one look found. ``source``: nvml | nvidia-smi | none."""

    gpus: tuple[Gpu, ...] = ()
    source: str = "none"
    driver: str = ""
    problems: tuple[str, ...] = ()


def gpu_class(name: str, total: int) -> str:
    """``NVIDIA H100 80GB HBM3`` with 79.6 GiB -> ``h100-80g``: what people call it, and what it really has."""
    words = re.split(r"[^a-z0-9.]+", name.lower())
    kept = [word for word in words if word and not _NOISE.match(word)]
    return f"{'-'.join(kept) or 'gpu'}-{round(total / GIB)}g"


@dataclass(slots=True)
class GpuDiscovery:
    """Looks at the GPUs. ``env`` is what the asked programs get: PATH, LD_LIBRARY_PATH."""

    env: Mapping[str, str] = field(default_factory=dict)
    deadline: float = DEADLINE
    _classes: dict[str, tuple[int, str]] = field(default_factory=dict)
    _absent_until: float = 0.0

    async def sample(self) -> GpuSample:
        now = asyncio.get_running_loop().time()
        if now < self._absent_until and not os.path.exists(DEVICE):  # noqa: PTH110, ASYNC240 - one stat of /dev
            return GpuSample()
        problems: list[str] = []
        for source, look in (("nvml", self._by_nvml), ("nvidia-smi", self._by_nvidia_smi)):
            try:
                found = await look()
            except FileNotFoundError:
                continue
            except (AskError, ValueError, KeyError, TypeError, OSError) as wrong:
                problems.append(f"asking for GPUs by {source}: {wrong}")
                continue
            if found is not None:
                return GpuSample(
                    gpus=tuple(self._gpu(raw) for raw in found["gpus"]),
                    source=source,
                    driver=found["driver"],
                    problems=tuple(found["problems"]),
                )
        if not problems:
            self._absent_until = now + ABSENT_FOR
        return GpuSample(problems=tuple(problems))

    async def _by_nvml(self) -> dict[str, Any] | None:
        env = {**self.env, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        answer = json.loads(await ask_program([sys.executable, str(CHILD)], env=env, deadline=self.deadline))
        if "error" in answer:
            raise AskError(answer["error"])
        return None if "absent" in answer else dict(answer)

    async def _by_nvidia_smi(self) -> dict[str, Any] | None:
        ask = ["nvidia-smi", "--format=csv,noheader,nounits"]
        rows = await ask_program([*ask, f"--query-gpu={_QUERY}"], env=self.env, deadline=self.deadline)
        apps = await ask_program(
            [*ask, f"--query-compute-apps={_APPS}"], env=self.env, deadline=self.deadline
        )
        return read_nvidia_smi(rows, apps)

    def _gpu(self, raw: dict[str, Any]) -> Gpu:
        total = raw["total"] or 0
        health = tuple(raw["health"]) + (() if raw["total"] else ("the driver does not tell its memory",))
        return Gpu(
            uuid=raw["uuid"],
            index=raw["index"],
            name=raw["name"],
            gpu_class=self._sticky_class(raw["uuid"], raw["name"], total),
            memory_total=total,
            memory_used=raw["used"] or 0,
            memory_free=raw["free"],
            pci=raw["pci"],
            compute_capability=raw["capability"],
            parent=raw["parent"],
            health=health,
            processes=tuple(_process(found["pid"], found["memory"]) for found in raw["processes"]),
        )

    def _sticky_class(self, uuid: str, name: str, total: int) -> str:
        """A driver that counts some MiB differently must not move a GPU to another class."""
        known = self._classes.get(uuid)
        if known is not None and abs(known[0] - total) <= GIB:
            return known[1]
        self._classes[uuid] = (total, gpu_class(name, total))
        return self._classes[uuid][1]


def read_nvidia_smi(rows: str, apps: str) -> dict[str, Any]:
    """Both tables as the NVML child tells them. Cells such as ``[N/A]`` or ``[GPU is lost]`` are no numbers."""
    processes: dict[str, list[dict[str, Any]]] = {}
    for row in csv.reader(apps.splitlines(), skipinitialspace=True):
        if len(row) == 3 and row[1].isdigit():
            processes.setdefault(row[0], []).append({"pid": int(row[1]), "memory": _mib(row[2])})
    gpus, problems, driver = [], [], ""
    for row in csv.reader(rows.splitlines(), skipinitialspace=True):
        if len(row) != len(_QUERY.split(",")) or not row[0].isdigit():
            problems.append(f"nvidia-smi: {','.join(row)[:200]}")
            continue
        index, uuid, name, total, used, free, pci, capability, version = row
        if not uuid.startswith(("GPU-", "MIG-")):
            problems.append(f"GPU {index}: {uuid}")
            continue
        driver = driver or version
        gpus.append(
            {
                "uuid": uuid,
                "index": int(index),
                "name": name,
                "total": _mib(total),
                "used": _mib(used),
                "free": _mib(free),
                "pci": pci,
                "capability": capability if re.match(r"^\d+\.\d+$", capability) else "",
                "parent": None,
                "health": [f"memory: {total}"] if "lost" in total or "reset" in total else [],
                "processes": processes.get(uuid, []),
            }
        )
    return {"driver": driver, "gpus": gpus, "problems": problems}


def _mib(cell: str) -> int | None:
    return int(cell) * MIB if cell.isdigit() else None


def _process(pid: int, memory: int | None) -> GpuProcess:
    """Inside a pid namespace the driver tells the host's pids: then nobody here is called so."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return GpuProcess(pid=pid, user=process.username(), memory=memory, command=process.name())
    except (psutil.Error, KeyError):
        return GpuProcess(pid=pid, user="?", memory=memory)
