"""Does one rank fit on one node right now: which GPUs and ports it would get, or what is missing, with numbers."""

from collections.abc import Sequence
from itertools import islice

from llmgw.core.adapter import STATE_IT, Need
from llmgw.core.amounts import names, plural, ranges, size
from llmgw.core.place.claims import GpuLedger, NodeLedger
from llmgw.core.place.links import best_linked
from llmgw.model.claims import GpuClaim
from llmgw.model.manifest import Gpus
from llmgw.model.struct import Struct

NOBODY: frozenset[str] = frozenset()
BLAMED = 4
"""Holders that are named one by one; the GPUs of the others are counted."""


class Fit(Struct):
    ledger: NodeLedger
    gpus: tuple[GpuClaim, ...]
    ports: tuple[int, ...]


class Misfit(Struct):
    """``lack`` is gpus, memory, available (memory that nobody uses) or ports; the words are made by :func:`describe` when somebody reads them."""

    lack: str
    fitting: int = 0  # GPUs, memory or ports that there are


def fit(
    ledger: NodeLedger,
    gpus: Gpus,
    need: Need,
    *,
    without: frozenset[str] = NOBODY,
    soon: bool = False,
    leader: bool = True,
) -> Fit | Misfit:
    """``leader``: it also takes the ports that only the first rank of a gang needs."""
    chosen = _gpus(ledger, gpus, need, without=without, soon=soon)
    if len(chosen) < _wanted(gpus):
        return Misfit(lack="gpus", fitting=len(chosen))
    if need.memory:
        free = ledger.memory_free(without=without, soon=soon)
        if free is None and not ledger.view.presumed:
            return Misfit(lack="memory", fitting=-1)
        if free is not None and free < need.memory:
            return Misfit(lack="memory", fitting=max(free, 0))
        if not (without or soon) and (left := _left_now(ledger)) is not None and left < need.memory:
            return Misfit(lack="available", fitting=left)
    wanted = need.ports + (need.leader_ports if leader else 0)
    ports = ledger.free_ports(wanted)
    if len(ports) < wanted:
        return Misfit(lack="ports", fitting=len(ports))
    claims = tuple(GpuClaim(uuid=entry.gpu.uuid, memory=gpus.share) for entry in chosen)
    return Fit(ledger=ledger, gpus=claims, ports=ports)


def _left_now(ledger: NodeLedger) -> int | None:
    """Host memory that the node's kernel could give away right now, whoever uses the rest; None: not told."""
    facts = ledger.view.facts
    return facts.memory_available if facts is not None and not ledger.view.presumed else None


def suits(ledger: NodeLedger, entry: GpuLedger, gpus: Gpus, need: Need) -> bool:
    """Whether the GPU is of the right kind, whoever holds it. Presumed GPUs of unknown size count as large enough."""
    if gpus.gpu_class is not None and entry.gpu.gpu_class != gpus.gpu_class:
        return False
    if entry.gpu.parent is not None and _wanted(gpus) > 1:
        return False  # CUDA shows a process one MIG instance, however many it is given
    each = need.of(entry.gpu)
    if each is not None and not each.fits:
        return False
    least = max(gpus.min_memory, need.gpu_memory)
    return entry.gpu.memory_total >= least or (ledger.view.presumed and not entry.gpu.memory_total)


def unsuited(ledger: NodeLedger, gpus: Gpus, need: Need) -> tuple[str, str, str]:
    """Reason, need and have of a node none of whose GPUs suits: another kind, too small, or unable to compute so."""
    of_class = [entry for entry in ledger.gpus if gpus.gpu_class in (None, entry.gpu.gpu_class)]
    sums = [each for entry in of_class if (each := need.of(entry.gpu)) is not None and not each.fits]
    if refused := next((each for each in sums if each.refused), None):
        return f"{refused.kind.gpu_class} can't run it: {refused.refused}", "", ""
    if untold := next((each for each in sums if each.unknown), None):
        return f"what it takes there is not known: {untold.unknown}: {STATE_IT}", "", ""
    kinds = sorted({f"{entry.gpu.gpu_class} of {size(entry.gpu.memory_total)}" for entry in ledger.gpus})
    if sums:
        return "too large for its GPUs", sums[0].sum, names(kinds)
    return "has no GPU of that kind", need_text(gpus, need), names(kinds)


def lacks_now(entry: GpuLedger, need: Need) -> int | None:
    """Bytes that are free on a GPU that nobody of ours holds, where the engine takes more as it starts; None: it is enough. What
    our own shards hold is reckoned with elsewhere."""
    each = need.of(entry.gpu)
    if each is None or entry.holdings:
        return None
    gpu = entry.gpu
    free = gpu.memory_free if gpu.memory_free is not None else gpu.memory_total - gpu.memory_used
    return None if free >= each.takes else free


def still_good(ledger: NodeLedger, uuids: tuple[str, ...]) -> bool:
    """Whether GPUs that a replica holds already can still be used: present, healthy, nobody else's."""
    entries = {entry.gpu.uuid: entry for entry in ledger.gpus}
    return all(uuid in entries and not entries[uuid].unusable and not entries[uuid].foreign for uuid in uuids)


def _wanted(gpus: Gpus) -> int:
    return 1 if gpus.share is not None and gpus.per_node else gpus.per_node


def _gpus(
    ledger: NodeLedger, gpus: Gpus, need: Need, *, without: frozenset[str], soon: bool
) -> list[GpuLedger]:
    wanted = _wanted(gpus)
    if not wanted:
        return []
    if gpus.share is None:
        free = (
            entry
            for entry in ledger.gpus
            if suits(ledger, entry, gpus, need)
            and entry.whole(without=without, soon=soon)
            and lacks_now(entry, need) is None
        )
        # Without NVLink one is as good as another: no need to look at all of them.
        return best_linked(list(free), wanted) if ledger.linked else list(islice(free, wanted))
    rooms = [
        (entry.free(without=without, soon=soon), position, entry)
        for position, entry in enumerate(ledger.gpus)
        if suits(ledger, entry, gpus, need) and lacks_now(entry, need) is None
    ]
    # The fullest GPU with room: whole ones stay free for those that need them.
    fitting = sorted(room for room in rooms if room[0] >= gpus.share)
    return [fitting[0][2]] if fitting else []


def need_text(gpus: Gpus, need: Need, kin: Sequence[GpuLedger] = ()) -> str:
    """``2 whole GPUs of 70.0 GiB``, ``12.0 GiB of one GPU``, ``2.0 GiB of memory``; where it was reckoned for the kind of ``kin``:
    the sum."""
    parts = []
    known = next((found for entry in kin if (found := need.of(entry.gpu)) is not None), None)
    if known is not None:
        parts.append(known.sum)
    elif gpus.share is not None and gpus.per_node:
        parts.append(f"{size(gpus.share)} of one GPU")
    elif gpus.per_node:
        kind = f" {gpus.gpu_class}" if gpus.gpu_class else ""
        least = max(gpus.min_memory, need.gpu_memory)
        each = f" with {size(least)} on each" if least else ""
        parts.append(plural(gpus.per_node, f"whole GPU{kind}", f"whole GPUs{kind}") + each)
    if need.memory:
        parts.append(f"{size(need.memory)} of memory")
    return " and ".join(parts) or plural(need.ports, "free port")


def _held(kin: Sequence[GpuLedger]) -> list[str]:
    """Who holds which GPUs: those in the same hands are told together."""
    groups: dict[str, list[int]] = {}
    for entry in kin:
        if not entry.whole():
            groups.setdefault(entry.state(), []).append(entry.gpu.index)
    told = [
        f"GPU {indices[0]} {state}" if len(indices) == 1 else f"each of GPUs {ranges(indices)} {state}"
        for state, indices in groups.items()
    ]
    rest = sum(len(indices) for indices in list(groups.values())[BLAMED:])
    return [*told[:BLAMED], f"{rest} more {'is' if rest == 1 else 'are'} held"] if rest else told


def describe(ledger: NodeLedger, misfit: Misfit, gpus: Gpus, need: Need) -> tuple[str, str, str]:
    """Reason, need and have: the whole story of one node."""
    if misfit.lack == "gpus":
        kin = [entry for entry in ledger.gpus if suits(ledger, entry, gpus, need)]
        held = _held(kin)
        if len(kin) < _wanted(gpus):
            return "too few GPUs", need_text(gpus, need, kin), f"{plural(len(kin), 'GPU')} of that kind"
        free = f"{misfit.fitting} of {plural(len(kin), 'GPU')} free" if gpus.share is None else ""
        short = [
            f"GPU {entry.gpu.index} has only {size(lacking)} free now"
            for entry in kin
            if entry.whole() and (lacking := lacks_now(entry, need)) is not None
        ]
        have = "; ".join(part for part in (free, *held, *short[:BLAMED]) if part)
        return "not enough GPU", need_text(gpus, need, kin), have
    if misfit.lack == "available":
        have = f"{size(misfit.fitting)} available of {size(ledger.memory_total or 0)}, the rest is in use"
        return "not enough memory free right now", f"{size(need.memory)} of memory", have
    if misfit.lack == "memory":
        if misfit.fitting < 0:
            return "its memory is not known", f"{size(need.memory)} of memory", ""
        held = [f"{holding.holder} holds {size(holding.memory or 0)}" for holding in ledger.memory]
        have = ", ".join((f"{size(misfit.fitting)} free of {size(ledger.memory_total or 0)}", *held[:BLAMED]))
        return "not enough memory", f"{size(need.memory)} of memory", have
    ports = ledger.ports
    row = " in a row" if misfit.fitting > 1 or need.ports + need.leader_ports > 1 else ""
    text = f"{misfit.fitting} free{row} of {ports.from_port} to {ports.to_port}"
    return "not enough ports", plural(need.ports, "free port"), text
