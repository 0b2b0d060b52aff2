"""What a source tells of the GPUs, before anybody judges it: NVML's child and ``nvidia-smi`` say the same thing in the
same words. Values only. None is *not told*, and never a zero."""

import re
from collections.abc import Mapping

from llmgw.model.struct import Struct, field

_BUS = re.compile(
    r"^(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?$", re.IGNORECASE
)


class Held(Struct):
    """A process on a GPU. ``memory`` in bytes."""

    pid: int
    memory: int | None = None


class Reading(Struct):
    """One GPU or MIG instance. Sizes in bytes. ``refused``: questions without an answer, and what was said instead.
    ``fatal``: answers that mean that nothing can be computed on it."""

    uuid: str
    index: int
    name: str = ""
    total: int | None = None
    used: int | None = None
    free: int | None = None
    pci: str = ""
    capability: str = ""
    parent: str | None = None
    mig: bool = False  # split, or ready to be
    mig_pending: bool = False  # a reset will change that
    unnamed: int = 0  # MIG instances of it that have no UUID that is told
    peers: tuple[str, ...] = ()
    topology: tuple[str, ...] = ()
    ecc_volatile: int | None = None
    ecc_aggregate: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pages_pending: bool | None = None
    repair_pending: bool | None = None
    unrepairable: bool | None = None
    sram_worn: bool | None = None  # more errors of its on-chip memory than its maker allows
    action: str = ""  # what the driver wants done
    refused: Mapping[str, str] = field(default_factory=dict)
    fatal: tuple[str, ...] = ()
    processes: tuple[Held, ...] = ()


class Lost(Struct):
    """A GPU that is listed and can't be reached: without its UUID, so known only by place."""

    why: str
    index: int | None = None
    pci: str = ""


class Look(Struct):
    """One look at all GPUs. ``absent``: there is nothing to ask, which is no problem; ``error``: there is, and it
    answers nothing."""

    driver: str = ""
    gpus: tuple[Reading, ...] = ()
    lost: tuple[Lost, ...] = ()
    problems: tuple[str, ...] = ()
    absent: str = ""
    error: str = ""


def bus_id(text: str) -> str:
    """A PCI address as sysfs writes it. ``00000000:9B:00.0``, ``0000:9b:00`` -> ``0000:9b:00.0``; empty when it is
    none."""
    found = _BUS.match(text.strip())
    if found is None:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()
