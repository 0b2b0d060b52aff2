"""Reads the GPUs through NVML and prints them as JSON, a ``Look`` of readings.py. A program by itself, because a driver
in trouble can make any of these calls hang for ever: the agent gives it a deadline. Imports nothing of llmgw; the
folder that holds NVML's binding is its only argument."""

import ctypes
import json
import sys
from typing import Any

GPU_IS_LOST, RESET_REQUIRED, NO_POWER, NO_INTERRUPTS = 15, 16, 8, 11
FATAL = {
    GPU_IS_LOST: "the GPU is lost: the driver can't reach it",
    RESET_REQUIRED: "the GPU must be reset before it can be used",
    NO_POWER: "the GPU has too little power: are its cables plugged in?",
    NO_INTERRUPTS: "the GPU's interrupts don't reach the kernel",
}
MISMATCH = 18
UPGRADED = "the driver in the kernel and its libraries are of different versions, as after an upgrade: reboot the node"
TOO_SMALL = 7
OLDER = (2, 3, 13, 25)
"""Errors of a driver that knows no second version of a call."""
RACES = 3
"""Attempts at a list that grows while it is read."""
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""How near two GPUs are: on one board or below one PCIe switch, several switches, one host bridge, one NUMA node, no
more than one machine."""
ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "end all work that uses several GPUs",
    4: "end its work, then reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the GPU's bus",
    7: "power the machine off and on",
}


class Device:
    """One GPU or MIG instance. A question without an answer gives None, and stays among ``refused`` with the reason."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.refused: dict[str, str] = {}
        self.fatal: list[str] = []

    def ask(self, what: str, call: str, *arguments: Any, unless: tuple[int, ...] = (), **options: Any) -> Any:
        """``unless``: errors that nobody is told of, because the question is asked in another way next."""
        asked = getattr(self.nvml, call, None)
        if asked is None:
            return None  # a binding that is older than the call
        try:
            return asked(self.handle, *arguments, **options)
        except self.nvml.NVMLError as wrong:
            code = getattr(wrong, "value", None)
            if code in FATAL and FATAL[code] not in self.fatal:
                self.fatal.append(FATAL[code])
            if code not in unless and code not in FATAL:
                self.refused[what] = str(wrong)
        except Exception as wrong:  # noqa: BLE001 - text that is no text, a binding that is at odds with its library
            self.refused[what] = f"{type(wrong).__name__}: {wrong}"
        return None

    def memory(self) -> dict[str, int | None]:
        """The second version counts the driver's own part apart from what is used."""
        version = getattr(self.nvml, "nvmlMemory_v2", None)
        found = None
        if version is not None:
            found = self.ask("memory", "nvmlDeviceGetMemoryInfo", version=version, unless=OLDER)
        if found is None and not self.fatal:
            found = self.ask("memory", "nvmlDeviceGetMemoryInfo")
        if found is None:
            return {"total": None, "used": None, "free": None}
        return {"total": found.total, "used": found.used, "free": found.free}

    def processes(self) -> list[dict[str, Any]]:
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for process in self._running(f"nvmlDeviceGet{kind}RunningProcesses"):
                amounts = (found.get(process.pid), process.usedGpuMemory)
                found[process.pid] = max((one for one in amounts if one is not None), default=None)
        return [{"pid": pid, "memory": memory} for pid, memory in sorted(found.items())]

    def _running(self, call: str) -> Any:
        """Older drivers know the second version of these calls only."""
        attempts = [(f"{call}_v3", (*OLDER, TOO_SMALL))] * RACES + [(f"{call}_v2", OLDER)]
        for version, unless in attempts:
            found = self.ask("processes", version, unless=unless)
            if found is not None:
                return found
        return []

    def capability(self) -> str:
        found = self.ask("compute capability", "nvmlDeviceGetCudaComputeCapability")
        return f"{found[0]}.{found[1]}" if found else ""

    def condition(self) -> dict[str, Any]:
        """What its health is judged by."""
        errors = (self.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,)
        rows = self.ask("remapped rows", "nvmlDeviceGetRemappedRows")
        pages = self.ask("retired pages", "nvmlDeviceGetRetiredPagesPendingStatus")
        repair = self.ask("repairs", "nvmlDeviceGetRepairStatus")
        unrepairable = self.ask("unrepairable memory", "nvmlDeviceGetUnrepairableMemoryFlag_v1")
        ecc = "nvmlDeviceGetTotalEccErrors"
        return {
            "eccVolatile": self.ask("memory errors", ecc, *errors, self.nvml.NVML_VOLATILE_ECC),
            "eccAggregate": self.ask("memory errors", ecc, *errors, self.nvml.NVML_AGGREGATE_ECC),
            "remapPending": bool(rows[2]) if rows else None,
            "remapFailed": bool(rows[3]) if rows else None,
            "pagesPending": None if pages is None else bool(pages),
            "repairPending": any(repair) if repair else None,
            "unrepairable": None if unrepairable is None else bool(unrepairable),
            "sramWorn": self.sram_worn(),
            "action": self.action(),
        }

    def sram_worn(self) -> bool | None:
        kind = getattr(self.nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
        if kind is None:
            return None
        status = kind()
        # The binding hands on what it is given: the structure itself would be taken for an address.
        asked = self.ask("on-chip memory", "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
        return None if asked is None else bool(status.bThresholdExceeded)

    def action(self) -> str:
        number = getattr(self.nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if number is None:
            return ""
        values = self.ask("recovery action", "nvmlDeviceGetFieldValues", [number])
        if not values or values[0].nvmlReturn != 0 or values[0].value.uiVal == 0:
            return ""
        asked_for = values[0].value.uiVal
        return ACTIONS.get(asked_for, f"recovery action {asked_for}")


def text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def reading(device: Device, index: int) -> dict[str, Any]:
    """What a GPU and a MIG instance have in common."""
    uuid = text(device.ask("UUID", "nvmlDeviceGetUUID"))
    found = {
        "uuid": uuid,
        "index": index,
        "name": text(device.ask("name", "nvmlDeviceGetName")),
        **device.memory(),
        "capability": device.capability(),
        "processes": device.processes(),
    }
    return {**found, "refused": device.refused, "fatal": device.fatal}


def whole(device: Device, index: int) -> dict[str, Any]:
    found = reading(device, index)
    pci = device.ask("PCI address", "nvmlDeviceGetPciInfo")
    mig = device.ask("MIG mode", "nvmlDeviceGetMigMode")
    more = {
        "pci": text(pci.busId) if pci else "",
        "mig": bool(mig and mig[0]),
        "migPending": bool(mig and mig[0] != mig[1]),
        **device.condition(),
    }
    return {**found, **more}


def instances(device: Device, parent: dict[str, Any]) -> list[dict[str, Any]]:
    """MIG instances of a GPU: they share its fate, and their processes are no longer told as the GPU's own."""
    if not parent["mig"]:
        return []
    found = []
    for number in range(device.ask("MIG instances", "nvmlDeviceGetMaxMigDeviceCount") or 0):
        handle = device.ask("MIG instances", "nvmlDeviceGetMigDeviceHandleByIndex", number)
        if handle is None:
            continue
        one = reading(Device(device.nvml, handle), parent["index"])
        one["parent"] = parent["uuid"]
        if one["uuid"]:
            found.append(one)
        else:
            parent["unnamed"] = parent.get("unnamed", 0) + 1
    device.refused.pop("MIG instances", None)  # places for instances that are not taken
    held = {process["pid"] for one in found for process in one["processes"]}
    parent["processes"] = [process for process in parent["processes"] if process["pid"] not in held]
    return found


def connect(devices: list[tuple[Device, dict[str, Any]]], count: int) -> None:
    """Who reaches whom by NVLink, directly or through switches, and how far apart the others are."""
    for device, gpu in devices if count > 1 else ():
        near = gpu["topology"] = [""] * count
        peers = gpu["peers"] = []
        near[gpu["index"]] = "X"
        for other, beside in devices:
            if other is device:
                continue
            if _linked(device, other):
                peers.append(beside["uuid"])
                near[beside["index"]] = "NV"
            else:
                level = device.ask("topology", "nvmlDeviceGetTopologyCommonAncestor", other.handle)
                near[beside["index"]] = "" if level is None else LEVELS.get(level, "")


def _linked(one: Device, other: Device) -> bool:
    nvlink = getattr(one.nvml, "NVML_P2P_CAPS_INDEX_NVLINK", None)
    status = one.ask("NVLink", "nvmlDeviceGetP2PStatus", other.handle, nvlink) if nvlink is not None else None
    return status is not None and status == one.nvml.NVML_P2P_STATUS_OK


def look(nvml: Any) -> dict[str, Any]:
    devices: list[tuple[Device, dict[str, Any]]] = []
    lost: list[dict[str, Any]] = []
    count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            device = Device(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as wrong:
            lost.append({"index": index, "why": FATAL.get(getattr(wrong, "value", None) or 0, str(wrong))})
            continue
        gpu = whole(device, index)
        if gpu["uuid"]:
            devices.append((device, gpu))
        else:
            why = [*device.fatal, *(f"{what}: {said}" for what, said in device.refused.items())]
            lost.append({"index": index, "pci": gpu["pci"], "why": (why or ["it has no UUID"])[0]})
    split = {gpu["uuid"]: instances(device, gpu) for device, gpu in devices}
    connect(devices, count)
    gpus = [one for _, gpu in devices for one in (gpu, *split[gpu["uuid"]])]
    return {"driver": driver(nvml), "gpus": gpus, "lost": lost}


def driver(nvml: Any) -> str:
    try:
        return text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return ""


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import pynvml  # noqa: PLC0415 - the argument says where it is

    try:
        pynvml.nvmlInit()
        answer = look(pynvml)
    except pynvml.NVMLError as wrong:
        absent = isinstance(wrong, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        why = UPGRADED if getattr(wrong, "value", None) == MISMATCH else str(wrong)
        answer = {"absent" if absent else "error": why}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
