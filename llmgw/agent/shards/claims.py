"""Whether a shard's claims fit beside those of the shards that are live: on a GPU, on ports, on host memory. Pure."""

from collections.abc import Mapping

from llmgw.model.claims import Claims
from llmgw.model.facts import Gpu

GIB = 1024**3


def conflict(
    new: Claims, held: Mapping[str, Claims], *, gpus: tuple[Gpu, ...], memory_total: int
) -> str | None:
    """What is in the way, with numbers, or None. ``held`` is by shard; ``memory_total`` 0: not known."""
    return _ports(new, held) or _gpus(new, held, gpus) or _memory(new, held, memory_total)


def _ports(new: Claims, held: Mapping[str, Claims]) -> str | None:
    for shard, claims in held.items():
        if both := sorted(set(new.ports) & set(claims.ports)):
            return f"port {both[0]} is claimed by shard {shard}"
    return None


def _gpus(new: Claims, held: Mapping[str, Claims], gpus: tuple[Gpu, ...]) -> str | None:
    totals = {gpu.uuid: gpu.memory_total for gpu in gpus}
    for claim in new.gpus:
        on_it = {
            shard: other.memory
            for shard, claims in held.items()
            for other in claims.gpus
            if other.uuid == claim.uuid
        }
        whole = next((shard for shard, memory in on_it.items() if memory is None), None)
        if whole is not None:
            return f"GPU {claim.uuid} is claimed as a whole by shard {whole}"
        if claim.memory is None and on_it:
            return f"GPU {claim.uuid} is wanted as a whole, and shard {next(iter(on_it))} holds a share of it"
        taken = sum(memory for memory in on_it.values() if memory is not None)
        total = totals.get(claim.uuid)
        if claim.memory is not None and total is not None and taken + claim.memory > total:
            return (
                f"GPU {claim.uuid} has {_gib(total)}, of which shards claim {_gib(taken)}: {_gib(claim.memory)}"
                " more do not fit"
            )
    return None


def _memory(new: Claims, held: Mapping[str, Claims], total: int) -> str | None:
    taken = sum(claims.memory for claims in held.values())
    if total and new.memory and taken + new.memory > total:
        return f"the node has {_gib(total)} of memory, of which shards claim {_gib(taken)}: {_gib(new.memory)} more do not fit"
    return None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
