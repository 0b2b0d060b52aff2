"""What an apply is doing right now, a line a replica: agent, install, fetch, loading, ready.

The board only keeps and words what it is told; how it is shown (moving lines on a terminal, plain lines elsewhere) is
decided in :mod:`llmgw.cli.show`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmgw.core.amounts import size, span
from llmgw.model.ids import parse_replica_id, parse_shard_id
from llmgw.model.plan import Plan, Step, StepKind, StepOutcome, StepResult
from llmgw.model.report import JobReport, JobState, ShardReport, ShardState
from llmgw.wire.messages import WatchEvent

_BEGUN: Mapping[StepKind, str] = {
    StepKind.BOOTSTRAP: "starting the agent",
    StepKind.INSTALL: "asking for the engine",
    StepKind.FETCH: "asking for the weights",
    StepKind.START: "asked to start",
    StepKind.DRAIN: "draining",
    StepKind.STOP: "stopping",
}
_WAITING: Mapping[StepKind, str] = {
    StepKind.AWAIT_JOBS: "waiting for what it needs",
    StepKind.AWAIT_READY: "waiting to be ready",
}
_ENDED = frozenset({JobState.DONE.value, JobState.FAILED.value, JobState.CANCELLED.value})
_SILENT = frozenset({ShardState.READY.value, ShardState.STOPPED.value, ShardState.FAILED.value})
"""What a replica that was there before says nothing new by."""
LINE = 60
"""Letters of an engine's last line that are shown."""


@dataclass(slots=True)
class Row:
    """One replica on its way. ``stage`` changes seldom, ``detail`` all the time."""

    label: str
    node: str
    stage: str = "waiting"
    detail: str = ""
    since: float = 0.0
    needs: frozenset[str] = frozenset()
    over: bool = False

    def text(self, now: float) -> str:
        took = f" ({span(now - self.since)})" if not self.over and now - self.since >= 1 else ""
        between = " " if self.stage == ShardState.READY.value else ": "  # ready after 12s
        return f"{self.label}: {self.stage}{took}{between if self.detail else ''}{self.detail}"


@dataclass(slots=True)
class _Rate:
    """Bytes a second of one job, over the last few reports."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def add(self, now: float, done: int) -> None:
        self.seen = [*self.seen[-9:], (now, done)]

    def value(self) -> float:
        (first, before), (last, after) = self.seen[0], self.seen[-1]
        return (after - before) / (last - first) if last > first else 0.0


class Board:
    """The rows of everything an apply commands. ``monotonic`` gives seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.now = monotonic
        self.rows: dict[str, Row] = {}
        self._jobs: dict[tuple[str, str], JobReport] = {}
        self._rates: dict[tuple[str, str], _Rate] = {}

    # ---- what is told ------------------------------------------------------------------------------

    def planned(self, plan: Plan) -> None:
        """Rows for every replica that is started; those of an earlier pass stay. A replica that has not been started by then may
        be placed elsewhere now: it is named by where its first rank is."""
        for step in plan.steps:
            if step.launch is not None:
                row = self._row(step)
                row.needs = frozenset(step.launch.needs)
                shard = parse_shard_id(step.shard) if step.shard else None
                if shard is not None and shard[1] == 0:
                    row.label, row.node = _label(step), step.node or ""

    def _row(self, step: Step) -> Row:
        name = step.replica or step.id
        if name not in self.rows:
            self.rows[name] = Row(label=_label(step), node=step.node or "", since=self.now())
        return self.rows[name]

    def step(self, step: Step, result: StepResult | None) -> None:
        if result is None and step.kind in (StepKind.DRAIN, StepKind.STOP):
            self._row(step).over = False
        for row in self._rows_of(step):
            if result is None:
                self._stage(row, _BEGUN.get(step.kind, ""))
            elif result.outcome in (StepOutcome.FAILED, StepOutcome.UNKNOWN):
                self._stage(
                    row, result.outcome.value, result.error, over=result.outcome is StepOutcome.FAILED
                )
            elif result.outcome is StepOutcome.DONE and row.label == f"node {step.node}":
                self._stage(row, "its agent runs", over=True)
            elif result.outcome is StepOutcome.DEFERRED and step.kind in _WAITING:
                self._stage_if_new(row, _WAITING[step.kind])

    def seen(self, node: str, event: WatchEvent) -> None:
        if event.shard is not None:
            self._shard(node, event.shard)
        if event.job is not None:
            self._job(node, event.job)

    # ---- how it is worded --------------------------------------------------------------------------

    def _rows_of(self, step: Step) -> tuple[Row, ...]:
        if step.replica is not None:
            row = self.rows.get(step.replica)
            return (row,) if row is not None else ()
        if step.kind in (StepKind.BOOTSTRAP, StepKind.INSTALL, StepKind.FETCH):
            rows = tuple(row for row in self.rows.values() if row.node == step.node and not row.over)
            return rows if rows or step.kind is not StepKind.BOOTSTRAP else (self._row_of_node(step),)
        return ()

    def _row_of_node(self, step: Step) -> Row:
        """For an agent that is started for no replica of this plan, but to know again what its node runs."""
        fresh = Row(label=f"node {step.node}", node=step.node or "", since=self.now())
        return self.rows.setdefault(f"node/{step.node}", fresh)

    def _shard(self, node: str, shard: ShardReport) -> None:
        if shard.rank and shard.state != ShardState.FAILED.value:
            return  # of a gang the leader tells, and whoever fails
        row = self.rows.get(shard.replica)
        if row is None and shard.state in _SILENT:
            return
        if row is None:  # nothing was commanded of it, and yet it is waited for
            row = Row(label=_named(shard, node), node=node, since=self.now())
            self.rows[shard.replica] = row
        last = f"(took {span(shard.loading_seconds)} last time)" if shard.loading_seconds else ""
        match shard.state:
            case ShardState.INSTALLING.value | ShardState.FETCHING.value:
                if not self._jobs_of(row):
                    self._stage(row, shard.state)
            case ShardState.LOADING.value | ShardState.STARTING.value:
                line = _shown(shard.last_line)
                self._stage(row, shard.state, " ".join(part for part in (last, line) if part))
            case ShardState.READY.value:
                took = f"after {span(shard.loading_seconds)}" if shard.loading_seconds else ""
                self._stage(row, "ready", took, over=True)
            case ShardState.STOPPED.value:
                self._stage(row, "stopped", over=True)
            case ShardState.FAILED.value | ShardState.BACKOFF.value:
                over = shard.state == ShardState.FAILED.value
                self._stage(row, shard.state, shard.last_error or shard.reason, over=over)
            case _:
                self._stage(row, shard.state, shard.reason)

    def _job(self, node: str, job: JobReport) -> None:
        key = (node, job.job)
        self._jobs[key] = job
        self._rates.setdefault(key, _Rate()).add(self.now(), job.done_bytes)
        for row in self.rows.values():
            if row.node == node and job.job in row.needs and not row.over:
                running = [it for it in self._jobs_of(row) if it.state not in _ENDED]
                if running:
                    self._stage(row, *self._job_words(node, running[0]))

    def _jobs_of(self, row: Row) -> tuple[JobReport, ...]:
        found = (self._jobs.get((row.node, job)) for job in sorted(row.needs, reverse=True))
        return tuple(job for job in found if job is not None)

    def _job_words(self, node: str, job: JobReport) -> tuple[str, str]:
        stage = f"{'installing' if job.kind == 'install' else 'fetching'} {job.description}"
        if not job.done_bytes:
            return stage, _shown(job.last_line)
        rate = self._rates[node, job.job].value()
        words = [size(job.done_bytes)]
        if job.total_bytes:
            words.append(f"of {size(job.total_bytes)}")
        if rate > 0:
            words.append(f"at {size(rate)}/s")
            if job.total_bytes:
                words.append(f"{span((job.total_bytes - job.done_bytes) / rate)} left")
        return stage, ", ".join([" ".join(words[:2]), *words[2:]])

    def _stage_if_new(self, row: Row, stage: str) -> None:
        """A pass that waits says less than what the agent has told since."""
        if row.stage in ("waiting", *_BEGUN.values()):
            self._stage(row, stage)

    def _stage(self, row: Row, stage: str, detail: str = "", *, over: bool = False) -> None:
        if row.stage != stage:
            row.since = self.now()
        row.stage, row.detail, row.over = stage, detail, over


def _shown(line: str) -> str:
    """As much of a program's line as a row has room for; what was cut shows."""
    text = " ".join(line.split())
    return text if len(text) <= LINE else f"{text[: LINE - 1]}…"


def _label(step: Step) -> str:
    """``chat/0 on gpu01``; a copy that goes while another comes carries its number."""
    shard = parse_shard_id(step.shard) if step.shard else None
    return _words(shard[0] if shard else step.replica or "", model=step.model, node=step.node)


def _named(shard: ShardReport, node: str) -> str:
    return _words(shard.replica, model=shard.model, node=node)


def _words(replica: str, *, model: str | None, node: str | None) -> str:
    name = parse_replica_id(replica)
    if name is None:
        return f"{replica} on {node}"
    return f"{model or name.prefix}/{name.ordinal}.{name.n} on {node}"
