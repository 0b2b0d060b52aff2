"""Nodes as rows, as pages and as JSON. Decides nothing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from llmgw.controller.nodes.adding import adapters
from llmgw.controller.passes.prepare import Applied
from llmgw.core.amounts import at, size
from llmgw.core.show.status import NodeRow, status
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts, Gpu
from llmgw.model.report import NodeObservation, Observed, Report, ShardReport
from llmgw.wire.codec import to_json

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One node of a list. ``shards`` that are there and have not stopped; None: nobody has told."""

    name: str
    pool: str
    transport: str
    address: str
    reach: str
    agent: str
    gpus: int
    gpus_free: int
    gpu_class: str
    shards: int | None
    cordoned: bool
    problems: tuple[str, ...]


def lines(known: Applied, observed: Observed, *, now: datetime) -> list[Line]:
    """Of the manifests' nodes, and of those that only the record still names."""
    shown = status(known.record, observed, now=now, desired=known.desired)
    return [_line(row, known, observed.nodes.get(row.name)) for row in shown.nodes]


def _line(row: NodeRow, known: Applied, seen: NodeObservation | None) -> Line:
    node, recorded = known.desired.nodes.get(row.name), known.record.nodes.get(row.name)
    report = seen.report if seen is not None else None
    return Line(
        name=row.name,
        pool=node.spec.pool if node is not None else "",
        transport=node.spec.transport if node is not None else "",
        address=node.address if node is not None else recorded.address if recorded is not None else "",
        reach=row.reach if node is not None else "not in Git",
        agent=row.agent,
        gpus=row.gpus,
        gpus_free=row.gpus_free,
        gpu_class=row.gpu_class,
        shards=len(_living(report)) if report is not None else None,
        cordoned=row.cordoned,
        problems=row.problems,
    )


def _living(report: Report) -> list[ShardReport]:
    return [shard for shard in report.shards if shard.state != "stopped"]


def table(rows: Iterable[Line]) -> str:
    head = ("NODE", "POOL", "BY", "ADDRESS", "REACH", "AGENT", "GPUS FREE", "CLASS", "SHARDS")
    listed = list(rows)
    cells = [
        (
            row.name,
            row.pool or "-",
            row.transport or "-",
            row.address or "-",
            row.reach + (" (cordoned)" if row.cordoned else ""),
            row.agent or "-",
            f"{row.gpus_free}/{row.gpus}" if row.gpus else "-",
            row.gpu_class or "-",
            "-" if row.shards is None else str(row.shards),
        )
        for row in listed
    ]
    told = _columns([head, *cells])
    out = [told[0]]
    for row, line in zip(listed, told[1:], strict=True):
        out += [line, *(f"    {problem}" for problem in row.problems)]
    return "\n".join(out) + "\n"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


# ---- one node ----------------------------------------------------------------------------------------


def page(node: DesiredNode, seen: NodeObservation, line: Line) -> str:
    """Everything about one node that a person may want to know at once."""
    report = seen.report
    told = [f"{node.name}  ({node.where})"]
    told += _pairs(_head(node, seen, line))
    told += _section("Problems", line.problems)
    if seen.facts is not None:
        told += _section("GPUs", _gpus(seen.facts, report))
        told += _section("Adapters", adapters(seen.facts))
        told += _section("Network", _network(seen.facts, node))
        told += _section(
            "Disks", (f"{it.path}: {size(it.free)} of {size(it.total)} free" for it in seen.facts.disks)
        )
        told += _section("Engines", (f"{it.name} {it.version}  {it.path}" for it in seen.facts.engines))
        told += _section(
            "Weights",
            (f"{it.description or it.digest[:12]}  {size(it.size)}  {it.path}" for it in seen.facts.weights),
        )
    if report is not None:
        told += _section("Shards", _shards(report))
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
    yield (
        "pool",
        spec.pool + (" (cordoned)" if spec.cordon else "") + (" (being drained)" if spec.drain else ""),
    )
    if spec.transport == "ssh" and ssh is not None:
        way = f"{ssh.user}@{ssh.host}:{ssh.port}" + (" with sudo" if ssh.become == "sudo" else "")
        yield "reached by", f"ssh {way}{f' by {ssh.jump}' if ssh.jump else ''}"
    else:
        yield "reached by", f"local, {spec.local.work_dir if spec.local else ''}"
    yield "address", node.address
    yield "reach", line.reach
    if seen.report is not None:
        agent = seen.report.agent
        yield "agent", f"{agent.version} as {agent.user or '?'}, pid {agent.pid}, since {at(agent.started)}"
        yield "fleet", agent.fleet or "none yet"
    facts = seen.facts
    if facts is not None:
        yield "system", ", ".join(part for part in (facts.os, facts.kernel, facts.arch, facts.libc) if part)
        yield "processors", str(facts.cpus)
        free = f", {size(facts.memory_available)} available" if facts.memory_available is not None else ""
        yield "memory", f"{size(facts.memory_total)}{free}"
        yield "driver", facts.driver or "none"
    taken = (
        f"; in use: {', '.join(map(str, facts.listening))}" if facts is not None and facts.listening else ""
    )
    yield "ports", f"{spec.ports.from_port} to {spec.ports.to_port}{taken}"


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    listed = list(pairs)
    width = max(len(key) for key, _ in listed)
    return [f"  {key:<{width}}  {value}" for key, value in listed]


def _section(title: str, entries: Iterable[str]) -> list[str]:
    listed = list(entries)
    return ["", title, *(f"  {entry}" for entry in listed)] if listed else []


def _gpus(facts: Facts, report: Report | None) -> Iterator[str]:
    claimed = _claims(report)
    for gpu in facts.gpus:
        used = f", {size(gpu.memory_used)} used" if gpu.memory_used else ""
        state = "; ".join(gpu.health) or "healthy"
        yield f"{gpu.index}: {gpu.name} ({gpu.gpu_class}), {size(gpu.memory_total)}{used}, {state}, {gpu.uuid}"
        yield from (f"   {text}" for text in _holders(gpu, claimed))


def _claims(report: Report | None) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for shard in _living(report) if report is not None else ():
        for claim in shard.claims.gpus:
            found.setdefault(claim.uuid, []).append(shard.shard)
    return found


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


def _network(facts: Facts, node: DesiredNode) -> Iterator[str]:
    for one in facts.interfaces:
        speed = f", {one.speed / 1000:g} Gb/s" if one.speed else ""
        here = " <- engines listen here" if node.address in one.addresses else ""
        yield f"{one.name}: {', '.join(one.addresses) or 'no address'}{speed}{'' if one.up else ', down'}{here}"


def _shards(report: Report) -> Iterator[str]:
    for shard in sorted(report.shards, key=lambda it: it.shard):
        port = f", port {shard.port}" if shard.port is not None else ""
        rank = f", rank {shard.rank} of {shard.ranks}" if shard.ranks > 1 else ""
        reason = f" ({shard.reason})" if shard.reason else ""
        yield f"{shard.shard}: {shard.state}{reason} since {at(shard.since)}{port}{rank}, model {shard.model}"


def as_json(node: DesiredNode, seen: NodeObservation, line: Line) -> dict[str, Any]:
    """What the page tells, whole. The manifest's ``env`` is left out: people write all kinds of things into it."""
    report = seen.report
    return {
        "formatVersion": FORMAT_VERSION,
        "node": to_json(line),
        "where": str(node.where),
        "error": seen.error or None,
        "facts": to_json(seen.facts) if seen.facts is not None else None,
        "agent": to_json(report.agent) if report is not None else None,
        "shards": to_json(report.shards) if report is not None else None,
        "jobs": to_json(report.jobs) if report is not None else None,
        "problems": list(report.problems) if report is not None else [],
    }
