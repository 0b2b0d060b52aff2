"""What a shard or job holds of a node. The one invariant of planner, agent and simulation: claims on a GPU
never exceed it, nor on ports or memory."""

from llmgw.model.struct import Struct


class GpuClaim(Struct):
    """A GPU, named by UUID. ``memory`` in bytes is a share of it; None is the whole GPU."""

    uuid: str
    memory: int | None = None


class Claims(Struct):
    """Everything one shard or job holds on its node. ``memory`` is host memory in bytes."""

    gpus: tuple[GpuClaim, ...] = ()
    memory: int = 0
    ports: tuple[int, ...] = ()
