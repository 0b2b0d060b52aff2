"""What a shard really computes on: what its processes hold of the GPUs, by a look at all of them. Pure."""

from llmgw.agent.seams import ProcessId
from llmgw.model.facts import Gpu
from llmgw.model.launch import LaunchSpec
from llmgw.model.report import ComputesOn
from llmgw.model.struct import Struct

IDLE_MEMORY = 1024**3
"""Bytes that a GPU without any process may show as used: the driver's own part, some hundred MiB."""
NOBODY_HERE = "?"
"""The user of a process that only the driver knows: inside a pid namespace it tells the host's numbers."""


class Computing(Struct):
    """What was seen last, and of which engine process: it says nothing of the next one."""

    on: ComputesOn
    engine: ProcessId


def seen(spec: LaunchSpec, gpus: tuple[Gpu, ...]) -> ComputesOn | None:
    """GPUs that its processes hold memory of; none: the CPU. None when the look can't tell: a GPU that it claims was not
    seen, or somebody holds it whom nobody knows here."""
    held = {
        gpu.uuid: sum(process.memory or 0 for process in gpu.processes if process.shard == spec.shard)
        for gpu in gpus
        if any(process.shard == spec.shard for process in gpu.processes)
    }
    there = {gpu.uuid: gpu for gpu in gpus}
    if held or all(claim.uuid in there and _told(there[claim.uuid]) for claim in spec.claims.gpus):
        return ComputesOn(gpus=held)
    return None


def _told(gpu: Gpu) -> bool:
    """Whether everybody who holds memory of it is named."""
    if gpu.health or any(process.user == NOBODY_HERE for process in gpu.processes):
        return False
    return bool(gpu.processes) or gpu.memory_used <= IDLE_MEMORY
