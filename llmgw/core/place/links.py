"""Which of a node's GPUs belong together: those that NVLink connects, where a rank takes several and not all are alike."""

from collections.abc import Sequence

from llmgw.core.place.claims import GpuLedger, NodeLedger


def best_linked(free: Sequence[GpuLedger], wanted: int) -> list[GpuLedger]:
    """``wanted`` of the free ones with as many connections among them as can be had by adding the best one each time; of
    equals those that come first. All there are where these are too few."""
    if not 1 < wanted < len(free):
        return list(free[:wanted])
    every = wanted * (wanted - 1) // 2
    best: list[GpuLedger] = []
    most = -1
    for seed in free:
        group = _grown(seed, free, wanted)
        links = _links(group)
        if links > most:
            best, most = group, links
        if most == every:
            break
    return sorted(best, key=free.index)


def all_linked(ledger: NodeLedger, uuids: set[str]) -> bool:
    """Whether every one of these GPUs reaches every other by NVLink."""
    chosen = [entry for entry in ledger.gpus if entry.gpu.uuid in uuids]
    return len(chosen) > 1 and _links(chosen) == len(chosen) * (len(chosen) - 1) // 2


def _grown(seed: GpuLedger, free: Sequence[GpuLedger], wanted: int) -> list[GpuLedger]:
    group = [seed]
    rest = [entry for entry in free if entry is not seed]
    while len(group) < wanted:
        nearest = max(rest, key=lambda entry: sum(_linked(entry, member) for member in group))
        group.append(nearest)
        rest = [entry for entry in rest if entry is not nearest]
    return group


def _links(group: Sequence[GpuLedger]) -> int:
    return sum(_linked(one, other) for index, one in enumerate(group) for other in group[index + 1 :])


def _linked(one: GpuLedger, other: GpuLedger) -> bool:
    return other.gpu.uuid in one.gpu.nvlink_peers or one.gpu.uuid in other.gpu.nvlink_peers
