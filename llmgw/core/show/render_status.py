"""Status and history as text."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from llmgw.core.amounts import at, ranges, size, span
from llmgw.core.seen.drained import DRAINED
from llmgw.core.show.newest import newest_text
from llmgw.core.show.status import JobRow, ModelRow, NodeRow, ReplicaRow, Status
from llmgw.model.alerts import Alert, Severity

_SIGNS = {"ready": "+", "failed": "!", "unknown": "!", "missing": "!", "backoff": "~", "unreachable": "!"}

HELD_SHOWN = 5
"""Lines of the output of what failed; `--json` has all that are kept."""


def _plain(text: str, sign: str) -> str:
    del sign
    return text


def status_text(status: Status, *, paint: Callable[[str, str], str] = _plain) -> str:
    """Models, replicas, nodes and jobs, as tables that fit a terminal; long texts stand below their row."""
    lines = [_head(status)]
    lines += [newest_text(status.newest)] if status.newest is not None else []
    lines += [f"Changes: {status.gate.text}"] if status.gate is not None else []
    lines += [""]
    lines += _table(("MODEL", "READY", "SERVED AS", ""), [_model(row) for row in status.models], paint)
    lines += _held(status)
    lines += _lacking(status)
    if status.replicas:
        lines += ["", *_replicas(status.replicas, paint)]
    if status.nodes:
        lines += ["", *_nodes(status.nodes, paint)]
    if status.jobs:
        rows = [_job(row) for row in status.jobs]
        lines += ["", *_table(("JOB", "NODE", "STATE", "PROGRESS", "WHAT"), rows, paint)]
    if status.alerts:
        lines += ["", *_alerts(status.alerts, paint)]
    return "\n".join(lines) + "\n"


def _head(status: Status) -> str:
    commit = f"commit {status.commit[:10]}" if status.commit else "nothing applied yet"
    commit = f"{commit} signed by {status.signer}" if status.signer else commit
    when = f" at {at(status.outcome_at)}" if status.outcome_at is not None else ""
    last = f", last pass {status.outcome}{when}" if status.outcome else ""
    busy = f"; {status.holder} is applying" if status.holder else ""
    return f"Fleet {status.fleet}: {commit}, serial {status.serial}{last}{busy}"


def _model(row: ModelRow) -> tuple[str, ...]:
    held = f"held: {row.held}" if row.held else ""
    return (row.name, f"{row.ready}/{row.wanted}", row.served_name, held)


def _held(status: Status) -> list[str]:
    """What brought a spec that is not tried again, and what was written last by who failed with it; who waits for room."""
    lines: list[str] = []
    for row in status.models:
        if row.held_since:
            lines.append(f"    {row.name}: held since {row.held_since}{':' if row.held_lines else ''}")
        lines += [f"      | {line}" for line in row.held_lines[-HELD_SHOWN:]]
        lines += [f"    {text}" for text in row.evicted]
    return lines


def _lacking(status: Status) -> list[str]:
    """Why there is less than is asked for, where no row of a replica below could tell it."""
    lacking = [
        row.name for row in status.models if row.placed + len(row.evicted) < row.wanted and not row.held
    ]
    if not lacking or status.holder:
        return []
    told = [f"    last pass: {error}" for error in status.errors]
    return [
        *told,
        f"    not placed: {', '.join(lacking)}: `llmgw plan` says where it would go, or why nowhere; `llmgw apply` does it",
    ]


def _replicas(rows: Sequence[ReplicaRow], paint: Callable[[str, str], str]) -> list[str]:
    head = ("REPLICA", "STATE", "NODE", "GPUS", "COMPUTES ON", "SINCE", "URL")
    cells = [
        (
            row.replica,
            _managed(row),
            ",".join(row.nodes),
            _gpus(row.gpus) or "-",
            _computes_on(row),
            at(row.since) if row.since is not None else "",
            row.url,
        )
        for row in rows
    ]
    widths = _widths(head, cells)
    lines = [_line(head, widths)]
    for row, cell in zip(rows, cells, strict=True):
        lines.append(paint(_line(cell, widths), _SIGNS.get(row.state, "")))
        lines += [f"    {note}" for note in _notes(row)]
    return lines


def _managed(row: ReplicaRow) -> str:
    """Its state, and whether anybody looks after it."""
    if row.recorded:
        return row.state
    return f"{row.state} ({'forgotten' if row.forgotten else 'unrecorded'})"


def _gpus(labels: Sequence[str]) -> str:
    """``0-3`` for ``gpu01:0`` to ``gpu01:3``; with the node where there are several. What has no number stays as it is."""
    nodes: dict[str, list[int]] = {}
    for label in labels:
        node, _, index = label.rpartition(":")
        if not (node and index.isdigit()):
            return ",".join(labels)
        nodes.setdefault(node, []).append(int(index))
    told = {node: ranges(indices).replace(" ", "") for node, indices in nodes.items()}
    return "".join(told.values()) if len(told) == 1 else " ".join(map(":".join, told.items()))


def _computes_on(row: ReplicaRow) -> str:
    """``0-3, 281.2 GiB``; ``cpu``; ``?``: nobody has told."""
    memory = f", {size(row.computing_memory)}" if row.computing_memory else ""
    return f"{_gpus(row.computes_on)}{memory}" or "?"


def _notes(row: ReplicaRow) -> Iterable[str]:
    if row.reason:
        yield row.reason
    if row.forgotten:
        yield row.forgotten
    yield from row.by_hand
    for rank in row.ranks:
        yield f"rank {rank.rank} on {rank.node}: {rank.state}" + (f", {rank.reason}" if rank.reason else "")
    yield from (
        f"adapter {each.name}: {each.state}" + (f", {each.reason}" if each.reason else "")
        for each in row.adapters
    )
    if row.last_error and row.last_error not in row.reason:
        yield f"last error: {row.last_error}"
    yield from (f"  {line}" for line in row.ended)
    if row.last_line and row.state not in ("ready", "stopped"):
        yield f"last line: {row.last_line}"


def _nodes(rows: Sequence[NodeRow], paint: Callable[[str, str], str]) -> list[str]:
    head = ("NODE", "REACH", "AGENT", "GPUS FREE", "CLASS")
    cells = [
        (
            row.name,
            row.reach + node_mark(row),
            row.agent or "-",
            f"{row.gpus_free}/{row.gpus}" if row.gpus else "-",
            row.gpu_class,
        )
        for row in rows
    ]
    widths = _widths(head, cells)
    lines = [_line(head, widths)]
    for row, cell in zip(rows, cells, strict=True):
        lines.append(paint(_line(cell, widths), _SIGNS.get(row.reach, "")))
        lines += [f"    {told}" for told in node_told(row)]
        lines += [f"    {problem}" for problem in row.problems]
    return lines


def node_mark(row: NodeRow) -> str:
    """What is to become of it, beside whether it answers."""
    if row.leaving:
        return " (leaving)"
    if row.drain:
        return " (drained)" if row.drain == DRAINED else " (draining)"
    return " (cordoned)" if row.cordoned else ""


def node_told(row: NodeRow) -> Iterator[str]:
    """Since when it is silent and what follows from that; what keeps it from being empty."""
    if row.unreachable_since is not None:
        told = f"unreachable since {at(row.unreachable_since)}"
        if row.brake:
            told += f"; what is recorded there is not started elsewhere: {row.brake}"
        elif row.replaced_from is not None:
            told += f"; what is recorded there is started elsewhere from {at(row.replaced_from)} on"
        yield told
    if row.drain not in ("", DRAINED):
        yield row.drain


def _job(row: JobRow) -> tuple[str, ...]:
    done = size(row.done_bytes) if row.done_bytes else ""
    total = f" of {size(row.total_bytes)}" if row.total_bytes else ""
    rate = f", {size(row.rate)}/s" if row.rate else ""
    left = f", {span(row.left)} left" if row.left is not None else ""
    what = f"{row.description}: {row.error}" if row.error else row.description
    return (row.job, row.node, row.state, f"{done}{total}{rate}{left}".strip(), what)


def _alerts(alerts: Sequence[Alert], paint: Callable[[str, str], str]) -> list[str]:
    """What is wrong, and below each what helps."""
    head = ("ALERT", "SEVERITY", "OF", "SINCE")
    cells = [
        (each.kind.value, each.severity.value, each.address, at(each.since) if each.since is not None else "")
        for each in alerts
    ]
    widths = _widths(head, cells)
    lines = [_line(head, widths)]
    for each, cell in zip(alerts, cells, strict=True):
        lines.append(paint(_line(cell, widths), "!" if each.severity is Severity.CRITICAL else "~"))
        lines.append(f"    {each.text}")
        lines += [f"    {each.do}"] if each.do else []
    return lines


def _table(
    head: tuple[str, ...], rows: Sequence[tuple[str, ...]], paint: Callable[[str, str], str]
) -> list[str]:
    widths = _widths(head, rows)
    return [_line(head, widths), *(paint(_line(row, widths), "") for row in rows)]


def _widths(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(head, *rows, strict=True)]


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def history_text(entries: Iterable[tuple[str, str, str, str, str, str]]) -> str:
    """``entries``: serial, time, who, the manifests' commit, outcome and subject, newest first."""
    rows = list(entries)
    if not rows:
        return "Nothing was ever applied.\n"
    lines = _table(("SERIAL", "WHEN", "BY", "COMMIT", "OUTCOME", "WHAT"), rows, _plain)
    return "\n".join(lines) + "\n"
