"""A node's GPUs, adapters and interfaces in words, for its page. Decides nothing."""

from collections.abc import Iterator, Mapping

from llmgw.core.amounts import names, ranges, size
from llmgw.model.facts import Facts, Gpu, HcaPort
from llmgw.model.report import Report, ShardReport

GIDS_SHOWN = 4
"""GIDs of a port that are told one by one; a host with many addresses has hundreds."""


def gpu_lines(facts: Facts, report: Report | None) -> Iterator[str]:
    """One after the other, MIG instances below their GPU, each with who claims and who holds it."""
    claimed = _claims(report)
    for gpu in facts.gpus:
        inset = "" if gpu.parent is None else "  "
        number = f"{gpu.index}: " if gpu.parent is None else ""
        yield f"{inset}{number}{', '.join(_gpu(gpu))}"
        told = (*_place(gpu, facts), *(f"note: {note}" for note in gpu.notes), *_holders(gpu, claimed))
        yield from (f"{inset}   {text}" for text in told)


def _gpu(gpu: Gpu) -> Iterator[str]:
    yield f"{gpu.name} ({gpu.gpu_class})"
    yield size(gpu.memory_total)
    if gpu.memory_used:
        yield f"{size(gpu.memory_used)} used"
    yield "; ".join(gpu.health) or "healthy"
    yield gpu.uuid


def _place(gpu: Gpu, facts: Facts) -> Iterator[str]:
    """Where it is in the machine, and what became of its memory."""
    parts = [f"PCI {gpu.pci}"] if gpu.pci and gpu.parent is None else []
    parts += [f"compute capability {gpu.compute_capability}"] if gpu.compute_capability else []
    if gpu.ecc_aggregate:
        parts.append(f"{gpu.ecc_aggregate} uncorrectable memory errors in its life")
    if parts:
        yield ", ".join(parts)
    if near := _near(gpu, facts):
        yield near


def _near(gpu: Gpu, facts: Facts) -> str:
    """``NVLink to 1-3; SYS to 4-7``, nearest first."""
    indices = {other.uuid: other.index for other in facts.gpus}
    linked = {indices[uuid] for uuid in gpu.nvlink_peers if uuid in indices}
    ways: dict[str, set[int]] = {"NVLink": linked} if linked else {}
    for index, level in enumerate(gpu.topology):
        if level and level != "X" and index not in linked and index != gpu.index:
            ways.setdefault(level, set()).add(index)
    return "; ".join(f"{way} to {ranges(among)}" for way, among in ways.items())


def _claims(report: Report | None) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for shard in living(report) if report is not None else ():
        for claim in shard.claims.gpus:
            part = f" ({size(claim.memory)})" if claim.memory is not None else ""
            found.setdefault(claim.uuid, []).append(f"{shard.shard}{part}")
    return found


def living(report: Report) -> list[ShardReport]:
    return [shard for shard in report.shards if shard.state != "stopped"]


def _holders(gpu: Gpu, claimed: Mapping[str, list[str]]) -> Iterator[str]:
    for shard in claimed.get(gpu.uuid, ()):
        yield f"claimed by {shard}"
    for process in gpu.processes:
        who = (
            f"shard {process.shard}"
            if process.shard
            else f"user {process.user}, {process.command or 'unknown program'}"
        )
        holds = size(process.memory) if process.memory is not None else "memory not told"
        yield f"held by pid {process.pid} ({who}): {holds}"


def adapter_lines(facts: Facts) -> Iterator[str]:
    for port in facts.hca_ports:
        yield f"{port.device} port {port.port}: {', '.join(_port(port))}"
        for gid in port.gids[:GIDS_SHOWN]:
            about = ", ".join(part for part in (gid.gid_type, gid.netdev) if part)
            yield f"   GID {gid.index}: {gid.gid}" + (f" ({about})" if about else "")
        if len(port.gids) > GIDS_SHOWN:
            yield f"   and {len(port.gids) - GIDS_SHOWN} more GIDs: --json tells all"


def _port(port: HcaPort) -> Iterator[str]:
    yield port.transport or f"{port.link_layer} link"
    yield port.state
    if port.state == "ACTIVE" and port.rate:
        yield f"{port.rate:g} Gb/s"
    elif port.physical:
        yield f"physically {port.physical}"
    if port.port_guid or port.guid:
        yield f"GUID {port.port_guid or port.guid}"
    if port.bond:
        yield f"{port.netdev} bonds {names(port.bond)}"
    elif port.netdev:
        yield port.netdev


def interface_lines(facts: Facts, address: str) -> Iterator[str]:
    """``address``: the node's own."""
    for one in facts.interfaces:
        speed = f", {one.speed / 1000:g} Gb/s" if one.speed else ""
        here = " <- engines listen here" if address in one.addresses else ""
        yield f"{one.name}: {', '.join(one.addresses) or 'no address'}{speed}{'' if one.up else ', down'}{here}"
