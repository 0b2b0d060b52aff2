"""The node's GPUs: through NVML in a child process, else through nvidia-smi, else none. What can't be read is a problem
that is reported, never a failure; a GPU that was there and can't be asked any more is shown as such, never dropped."""

import asyncio
import importlib.util
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from llmgw.agent.discovery import health, nvidia_smi
from llmgw.agent.discovery.classes import Classes
from llmgw.agent.discovery.commands import AskError, NoAnswerError, ask_program
from llmgw.agent.discovery.readings import Held, Look, Lost, Reading, bus_id
from llmgw.model.facts import INHERITED, Gpu, GpuProcess
from llmgw.model.struct import Struct, replace
from llmgw.wire import codec

DEADLINE = 10.0
ABSENT_FOR = 300.0
"""Seconds until a machine without a driver is asked again: a driver may be installed under a running agent."""
CHILD = Path(__file__).with_name("nvml_child.py")
DEVICE = "/dev/nvidiactl"

_INTEGRATED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra)\b")
"""GPUs without memory of their own; their drivers tell none."""
SHARED = "it has no memory of its own: it shares the host's"


class GpuSample(Struct):
    """What one look found. ``source``: nvml | nvidia-smi | none."""

    gpus: tuple[Gpu, ...] = ()
    source: str = "none"
    driver: str = ""
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class GpuDiscovery:
    """Looks at the GPUs. ``env`` is what the asked programs get: PATH, LD_LIBRARY_PATH. ``host_memory`` tells total
    and available bytes."""

    env: Mapping[str, str] = field(default_factory=dict)
    deadline: float = DEADLINE
    host_memory: Callable[[], tuple[int, int]] = field(default_factory=lambda: _host_memory)
    classes: Classes = field(default_factory=Classes)
    _absent_until: float = 0.0
    _stuck: asyncio.subprocess.Process | None = None
    _latest: GpuSample = GpuSample()

    async def sample(self) -> GpuSample:
        now = asyncio.get_running_loop().time()
        if now < self._absent_until and not os.path.exists(DEVICE):  # noqa: PTH110, ASYNC240 - one stat of /dev
            return GpuSample()
        if self._stuck is not None and self._stuck.returncode is None:
            # It can't be killed, so another would hang beside it, and so on with every look.
            return self._silent([f"asking for GPUs: pid {self._stuck.pid} still hangs in the driver"])
        problems: list[str] = []
        for source, ask in (("nvml", self._by_nvml), ("nvidia-smi", self._by_nvidia_smi)):
            try:
                found = await _attempt(source, ask, problems)
            except NoAnswerError as wrong:
                # Whoever is asked next would ask the same driver, and wait for it just as long.
                problems.append(f"asking for GPUs by {source}: {wrong}")
                self._stuck = wrong.process
                break
            if found is not None:
                await self.classes.load()
                judged = self._judged(found, source)
                # Why another source had to be asked first, too: it is all that tells of a binding that has broken.
                self._latest = replace(judged, problems=(*problems, *judged.problems))
                await self.classes.keep()
                return self._latest
        if self._latest.gpus:
            return self._silent(problems or ["its driver is no longer there"])
        if not problems:
            self._absent_until = now + ABSENT_FOR
        return GpuSample(problems=tuple(problems))

    def bus(self, uuid: str) -> str:
        """The PCI address of a GPU, or of a MIG instance's, as it was seen last; empty: it has not been seen."""
        return next((gpu.pci for gpu in self._latest.gpus if gpu.uuid == uuid), "")

    async def _by_nvml(self) -> Look:
        binding = importlib.util.find_spec("pynvml")
        if binding is None or binding.origin is None:
            return Look(absent="its binding is not installed")
        folder = str(Path(binding.origin).parent)
        argv = [sys.executable, "-I", "-S", str(CHILD), folder]
        return codec.loads(Look, await ask_program(argv, env=self.env, deadline=self.deadline), strict=True)

    async def _by_nvidia_smi(self) -> Look:
        return await nvidia_smi.ask(self.env, deadline=self.deadline)

    # ---- Judging ----------------------------------------------------------------------------------------

    def _judged(self, look: Look, source: str) -> GpuSample:
        whole = {one.uuid: one for one in look.gpus if one.parent is None}
        parents = [one.parent for one in look.gpus if one.parent is not None]
        gpus = [self._gpu(one, whole.get(one.parent or ""), parents.count(one.uuid)) for one in look.gpus]
        present = {gpu.uuid for gpu in gpus}
        problems = list(look.problems)
        for lost in look.lost:
            known = self._known(lost, present)
            if known is None:
                number = "" if lost.index is None else f" {lost.index}"
                place = f" at {bus_id(lost.pci)}" if lost.pci else ""
                problems.append(f"GPU{number}{place}: {lost.why}")
            else:
                gone = [one for one in self._latest.gpus if known.uuid in (one.uuid, one.parent)]
                gpus += [replace(one, health=(lost.why,), processes=()) for one in gone]
                present.add(known.uuid)
        gpus.sort(key=lambda gpu: gpu.index)  # stable: instances stay behind their GPU
        return GpuSample(gpus=tuple(gpus), source=source, driver=look.driver, problems=tuple(problems))

    def _known(self, lost: Lost, present: set[str]) -> Gpu | None:
        """The GPU that was there when it could still be asked. Numbers only count while no place is told."""
        for gpu in self._latest.gpus:
            if gpu.parent is None and gpu.uuid not in present:
                pci = bus_id(lost.pci)
                if gpu.pci == pci if pci and gpu.pci else gpu.index == lost.index:
                    return gpu
        return None

    def _silent(self, problems: list[str]) -> GpuSample:
        """Nothing answers any more: what was there is shown as it was, and not to be used."""
        why = f"it can't be asked any more: {problems[-1]}"
        gpus = tuple(replace(gpu, health=(why, *gpu.health)) for gpu in self._latest.gpus)
        return replace(self._latest, gpus=gpus, problems=tuple(problems))

    def _gpu(self, one: Reading, parent: Reading | None, instances: int) -> Gpu:
        notes = health.notes(one)
        if not one.total and not one.fatal and one.parent is None and _INTEGRATED.search(one.name):
            one, notes = self._integrated(one), (*notes, SHARED)
        inherited = health.broken(parent) if parent is not None else ()
        reasons = (*health.reasons(one, instances=instances), *(f"{INHERITED}{why}" for why in inherited))
        around = parent or one
        total = one.total or 0
        return Gpu(
            uuid=one.uuid,
            index=one.index,
            name=one.name,
            gpu_class=self.classes.of(one.uuid, one.name, total),
            memory_total=total,
            memory_used=one.used or 0,
            memory_free=one.free,
            pci=bus_id(around.pci),
            compute_capability=one.capability or around.capability,
            parent=one.parent,
            nvlink_peers=one.peers,
            topology=one.topology,
            ecc_volatile=one.ecc_volatile,
            ecc_aggregate=one.ecc_aggregate,
            health=reasons,
            notes=notes,
            processes=tuple(_process(held) for held in one.processes),
        )

    def _integrated(self, one: Reading) -> Reading:
        """Used is what its processes hold: what the host itself uses is nobody's claim on the GPU."""
        total, available = self.host_memory()
        used = sum(held.memory or 0 for held in one.processes)
        kept = {what: why for what, why in one.refused.items() if what != "memory"}
        return replace(one, total=total, used=used, free=available, refused=kept)


async def _attempt(source: str, ask: Callable[[], Awaitable[Look]], problems: list[str]) -> Look | None:
    """None: ask in another way."""
    try:
        look = await ask()
    except FileNotFoundError:
        return None
    except NoAnswerError:
        raise
    except (AskError, ValueError, OSError) as wrong:
        problems.append(f"asking for GPUs by {source}: {wrong}")
        return None
    if look.error:
        problems.append(f"asking for GPUs by {source}: {look.error}")
    return None if look.error or look.absent else look


def _host_memory() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def _process(held: Held) -> GpuProcess:
    """Inside a pid namespace the driver tells the host's pids: then nobody here is called so."""
    try:
        process = psutil.Process(held.pid)
        with process.oneshot():
            return GpuProcess(
                pid=held.pid, user=process.username(), memory=held.memory, command=process.name()
            )
    except (psutil.Error, KeyError):
        return GpuProcess(pid=held.pid, user="?", memory=held.memory)
