"""Everything about one node on one page. Decides nothing."""

from collections.abc import Iterable, Iterator

from llmgw.cli.nodes.hardware import adapter_lines, gpu_lines, interface_lines
from llmgw.cli.nodes.text import Line
from llmgw.controller.nodes.layout import agent_program
from llmgw.core.amounts import at, size
from llmgw.core.seen.cautions import clock_text
from llmgw.core.seen.condition import changed
from llmgw.core.seen.drained import DRAINED
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import EngineFact, Facts
from llmgw.model.report import NodeObservation, Report, ShardReport


def page(node: DesiredNode, seen: NodeObservation, line: Line) -> str:
    """Everything about one node that a person may want to know at once."""
    report = seen.report
    told = [f"{node.name}  ({node.where})"]
    told += _pairs(_head(node, seen, line))
    told += _section("Problems", line.problems)
    if seen.facts is not None:
        told += _section("GPUs", gpu_lines(seen.facts, report))
        told += _section("Adapters", adapter_lines(seen.facts))
        told += _section("Network", interface_lines(seen.facts, node.address))
        told += _section(
            "Disks", (f"{it.path}: {size(it.free)} of {size(it.total)} free" for it in seen.facts.disks)
        )
        told += _section("Engines", map(_engine, seen.facts.engines))
        told += _section(
            "Weights",
            (f"{it.description or it.digest[:12]}  {size(it.size)}  {it.path}" for it in seen.facts.weights),
        )
    if report is not None:
        told += _section("Shards", _shards(report, seen.facts))
        told += _section(
            "Jobs",
            (
                f"{it.job}  {it.state}  {it.description}{f': {it.error}' if it.error else ''}"
                for it in report.jobs
            ),
        )
    return "\n".join(told) + "\n"


def _head(node: DesiredNode, seen: NodeObservation, line: Line) -> Iterator[tuple[str, str]]:
    spec, ssh = node.spec, node.spec.ssh
    yield "pool", f"{spec.pool} {line.mark}".rstrip()
    if spec.transport == "ssh" and ssh is not None:
        way = f"{ssh.user}@{ssh.host}:{ssh.port}" + (" with sudo" if ssh.become == "sudo" else "")
        yield "reached by", f"ssh {way}{f' by {ssh.jump}' if ssh.jump else ''}"
        yield "on the node", agent_program(spec)
    else:
        yield "reached by", f"local, {spec.local.work_dir if spec.local else ''}"
    yield "address", node.address
    yield "reach", line.reach
    yield from (("", told) for told in line.told)
    if line.drain == DRAINED:
        yield "drained", "its agent reports no live shard and no job"
    if seen.report is not None:
        agent = seen.report.agent
        yield "agent", f"{agent.version} as {agent.user or '?'}, pid {agent.pid}, since {at(agent.started)}"
        yield "fleet", agent.fleet or "none yet"
    if seen.skew is not None:
        yield "clock", f"{clock_text(seen.skew)} this one's" if abs(seen.skew) >= 1 else "right"
    if seen.facts is not None:
        yield from _machine(seen.facts)
    yield "ports", f"{spec.ports.from_port} to {spec.ports.to_port}{_taken(seen.facts)}"


def _machine(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "system", ", ".join(part for part in (facts.os, facts.kernel, facts.arch, facts.libc) if part)
    yield "processors", str(facts.cpus)
    free = f", {size(facts.memory_available)} available" if facts.memory_available is not None else ""
    shm = f", /dev/shm {size(facts.shm_total)}" if facts.shm_total is not None else ""
    yield "memory", f"{size(facts.memory_total)}{free}{shm}"
    source = f" (by {facts.gpu_source})" if facts.gpu_source != "none" else ""
    yield "driver", f"{facts.driver or 'none'}{source}"
    if facts.policy is not None:
        yield "policy", facts.policy.file + (f": {facts.policy.obstacle}" if facts.policy.obstacle else "")


def _taken(facts: Facts | None) -> str:
    if facts is None:
        return ""
    taken = f"; in use: {', '.join(map(str, facts.listening))}" if facts.listening else ""
    given = facts.ephemeral_ports
    return taken + (f"; the kernel gives {given[0]} to {given[1]} to outgoing connections" if given else "")


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    listed = list(pairs)
    width = max(len(key) for key, _ in listed)
    return [f"  {key:<{width}}  {value}" for key, value in listed]


def _section(title: str, entries: Iterable[str]) -> list[str]:
    listed = list(entries)
    return ["", title, *(f"  {entry}" for entry in listed)] if listed else []


def _engine(engine: EngineFact) -> str:
    flags = f"  {len(engine.flags)} flags known" if engine.flags is not None else ""
    unknown = f"  flags not known: {engine.flags_problem}" if engine.flags_problem else ""
    version = f" {engine.version}" if engine.version else ""
    return f"{engine.name}{version}  {engine.program or engine.path}{flags}{unknown}"


def _shards(report: Report, facts: Facts | None) -> Iterator[str]:
    for shard in sorted(report.shards, key=lambda it: it.shard):
        port = f", port {shard.port}" if shard.port is not None else ""
        rank = f", rank {shard.rank} of {shard.ranks}" if shard.ranks > 1 else ""
        reason = f" ({shard.reason})" if shard.reason else ""
        on = _computes_on(shard, facts)
        hand = f", {changed(shard, 'it')}" if shard.by_hand is not None else ""
        yield f"{shard.shard}: {shard.state}{reason} since {at(shard.since)}{port}{rank}, model {shard.model}{on}{hand}"


def _computes_on(shard: ShardReport, facts: Facts | None) -> str:
    """``, computes on GPU 0 with 70.1 GiB``; empty: nobody has told."""
    on = shard.computes_on
    if on is None:
        return ""
    if not on.gpus:
        return ", computes on the CPU"
    indices = (
        {gpu.uuid: str(gpu.index) for gpu in facts.gpus if gpu.parent is None} if facts is not None else {}
    )
    parts = (f"{indices.get(uuid, uuid)} with {size(memory)}" for uuid, memory in sorted(on.gpus.items()))
    return f", computes on GPU {', '.join(parts)}"
