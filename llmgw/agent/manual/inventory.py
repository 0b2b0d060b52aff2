"""What the node is made of and who holds it, as lines for a person. Pure."""

from collections.abc import Iterable, Iterator

from llmgw.model.facts import Facts, Gpu, HcaPort
from llmgw.model.report import ShardReport

GIB = 1024**3
GOING = frozenset({"stopped", "failed"})


def inventory_text(facts: Facts, shards: Iterable[ShardReport]) -> str:
    holding = tuple(shard for shard in shards if shard.state not in GOING)
    sections: tuple[tuple[str, Iterable[str]], ...] = (
        ("Machine", _machine(facts)),
        ("GPUs", (line for gpu in facts.gpus for line in _gpu(gpu, holding))),
        ("InfiniBand and RoCE", (_port(port) for port in facts.hca_ports)),
        (
            "Interfaces",
            (
                f"{one.name}  {', '.join(one.addresses) or 'no address'}{'' if one.up else '  down'}"
                for one in facts.interfaces
            ),
        ),
        ("Disks", (f"{one.path}  {_gib(one.free)} of {_gib(one.total)} free" for one in facts.disks)),
        ("Engines", (f"{one.name} {one.version}  {one.path}" for one in facts.engines)),
        (
            "Weights",
            (f"{one.description or one.digest[:12]}  {_gib(one.size)}  {one.path}" for one in facts.weights),
        ),
        ("Shards", (_shard(shard, facts) for shard in holding)),
        ("Problems", facts.problems),
    )
    lines = [line for title, entries in sections for line in _section(title, entries)]
    return "\n".join(lines) + "\n"


def _section(title: str, entries: Iterable[str]) -> Iterator[str]:
    yield title
    listed = list(entries)
    yield from (f"  {entry}" for entry in listed or ["none"])


def _machine(facts: Facts) -> Iterator[str]:
    yield ", ".join(part for part in (facts.hostname, facts.os, facts.kernel, facts.arch, facts.libc) if part)
    free = f", {_gib(facts.memory_available)} available" if facts.memory_available is not None else ""
    yield f"{facts.cpus} processors, {_gib(facts.memory_total)} of memory{free}"
    if facts.policy is not None:
        yield f"policy {facts.policy.file}" + (f": {facts.policy.obstacle}" if facts.policy.obstacle else "")


def _gpu(gpu: Gpu, shards: tuple[ShardReport, ...]) -> Iterator[str]:
    state = "; ".join(gpu.health) or "healthy"
    yield f"{gpu.index}  {gpu.name} ({gpu.gpu_class})  {_gib(gpu.memory_used)} of {_gib(gpu.memory_total)} used  {state}  {gpu.uuid}"
    for shard in shards:
        for claim in shard.claims.gpus:
            if claim.uuid == gpu.uuid:
                share = _gib(claim.memory) if claim.memory is not None else "whole"
                yield f"   claimed by {shard.shard} ({share})"
    for process in gpu.processes:
        whose = (
            f"shard {process.shard}" if process.shard else f"user {process.user}, {process.command or '?'}"
        )
        held = _gib(process.memory) if process.memory is not None else "memory not told"
        yield f"   held by pid {process.pid} ({whose}): {held}"


def _port(port: HcaPort) -> str:
    rate = f"  {port.rate:g} Gb/s" if port.rate is not None else ""
    state = f"{port.state}{f' ({port.physical})' if port.physical and port.state != 'ACTIVE' else ''}"
    return f"{port.device} port {port.port}  {port.link_layer}  {state}{rate}  {port.netdev or port.guid}".rstrip()


def _shard(shard: ShardReport, facts: Facts) -> str:
    indices = {gpu.uuid: str(gpu.index) for gpu in facts.gpus}
    gpus = ",".join(indices.get(claim.uuid, claim.uuid) for claim in shard.claims.gpus)
    holds = [f"GPUs {gpus}"] if gpus else []
    holds += [f"{_gib(shard.claims.memory)} of memory"] if shard.claims.memory else []
    holds += [f"ports {', '.join(map(str, shard.claims.ports))}"] if shard.claims.ports else []
    return f"{shard.shard}  {shard.state}  pid {shard.pid or '-'}  holds {', '.join(holds) or 'nothing'}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
