"""What somebody should look at, out of the same inputs that status and plans are made from: machines that are lost or ill,
and what should run on them and can't. Only told, decided elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from llmgw.core.amounts import at, names, plural, size, span
from llmgw.core.seen.attempts import UP_FOR_LONG, times_given_up, tried_again
from llmgw.core.seen.cautions import clock_caution, expectation
from llmgw.core.seen.condition import LEAVING, Health, condition, waits_for_its_place
from llmgw.core.seen.survey import NodeView, Survey, survey
from llmgw.core.symptoms import LITTLE_DISK, SCARCE_DISK
from llmgw.model.alerts import Alert, AlertKind, Severity, alert_id
from llmgw.model.desired import Desired
from llmgw.model.facts import INHERITED, Facts, Gpu, Xid
from llmgw.model.record import ModelRecord, NodeRecord, RankPlacement, Record, ReplicaRecord, Setback
from llmgw.model.report import JobReport, JobState, Observed, Reach, Report

APPLICATIONS_XIDS = frozenset({8, 11, 13, 31, 43, 45, 66, 68, 69})
"""Errors that NVIDIA's catalogue answers with restarting the application: the engine's death tells them too."""
FATAL_XIDS = frozenset({46, 48, 62, 64, 74, 79, 95, 119, 120, 136, 140, 143})
"""Errors after which the catalogue wants the GPU reset, the machine restarted or the hardware looked at: memory that can't be
corrected, NVLink, a GPU off its bus or that does not answer its driver."""

_RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
Placed = Mapping[str, Sequence[tuple[ReplicaRecord, RankPlacement]]]
"""Recorded ranks, by node."""


def alerts(desired: Desired, record: Record, observed: Observed) -> tuple[Alert, ...]:
    """What is wrong right now, the worst first, no id twice. ``desired`` is what was applied last or is asked for. Ages
    are the reader's to reckon: an alert says since when."""
    return raised(record, survey(desired, record, observed.nodes, offline=False))


def raised(record: Record, seen: Survey) -> tuple[Alert, ...]:
    """The same for who has laid the reports over each other already."""
    placed: dict[str, list[tuple[ReplicaRecord, RankPlacement]]] = {}
    for replica in record.replicas.values():
        for rank in replica.ranks:
            placed.setdefault(rank.node, []).append((replica, rank))
    found = [
        *(each for view in seen.nodes.values() for each in _node(view, record, placed)),
        *(each for model in record.models.values() for each in _model(model)),
        *(each for replica in record.replicas.values() for each in _replica(replica, seen)),
        # Under the same id as what its copy says, of which it knows more.
        *(each for model in record.models.values() for each in _given_up(model, record, seen)),
    ]
    once = {each.id: each for each in found}
    return tuple(sorted(once.values(), key=lambda each: (_RANK[each.severity], each.id)))


# ---- machines ----------------------------------------------------------------------------------------


def _node(view: NodeView, record: Record, placed: Placed) -> Iterator[Alert]:
    known = record.nodes.get(view.name)
    if view.desired is None and known is None:
        return
    if view.desired is not None and (setback := record.setbacks.get(view.name)) is not None:
        yield _setback(view, setback)
    if not _is_gone(view, placed):
        yield from _lost(view, known)
    if view.intruder:
        yield _of(view, AlertKind.NODE_FOREIGN, Severity.CRITICAL, f"{view.intruder}: nothing is done there")
        return
    if view.report is not None:
        yield from _answering(view, view.facts or Facts(), view.report, placed)
        yield from _journal(view, known)
        yield from (_job(view, job) for job in view.report.jobs if job.state == JobState.FAILED.value)


def _answering(view: NodeView, facts: Facts, report: Report, placed: Placed) -> Iterator[Alert]:
    if view.desired is not None and not view.presumed:
        for text in expectation(view.desired, facts):
            yield _of(view, AlertKind.GPUS_MISSING, Severity.CRITICAL, text, do="see `llmgw node doctor`")
    for gpu in facts.gpus:
        yield from _gpu(view, gpu, facts)
    yield from _strangers(view, facts, placed)
    yield from _ports(view, facts, report)
    yield from _disks(view, facts)
    for text in clock_caution(view):
        yield _of(view, AlertKind.CLOCK_SKEW, Severity.WARNING, text)


def _of(
    view: NodeView,
    kind: AlertKind,
    severity: Severity,
    text: str,
    *,
    do: str = "",
    part: str = "",
    since: datetime | None = None,
) -> Alert:
    address = f"node/{view.name}"
    return Alert(
        id=alert_id(kind, address, part),
        kind=kind,
        severity=severity,
        address=address,
        node=view.name,
        text=text,
        do=do,
        since=since,
    )


def _setback(view: NodeView, setback: Setback) -> Alert:
    text = f"its agent could not be set up {plural(setback.count, 'time')} in a row: {setback.error}"
    do = f"it is tried again after a rest, and at once by `llmgw node bootstrap {view.name}`"
    return _of(view, AlertKind.SETUP_FAILED, Severity.WARNING, text, do=do, since=setback.at)


def _is_gone(view: NodeView, placed: Placed) -> bool:
    """Whether somebody took it out of the fleet, and nothing is missed with it."""
    return not view.named and not placed.get(view.name)


def _lost(view: NodeView, known: NodeRecord | None) -> Iterator[Alert]:
    """A machine that never was part of the fleet has nothing to lose."""
    if known is None:
        return
    if view.reach is Reach.UNREACHABLE:
        why = f": {view.error}" if view.error else ""
        text = f"can't be reached{why}"
        do = "what runs there keeps what it holds; see whether the machine is up"
        yield _of(view, AlertKind.AGENT_LOST, Severity.CRITICAL, text, do=do, since=known.unreachable_since)
    elif view.reach is Reach.NO_AGENT and view.desired is not None:
        text = "the machine answers, but no agent runs there"
        yield _of(view, AlertKind.AGENT_LOST, Severity.CRITICAL, text, do="`llmgw apply` starts it again")


def _gpu(view: NodeView, gpu: Gpu, facts: Facts) -> Iterator[Alert]:
    """What a GPU shares with its MIG instances is told once, of the GPU."""
    is_told = any(other.uuid == gpu.parent for other in facts.gpus)
    reasons = [reason for reason in gpu.health if not (is_told and reason.startswith(INHERITED))]
    if reasons:
        kind = AlertKind.GPU_ECC if gpu.ecc_volatile and gpu.parent is None else AlertKind.GPU_UNHEALTHY
        text = f"{_named(gpu)}: {'; '.join(reasons)}"
        do = "nothing new is placed on it; docs/nodes.md tells what each reason wants"
        yield _of(view, kind, Severity.CRITICAL, text, do=do, part=gpu.uuid)
    for xid in gpu.xids:
        yield _xid(view, gpu, xid)


def _xid(view: NodeView, gpu: Gpu, xid: Xid) -> Alert:
    severity = Severity.WARNING
    if xid.number in FATAL_XIDS:
        severity = Severity.CRITICAL
    elif xid.number in APPLICATIONS_XIDS:
        severity = Severity.INFO
    often = f", {xid.count} times" if xid.count > 1 else ""
    text = f"{_named(gpu)}: Xid {xid.number}{often}: {xid.text}"
    do = {
        Severity.CRITICAL: "reset the GPU or restart the machine; have it looked at when it comes again",
        Severity.WARNING: "look it up in NVIDIA's Xid catalogue",
        Severity.INFO: "mostly the engine's own fault: see its log",
    }[severity]
    return _of(view, AlertKind.GPU_XID, severity, text, do=do, part=f"{gpu.uuid}:{xid.number}", since=xid.at)


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"


def _strangers(view: NodeView, facts: Facts, placed: Placed) -> Iterator[Alert]:
    """Memory that somebody else takes from a GPU of ours ends in an engine without memory."""
    ours = {gpu.uuid: replica.id for replica, rank in placed.get(view.name, ()) for gpu in rank.gpus}
    for gpu in facts.gpus:
        foreign = [process for process in gpu.processes if process.shard is None]
        if not foreign or gpu.uuid not in ours:
            continue
        who = names(f"pid {each.pid} of user {each.user}" for each in foreign)
        held = sum(each.memory or 0 for each in foreign)
        much = f" ({size(held)})" if held else ""
        text = f"{_named(gpu)} is {ours[gpu.uuid]}'s, but {who} {'holds' if len(foreign) == 1 else 'hold'} memory of it{much}"
        do = "ask them to end it, or reserve the GPU for people"
        yield _of(view, AlertKind.GPU_STRANGER, Severity.WARNING, text, do=do, part=gpu.uuid)


def _ports(view: NodeView, facts: Facts, report: Report) -> Iterator[Alert]:
    """Somebody listens where a shard is to answer. Facts alone may be older than its own end, so its agent must have met them."""
    held = {
        port: shard.replica
        for shard in report.shards
        if waits_for_its_place(shard)
        for port in shard.claims.ports
    }
    for port in sorted(set(facts.listening) & held.keys()):
        text = f"somebody else listens on port {port}, where {held[port]} is to answer"
        do = "the next `llmgw apply` places it at another port; or end what listens"
        yield _of(view, AlertKind.PORT_TAKEN, Severity.WARNING, text, do=do, part=str(port))


def _disks(view: NodeView, facts: Facts) -> Iterator[Alert]:
    for disk in facts.disks:
        if disk.free >= SCARCE_DISK:
            continue
        severity = Severity.CRITICAL if disk.free < LITTLE_DISK else Severity.WARNING
        text = f"{disk.path}: {size(disk.free)} of {size(disk.total)} free"
        do = "`llmgw node gc`, or move what is not llmgw's"
        yield _of(view, AlertKind.DISK_LOW, severity, text, do=do, part=disk.path)


def _journal(view: NodeView, known: NodeRecord | None) -> Iterator[Alert]:
    """Numbers only grow by one, so what is missing between what was read and what there is was dropped."""
    if view.report is None or known is None or not view.report.journal:
        return
    numbers = [entry.number for entry in view.report.journal]
    read = known.journal_cursor if view.report.journal_last >= known.journal_cursor else 0
    missing = sum(later - earlier - 1 for earlier, later in pairwise((read, *numbers)) if later > earlier)
    if missing:
        text = (
            f"{plural(missing, 'entry', 'entries')} of its journal before number {numbers[-1]} were dropped before anybody "
            "read them: the history does not tell what happened then"
        )
        yield _of(view, AlertKind.JOURNAL_GAP, Severity.INFO, text, do="apply or sync more often")


def _job(view: NodeView, job: JobReport) -> Alert:
    text = f"{job.description}: {job.error or 'it failed without saying why'}"
    do = "it is tried again after a rest; `llmgw status` shows how it goes"
    return _of(view, AlertKind.JOB_FAILED, Severity.WARNING, text, do=do, part=job.job, since=job.ended)


# ---- what should run ---------------------------------------------------------------------------------


def _model(model: ModelRecord) -> Iterator[Alert]:
    held = model.held
    if held is None:
        return
    text = f"commit {held.commit[:10]} brought a spec that failed ({held.reason}); it is not tried again until it changes"
    address = f"model/{model.name}"
    yield Alert(
        id=alert_id(AlertKind.MODEL_HELD, address, held.spec_digest[:8]),
        kind=AlertKind.MODEL_HELD,
        severity=Severity.WARNING,
        address=address,
        text=text,
        do=f"`llmgw status` shows its last output; correct the manifest of {model.name}",
        since=held.at,
        commit=held.commit,
    )


def _replica(replica: ReplicaRecord, seen: Survey) -> Iterator[Alert]:
    if replica.phase in LEAVING:
        return
    state = condition(replica, seen)
    if state.health is not Health.FAILED:
        return
    failure = state.failure
    why = (failure.last_error or failure.reason) if failure is not None else state.text
    node = next((shard.node for shard in state.shards if failure is shard.report), replica.ranks[0].node)
    last = replica.last_exit
    ended = f"; it last ended at {at(last.at)}" if last is not None else ""
    address = f"model/{replica.model}/{replica.ordinal}"
    yield Alert(
        id=alert_id(AlertKind.REPLICA_FAILED, address, replica.spec_digest[:8]),
        kind=AlertKind.REPLICA_FAILED,
        severity=Severity.CRITICAL,
        address=address,
        node=node,
        text=f"{replica.id} has failed: {why}{ended}",
        do=f"llmgw logs {replica.id}",
        since=failure.since if failure is not None else None,
        commit=replica.origin.commit,
    )


def _given_up(model: ModelRecord, record: Record, seen: Survey) -> Iterator[Alert]:
    """One that served and is tried ever less often: until it has run for long again, also while a new copy is on its way."""
    spec = model.last_good_spec
    for ordinal, failed in model.attempts.items():
        if spec is None or model.last_good != failed.spec_digest or not times_given_up(failed, spec.profile):
            continue
        address = f"model/{model.name}/{ordinal}"
        ready = _runs(model, int(ordinal), record, seen)
        row = f" for the {failed.count}. time in a row" if failed.count > 1 else ""
        again = f"it is tried again from {at(tried_again(failed, spec.profile))} on, at once by `llmgw apply --replace {address}`"
        yield Alert(
            id=alert_id(AlertKind.REPLICA_FAILED, address, failed.spec_digest[:8]),
            kind=AlertKind.REPLICA_FAILED,
            severity=Severity.WARNING if ready else Severity.CRITICAL,
            address=address,
            text=f"{failed.replica} failed{row}: {failed.error}{f'; {ready} runs since' if ready else ''}",
            do=f"watch it: it has to run for {span(UP_FOR_LONG.total_seconds())}" if ready else again,
            since=failed.at,
        )


def _runs(model: ModelRecord, ordinal: int, record: Record, seen: Survey) -> str:
    """The copy that is ready; empty where none is."""
    copies = (it for it in record.replicas.values() if (it.model, it.ordinal) == (model.name, ordinal))
    return next((it.id for it in copies if condition(it, seen).health is Health.READY), "")
