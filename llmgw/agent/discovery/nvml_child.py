"""Reads the GPUs through NVML and prints them as JSON. A program by itself, because a driver in trouble can make any of
these calls hang for ever: the agent gives it a deadline. Imports nothing of llmgw."""

import json
import sys
from collections.abc import Callable
from typing import Any

LOST = "the GPU is lost: NVML can't reach it"


def asked(call: Callable[..., Any], *arguments: Any) -> Any:
    """None where the driver or the GPU does not tell."""
    import pynvml  # noqa: PLC0415 - absent on machines without it, which is an answer

    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def processes(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    found: dict[int, int | None] = {}
    for call in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in asked(call, handle) or []:
            found[process.pid] = max(found.get(process.pid) or 0, process.usedGpuMemory or 0) or None
    return [{"pid": pid, "memory": memory} for pid, memory in sorted(found.items())]


def health(nvml: Any, handle: Any) -> list[str]:
    reasons = []
    errors = asked(
        nvml.nvmlDeviceGetTotalEccErrors,
        handle,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    if errors:
        reasons.append(f"{errors} uncorrectable memory errors since the driver was loaded")
    rows = asked(nvml.nvmlDeviceGetRemappedRows, handle)
    if rows and rows[3]:
        reasons.append("remapping of broken memory rows failed")
    if rows and rows[2]:
        reasons.append("broken memory rows wait for a reset of the GPU to be remapped")
    return reasons


def describe(nvml: Any, handle: Any, index: int, parent: str | None) -> dict[str, Any]:
    memory = asked(nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = asked(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    pci = None if parent else asked(nvml.nvmlDeviceGetPciInfo, handle)
    return {
        "uuid": text(asked(nvml.nvmlDeviceGetUUID, handle)),
        "index": index,
        "name": text(asked(nvml.nvmlDeviceGetName, handle)),
        "total": memory.total if memory else None,
        "used": memory.used if memory else None,
        "free": memory.free if memory else None,
        "pci": text(pci.busId) if pci else "",
        "capability": f"{capability[0]}.{capability[1]}" if capability else "",
        "parent": parent,
        "health": [] if parent else health(nvml, handle),
        "processes": processes(nvml, handle),
    }


def instances(nvml: Any, handle: Any, index: int, parent: str) -> list[dict[str, Any]]:
    """MIG instances of a GPU; empty when MIG is off."""
    mode = asked(nvml.nvmlDeviceGetMigMode, handle)
    if not mode or not mode[0]:
        return []
    handles = (
        asked(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        for number in range(asked(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    )
    return [describe(nvml, found, index, parent) for found in handles if found is not None]


def read(nvml: Any) -> dict[str, Any]:
    gpus: list[dict[str, Any]] = []
    problems: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as wrong:
            problems.append(f"GPU {index}: {LOST}: {wrong}")
            continue
        gpu = describe(nvml, handle, index, None)
        parts = instances(nvml, handle, index, gpu["uuid"])
        gpus += parts or [gpu]
    return {
        "driver": text(asked(nvml.nvmlSystemGetDriverVersion)),
        "gpus": gpus,
        "problems": problems,
    }


def main() -> None:
    try:
        import pynvml  # noqa: PLC0415 - its absence is an answer

        pynvml.nvmlInit()
    except ImportError:
        answer: dict[str, Any] = {"absent": "nvidia-ml-py is not installed"}
    except pynvml.NVMLError as wrong:
        absent = isinstance(wrong, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        answer = {"absent" if absent else "error": f"NVML: {wrong}"}
    else:
        try:
            answer = read(pynvml)
        except pynvml.NVMLError as wrong:
            answer = {"error": f"NVML: {wrong}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
