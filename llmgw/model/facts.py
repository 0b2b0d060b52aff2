"""Facts: what a node is. Found by the agent's discovery, by the read-only probe, or pretended from a file.

Sizes are bytes. Health is a list of reasons, never a bare boolean: empty means healthy.
"""

from collections.abc import Mapping
from typing import Any

from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.struct import Struct, Time, default_of, field, fields, replace


class GpuProcess(Struct):
    """A process that holds memory of a GPU. ``shard`` is set when it is proven to be one of ours."""

    pid: int
    user: str
    memory: int | None = None  # None: the driver does not tell
    command: str = ""
    shard: str | None = None


class Xid(Struct):
    """An error that the driver has told the kernel of, the last of its number for this GPU since boot, and how often it
    came. ``at`` may be off by seconds."""

    number: int
    at: Time
    text: str
    count: int = 1


INHERITED = "its GPU: "
"""Begins a reason against a MIG instance that is one against its GPU."""


class Gpu(Struct):
    """One GPU or MIG instance. The index only matters in the moment of launch; everything else uses the UUID."""

    uuid: str
    index: int
    name: str
    gpu_class: str  # name + rounded real GiB: l40s-45g
    memory_total: int
    memory_used: int = 0
    memory_free: int | None = None
    pci: str = ""  # as sysfs writes it: 0000:19:00.0; a MIG instance's is its GPU's
    compute_capability: str = ""  # "9.0"
    parent: str | None = None  # a MIG instance's GPU
    nvlink_peers: tuple[str, ...] = ()  # UUIDs
    topology: tuple[str, ...] = ()
    """How near it is to each GPU of the node, by their index: X itself, NV by NVLink, PIX, PXB, PHB, NODE, SYS; empty
    text: not told."""
    ecc_volatile: int | None = None  # uncorrected memory errors since the driver was loaded; None: not told
    ecc_aggregate: int | None = None  # in the GPU's whole life
    health: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what is odd about it, and no reason against using it
    xids: tuple[Xid, ...] = ()  # of the last day
    processes: tuple[GpuProcess, ...] = ()


class Gid(Struct):
    """One entry of an HCA port's GID table. The RoCE v2 entry with an IPv4 address differs by machine."""

    index: int
    gid: str
    gid_type: str  # "IB/RoCE v1" | "RoCE v2" | ""
    netdev: str = ""


class HcaPort(Struct):
    """A port of an InfiniBand or RoCE adapter. ``rate`` in Gb/s, meaningless unless ACTIVE."""

    device: str
    port: int
    link_layer: str  # "InfiniBand" | "Ethernet" | "Unknown"
    state: str  # "ACTIVE", "DOWN", …
    rate: float | None = None
    guid: str = ""  # the adapter's
    gids: tuple[Gid, ...] = ()
    transport: str = ""  # "InfiniBand" | "RoCE" | "iWARP" | ""
    physical: str = ""  # "LinkUp", "Polling" (no cable, no peer), "Disabled", …
    port_guid: str = ""
    netdev: str = ""  # the port's network interface
    bond: tuple[str, ...] = ()  # the interfaces that netdev bonds


class Interface(Struct):
    name: str
    addresses: tuple[str, ...] = ()
    speed: int | None = None  # Mb/s
    up: bool = True


class Disk(Struct):
    """A file system that one of the agent's directories lies on."""

    path: str
    total: int
    free: int


class EngineFact(Struct):
    """An engine installed on the node, or, without version and digest, one at a path whose help was asked for.

    ``flags`` is None until its help has been read, and when it could not be: ``flags_problem`` then says why.
    ``program`` is where the program lies whose help it was, where that is not the one that would be started."""

    name: str
    version: str
    digest: str
    path: str
    flags: tuple[str, ...] | None = None
    flags_problem: str = ""
    program: str = ""


class WeightsFact(Struct):
    """Weights present on the node, complete and verified."""

    digest: str
    path: str
    size: int
    description: str = ""


class Facts(Struct):
    """What a node is. Absent parts are empty, with a reason among ``problems``: failing discovery is
    reported, never fatal."""

    hostname: str = ""
    boot_id: str = ""
    arch: str = ""  # "x86_64"
    libc: str = ""  # "glibc-2.36"
    os: str = ""
    kernel: str = ""
    python: str = ""
    cpus: int = 0
    memory_total: int = 0
    memory_available: int | None = None
    shm_total: int | None = None
    ephemeral_ports: tuple[int, int] | None = None
    driver: str = ""
    gpu_source: str = "none"  # nvml | nvidia-smi | pretended | none
    gpus: tuple[Gpu, ...] = ()
    hca_ports: tuple[HcaPort, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    disks: tuple[Disk, ...] = ()
    engines: tuple[EngineFact, ...] = ()
    weights: tuple[WeightsFact, ...] = ()
    listening: tuple[int, ...] = ()  # TCP ports with a listener, within the node's port range
    policy: LocalPolicy | None = None  # what the machine's own people allow there; None: everything
    problems: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    def stable(self) -> "Facts":
        """The part that plans may use without an agent: nothing that changes by itself every minute, so
        that the record is only rewritten when the node has really changed."""
        return replace(
            self,
            memory_available=None,
            listening=(),
            gpus=tuple(_stable_gpu(gpu) for gpu in self.gpus),
            disks=tuple(replace(disk, free=0) for disk in self.disks),
        )

    def pretending(self, pretended: "Facts") -> "Facts":
        """What ``pretended`` names replaces what is real. GPUs and adapters always come from it, so that a pretended
        node on a GPU machine never claims a real one."""
        named: dict[str, Any] = {
            one.name: getattr(pretended, one.name)
            for one in fields(Facts)
            if not one.required and getattr(pretended, one.name) != default_of(one)
        }
        if pretended.memory_total and pretended.memory_available is None:
            named["memory_available"] = pretended.memory_total
        named |= {"gpus": pretended.gpus, "hca_ports": pretended.hca_ports, "gpu_source": "pretended"}
        return replace(self, **named)


def _stable_gpu(gpu: Gpu) -> Gpu:
    """Errors that matter are among its health's reasons."""
    return replace(
        gpu,
        memory_used=0,
        memory_free=None,
        processes=(),
        ecc_volatile=None,
        ecc_aggregate=None,
        notes=(),
        xids=(),
    )
