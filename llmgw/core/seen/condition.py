"""How a recorded replica is doing, folded out of its shards' states. Unknown is not stopped.

::

    every rank ready                   ready
    a node that can't be asked         unknown, whatever the others say
    a rank failed                      failed (of a gang: any rank that is not on its way)
    a rank has no shard on its node    missing
    a rank draining / stopping         draining, stopping
    anything else that lives           coming
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from llmgw.core.seen.survey import SeenShard, Survey
from llmgw.model.ids import shard_id
from llmgw.model.record import ReplicaPhase, ReplicaRecord
from llmgw.model.report import Reach, ShardReport, ShardState


class Health(Enum):
    UNKNOWN = "unknown"
    MISSING = "missing"
    COMING = "coming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({ShardState.STOPPED.value, ShardState.FAILED.value})
"""States in which a shard has no process and holds nothing of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    health: Health
    text: str  # for people: what it is doing and since when
    shards: tuple[SeenShard, ...] = ()
    unknown_nodes: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()  # ranks

    @property
    def leader(self) -> ShardReport | None:
        return next((seen.report for seen in self.shards if seen.report.rank == 0), None)

    @property
    def failure(self) -> ShardReport | None:
        return next((seen.report for seen in self.shards if seen.report.state == "failed"), None)


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
        )
    present = {shard.report.rank for shard in seen}
    missing = tuple(rank.rank for rank in replica.ranks if rank.rank not in present)
    health = _health({shard.report.state for shard in seen}, missing, gang=len(replica.ranks) > 1)
    return Condition(health=health, text=_text(health, seen), shards=seen, missing=missing)


def unknown_text(survey: Survey, node: str) -> str:
    view = survey.nodes.get(node)
    if view is None or view.desired is None:
        return f"node {node} is not in Git"
    if view.intruder:
        return f"node {node}: {view.intruder}"
    if view.reach is Reach.NO_AGENT:
        return f"no agent runs on node {node}"
    if view.reach is Reach.UNREACHABLE:
        return f"node {node} can't be reached" + (f": {view.error}" if view.error else "")
    return f"node {node} was not asked"


def _known(survey: Survey, node: str) -> bool:
    view = survey.nodes.get(node)
    return view is not None and view.known


def _seen(replica: ReplicaRecord, shards: Mapping[str, SeenShard]) -> tuple[SeenShard, ...]:
    found = (shards.get(shard_id(replica.id, rank.rank)) for rank in replica.ranks)
    nodes = {rank.rank: rank.node for rank in replica.ranks}
    return tuple(shard for shard in found if shard is not None and nodes[shard.report.rank] == shard.node)


def _health(states: set[str], missing: tuple[int, ...], *, gang: bool) -> Health:
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
    # A gang lives and dies as a whole: one that lost a rank does not come back by itself.
    if gang and (missing or states & {"stopped", "backoff"}):
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
