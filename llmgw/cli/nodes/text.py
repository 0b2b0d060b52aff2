"""Nodes as rows and as JSON. Decides nothing."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from llmgw.cli.nodes.hardware import living
from llmgw.controller.passes.prepare import Applied
from llmgw.core.show.render_status import node_mark, node_told
from llmgw.core.show.status import NodeRow, status
from llmgw.model.desired import DesiredNode
from llmgw.model.report import NodeObservation, Observed
from llmgw.model.struct import Struct
from llmgw.wire.codec import to_json

FORMAT_VERSION = 1


class Line(Struct):
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
    mark: str = ""  # (draining), (drained), (leaving), (cordoned), or nothing
    told: tuple[str, ...] = ()  # since when it is silent, what is left on it
    drain: str = ""
    unreachable_since: datetime | None = None
    replaced_from: datetime | None = None
    brake: str = ""


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
        shards=len(living(report)) if report is not None else None,
        cordoned=row.cordoned,
        problems=row.problems,
        mark=node_mark(row).strip(),
        told=tuple(node_told(row)),
        drain=row.drain,
        unreachable_since=row.unreachable_since,
        replaced_from=row.replaced_from,
        brake=row.brake,
    )


def table(rows: Iterable[Line]) -> str:
    head = ("NODE", "POOL", "BY", "ADDRESS", "REACH", "AGENT", "GPUS FREE", "CLASS", "SHARDS")
    listed = list(rows)
    cells = [
        (
            row.name,
            row.pool or "-",
            row.transport or "-",
            row.address or "-",
            f"{row.reach} {row.mark}".rstrip(),
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
        out += [line, *(f"    {text}" for text in (*row.told, *row.problems))]
    return "\n".join(out) + "\n"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def as_json(node: DesiredNode, seen: NodeObservation, line: Line) -> dict[str, Any]:
    """What the page tells, whole. The manifest's ``env`` is left out: people write all kinds of things into it."""
    report = seen.report
    return {
        "formatVersion": FORMAT_VERSION,
        "node": to_json(line),
        "where": str(node.where),
        "error": seen.error or None,
        "skew": round(seen.skew, 3) if seen.skew is not None else None,
        "facts": to_json(seen.facts) if seen.facts is not None else None,
        "agent": to_json(report.agent) if report is not None else None,
        "shards": to_json(report.shards) if report is not None else None,
        "jobs": to_json(report.jobs) if report is not None else None,
        "problems": list(report.problems) if report is not None else [],
    }
