"""What a shard or job holds of a node. The one invariant of planner, agent and simulation: claims on a GPU
never exceed it, nor on ports or memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClaim:
    """A GPU, named by UUID. ``memory`` in bytes is a share of it; None is the whole GPU."""

    uuid: str
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Everything one shard or job holds on its node. ``memory`` is host memory in bytes."""

    gpus: tuple[GpuClaim, ...] = ()
    memory: int = 0
    ports: tuple[int, ...] = ()
