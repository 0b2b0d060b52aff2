"""How a recorded replica is doing, folded out of its shards' states. Unknown is not stopped.

::

    every rank ready                   ready
    a node that can't be asked         unknown, whatever the others say; given up once that has lasted too long
    a rank failed                      failed
    no rank has a shard on its node    missing
    a rank draining / stopping         draining, stopping
    anything else that lives           coming

A gang lives and dies as a whole: with one rank that has ended, or that its node lost, all of it has failed. Only while it
starts may ranks be missing: their orders have not come yet.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum

from llmgw.core.amounts import at, names
from llmgw.core.seen.survey import SeenShard, Survey
from llmgw.model.ids import shard_id
from llmgw.model.record import Evicted, Held, ReplicaPhase, ReplicaRecord
from llmgw.model.report import Reach, ShardReport, ShardState
from llmgw.model.struct import Struct


class Health(Enum):
    UNKNOWN = "unknown"
    MISSING = "missing"
    COMING = "coming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


LEAVING = frozenset({ReplicaPhase.DRAINING, ReplicaPhase.STOPPING})
"""Told to go: what it holds will be given back without anything else being decided."""
ENDED = frozenset({ShardState.STOPPED.value, ShardState.FAILED.value})
"""States in which a shard has no process and holds nothing of its node."""


class Condition(Struct):
    health: Health
    text: str  # for people: what it is doing and since when
    shards: tuple[SeenShard, ...] = ()
    unknown_nodes: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()  # ranks
    given_up: bool = False
    """Unknown for so long that it is started elsewhere; what it holds stays held."""

    @property
    def leader(self) -> ShardReport | None:
        return next((seen.report for seen in self.shards if seen.report.rank == 0), None)

    @property
    def served(self) -> timedelta:
        """For how long its leader is or was ready at a stretch, by the clock of its own node."""
        leads = next((seen for seen in self.shards if seen.report.rank == 0), None)
        if leads is None or leads.report.ready_at is None:
            return timedelta(0)
        return (leads.report.failed_at or leads.at) - leads.report.ready_at

    @property
    def lost(self) -> tuple[ShardReport, ...]:
        """The ranks whose agents miss something of their orders."""
        return tuple(seen.report for seen in self.shards if seen.report.lost)

    @property
    def alive(self) -> bool:
        """Whether a rank runs on that is not on its way out."""
        going = ENDED | {ShardState.STOPPING.value}
        return any(seen.report.state not in going for seen in self.shards)

    @property
    def failure(self) -> ShardReport | None:
        """The rank that failed; of several the one that explains the others: ranks of a gang take each other along, and
        the first to go may still be on its way out."""
        if not any(seen.report.state == ShardState.FAILED.value for seen in self.shards):
            return None
        ends = [seen.report for seen in self.shards if _has_failed(seen.report)]
        return min(ends, key=_first_to_go)


KILLED = 9
"""SIGKILL: no engine ends itself with it because a peer is gone, as it may with others."""
NOT_AS_PLANNED = ("mismatch:", "its order can't be written", "job ")
"""How agents begin to say that their node is not what the plan took for granted, or that a job did not bring what a
start needs: a full disk or a registry that is away. Jobs have their own rest before they are tried again."""


def outdated(failure: ShardReport) -> bool:
    """Whether the node was not what the plan took for granted: no fault of the spec, so another plan may work."""
    return failure.attempts == 0 and failure.started is None and failure.last_error.startswith(NOT_AS_PLANNED)


def waits_for_its_place(report: ShardReport) -> bool:
    """Whether its agent would start it again and finds that its node is not as it was: a port that somebody else took."""
    return report.state == ShardState.BACKOFF.value and report.last_error.startswith(NOT_AS_PLANNED)


def _has_failed(report: ShardReport) -> bool:
    """A rank that is being ended for not getting ready has failed before its process is gone. One that was told to stop because
    another is gone has not."""
    going = report.state == ShardState.STOPPING.value and report.failed_at is not None
    return going or report.state == ShardState.FAILED.value


def _first_to_go(report: ShardReport) -> tuple[bool, bool, datetime, int]:
    """A kill explains what others end of, in whatever order their ends were seen; else who went wrong first. That a rank got not
    ready counts from when that was found, not from when its process was gone; the signal that its agent ended it with
    counts for nothing."""
    ended = report.last_exit
    failed_at = report.failed_at or (ended.at if ended is not None else report.since)
    by_itself = ended is not None and ended.at <= failed_at
    killed = by_itself and ended is not None and (ended.signal == KILLED or ended.out_of_memory)
    return (not outdated(report), not killed, failed_at, report.rank)


_OFFLINE = {
    ReplicaPhase.STARTING: Health.COMING,
    ReplicaPhase.SERVING: Health.READY,
    ReplicaPhase.DRAINING: Health.DRAINING,
    ReplicaPhase.STOPPING: Health.STOPPING,
}


def condition(replica: ReplicaRecord, survey: Survey) -> Condition:
    """Offline, the record is taken at its word."""
    if survey.offline:
        health = _OFFLINE[replica.phase]
        return Condition(health=health, text=f"recorded as {replica.phase.value}")
    unknown = tuple(dict.fromkeys(rank.node for rank in replica.ranks if not _known(survey, rank.node)))
    seen = _seen(replica, survey.shards)
    if unknown:
        return Condition(
            health=Health.UNKNOWN,
            text=f"nothing is known of it: {unknown_text(survey, unknown[0])}",
            shards=seen,
            unknown_nodes=unknown,
            given_up=any(_given_up(survey, node) for node in unknown),
        )
    present = {shard.report.rank for shard in seen}
    missing = tuple(rank.rank for rank in replica.ranks if rank.rank not in present)
    states = {shard.report.state for shard in seen}
    health = _health(states, missing, replica)
    text = _gang_text(health, seen, missing, replica) if len(replica.ranks) > 1 else _text(health, seen)
    return Condition(health=health, text=text, shards=seen, missing=missing)


def unknown_text(survey: Survey, node: str) -> str:
    view = survey.nodes.get(node)
    if view is None or view.desired is None:
        return f"node {node} is not in Git"
    if view.intruder:
        return f"node {node}: {view.intruder}"
    if view.fenced:
        return f"node {node}: {view.fenced}"
    if view.reach is Reach.NO_AGENT:
        return f"no agent runs on node {node}"
    if view.reach is Reach.UNREACHABLE:
        return f"node {node} can't be reached" + (f": {view.error}" if view.error else "")
    return f"node {node} was not asked"


def _given_up(survey: Survey, node: str) -> bool:
    view = survey.nodes.get(node)
    return view is not None and view.silence is not None and view.silence.given_up


def _known(survey: Survey, node: str) -> bool:
    view = survey.nodes.get(node)
    return view is not None and view.known


def _seen(replica: ReplicaRecord, shards: Mapping[str, SeenShard]) -> tuple[SeenShard, ...]:
    found = (shards.get(shard_id(replica.id, rank.rank)) for rank in replica.ranks)
    nodes = {rank.rank: rank.node for rank in replica.ranks}
    return tuple(shard for shard in found if shard is not None and nodes[shard.report.rank] == shard.node)


def _health(states: set[str], missing: tuple[int, ...], replica: ReplicaRecord) -> Health:
    if not states:
        return Health.MISSING
    if states == {"ready"} and not missing:
        return Health.READY
    for state, health in (
        ("failed", Health.FAILED),
        ("stopping", Health.STOPPING),
        ("draining", Health.DRAINING),
    ):
        if state in states:
            return health
    if states == {"stopped"}:
        return Health.STOPPED
    lost = bool(missing) and replica.phase is not ReplicaPhase.STARTING
    if len(replica.ranks) > 1 and (lost or states & {"stopped", "backoff"}):
        return Health.FAILED
    return Health.COMING


def _text(health: Health, seen: tuple[SeenShard, ...]) -> str:
    if health is Health.MISSING:
        return "its node does not know it"
    telling = next((shard for shard in seen if shard.report.state == health.value), None) or next(
        (shard for shard in seen if shard.report.state != "ready"), seen[0]
    )
    report = telling.report
    reason = f" ({report.reason})" if report.reason else ""
    return f"{report.state} on {telling.node}{reason}"


def _gang_text(
    health: Health, seen: tuple[SeenShard, ...], missing: tuple[int, ...], replica: ReplicaRecord
) -> str:
    """Every rank that is not as it should be, the telling ones first."""
    if health is Health.MISSING:
        return "its nodes do not know it"
    nodes = {rank.rank: rank.node for rank in replica.ranks}
    ready = health is Health.READY
    telling = [shard for shard in seen if ready or shard.report.state != ShardState.READY.value]
    telling.sort(key=lambda shard: shard.report.state != health.value)
    told = [rank_text(shard) for shard in telling]
    told += [f"rank {rank} is not on {nodes[rank]}" for rank in missing]
    return f"{'on its way' if health is Health.COMING else health.value}: {names(told)}"


def changed(report: ShardReport, node: str) -> str:
    """``stopped by hand on gpu03 by ann at …``, for a shard that nobody commanded from here."""
    hand = report.by_hand
    if hand is None:
        return f"{report.state} on {node} by hand"
    return f"{hand.verb} by hand on {node} by {hand.by} at {at(hand.at)}"


def evicted_text(evicted: Evicted) -> str:
    """Of one that has no copy because it made room for another, and is no failure."""
    commit = f"commit {evicted.commit[:10]}, " if evicted.commit else ""
    return f"waits for room: evicted for {evicted.made_room_for} ({commit}serial {evicted.serial})"


def brought_by(held: Held) -> str:
    """``commit 1f0c9a2b3d by Ann <ann@example.org>``: what brought the spec that is held; empty where that is not known."""
    by = f" by {held.author}" if held.author else ""
    return f"commit {held.commit[:10]}{by}" if held.commit else ""


def rank_text(shard: SeenShard) -> str:
    """``rank 1 failed on gpu02 (engine was ended by signal 9)``."""
    report = shard.report
    reason = f" ({report.reason})" if report.reason else ""
    return f"rank {report.rank} {report.state} on {shard.node}{reason}"
