"""Numbers for Prometheus, out of a snapshot. Names and labels are promises: dashboards and alert rules are built on them.

Labels are words of ours or names out of manifests; of those only so many are told one by one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llmgw.controller.serving.snapshot import BOUNDS, Snapshot
from llmgw.core.seen.condition import Health
from llmgw.core.show.status import Status
from llmgw.model.alerts import Alert, AlertKind, Severity
from llmgw.model.report import Reach, ShardState

MOST = 500
"""Models, and nodes, with numbers of their own; a fleet with more is watched by its sums."""
OTHER = "other"
STATES = tuple(sorted({*(state.value for state in ShardState), *(health.value for health in Health)}))


@dataclass(slots=True)
class Counts:
    """What nobody else counts: answers to webhooks and what became of notices. Only grow."""

    webhooks: Counter[tuple[str, int]] = field(default_factory=Counter)
    notices: Counter[tuple[str, str]] = field(default_factory=Counter)

    def webhook(self, name: str, status: int) -> None:
        self.webhooks[name, status] += 1

    def notice(self, to: str, ended: str) -> None:
        """``ended``: sent | failed | dropped."""
        self.notices[to, ended] += 1


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    """What prometheus_client's encoders ask for."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.families


class Page:
    """One answer to a scrape after the other."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def of(self, known: Snapshot) -> Collector:
        return _Families(tuple(self._all(known)))

    def _all(self, known: Snapshot) -> Iterator[Metric]:
        yield from _process(known)
        yield from _passes(known)
        yield from _git(known)
        if known.status is not None:
            yield from _fleet(known.status)
            yield from _models(known.status)
            yield from _nodes(known.status)
            yield _alerts(known.status.alerts)
        yield _counted(
            "llmgw_webhooks",
            "Webhooks by the status that they were answered with.",
            ("webhook", "status"),
            {(name, str(status)): count for (name, status), count in self._counts.webhooks.items()},
        )
        yield _counted(
            "llmgw_notices",
            "Notices by whom they were for and what became of them.",
            ("to", "outcome"),
            self._counts.notices,
        )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _counted(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, str], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _process(known: Snapshot) -> Iterator[Metric]:
    about = {"version": known.version, "fleet": known.fleet, "holder": known.holder, "branch": known.ref}
    yield InfoMetricFamily("llmgw", "This process and whom it works for.", value=about)
    yield _gauge("llmgw_start_time_seconds", "When this process started.", known.started.timestamp())


def _passes(known: Snapshot) -> Iterator[Metric]:
    totals = known.totals
    yield _counted(
        "llmgw_passes",
        "Passes by what led to them and how they ended.",
        ("trigger", "outcome"),
        totals.passes,
    )
    yield _counted("llmgw_steps", "Steps of plans by what became of them.", ("kind", "outcome"), totals.steps)
    bounds = (*map(str, BOUNDS), "+Inf")
    sums = [sum(totals.durations.counts[: at + 1]) for at in range(len(bounds))]
    yield HistogramMetricFamily(
        "llmgw_pass_duration_seconds",
        "How long passes took.",
        buckets=list(zip(bounds, sums, strict=True)),
        sum_value=totals.durations.total,
    )
    if known.last_pass is not None:
        ended = known.last_pass.begun.timestamp() + known.last_pass.seconds
        yield _gauge("llmgw_last_pass_timestamp_seconds", "When the last pass ended.", ended)
        yield _gauge(
            "llmgw_last_pass_exit_code", "As `llmgw apply` would have ended; 0 is good.", known.last_pass.code
        )
    if known.last_good is not None:
        yield _gauge(
            "llmgw_last_good_pass_timestamp_seconds",
            "When a pass last succeeded.",
            known.last_good.timestamp(),
        )


def _git(known: Snapshot) -> Iterator[Metric]:
    yield _gauge("llmgw_source_up", "Whether the manifests' repository can be read.", not known.source_error)
    yield _gauge("llmgw_plan_changes", "Changes of the last plan that are not blocked.", known.changes)
    yield _gauge("llmgw_plan_blocked", "Changes of the last plan that are blocked.", known.blocked)
    yield _gauge("llmgw_drift", "What was changed outside of llmgw, as the last plan told.", known.drift)
    applied = known.applied
    if known.head is not None:
        current = applied is not None and known.head in (applied.commit, known.same)
        told = "Whether what the newest commit asks for is what was applied last."
        yield _gauge("llmgw_head_applied", told, current)
    if applied is None:
        return
    yield InfoMetricFamily("llmgw_applied", "The commit applied last.", value={"commit": applied.commit})
    yield _gauge("llmgw_applied_serial", "Number of the last record.", applied.serial)
    if applied.at is not None:
        when = applied.at.timestamp()
        yield _gauge("llmgw_applied_timestamp_seconds", "When the commit applied last was applied.", when)


def _fleet(status: Status) -> Iterator[Metric]:
    states: Counter[tuple[str, ...]] = Counter({(state,): 0 for state in (*STATES, OTHER)})
    for replica in status.replicas:
        for state in [rank.state for rank in replica.ranks] or [replica.state]:
            states[state if state in STATES else OTHER,] += 1
    yield _labelled("llmgw_shards", "Shards by state.", ("state",), states)
    reached: Counter[tuple[str, ...]] = Counter({(reach.value,): 0 for reach in Reach})
    reached.update((node.reach,) for node in status.nodes)
    yield _labelled("llmgw_nodes", "Nodes by whether they can be reached.", ("reach",), reached)
    free = sum(node.gpus_free for node in status.nodes)
    taken = sum(node.gpus for node in status.nodes) - free
    yield _labelled(
        "llmgw_gpus",
        "GPUs of the nodes that are known.",
        ("state",),
        {("allocated",): taken, ("free",): free},
    )
    jobs: Counter[tuple[str, ...]] = Counter((job.kind, job.state) for job in status.jobs)
    yield _labelled("llmgw_jobs", "Jobs on nodes that run, wait or have failed.", ("kind", "state"), jobs)


def _models(status: Status) -> Iterator[Metric]:
    told = status.models[:MOST]
    yield _labelled(
        "llmgw_model_replicas_wanted",
        f"Replicas that a commit asks for; of the first {MOST} models.",
        ("model",),
        {(model.name,): model.wanted for model in told},
    )
    yield _labelled(
        "llmgw_model_replicas_ready",
        f"Replicas that serve; of the first {MOST} models.",
        ("model",),
        {(model.name,): model.ready for model in told},
    )
    held = sum(1 for model in status.models if model.held)
    yield _gauge("llmgw_models_held", "Models whose newest spec failed and is not tried again.", held)


def _nodes(status: Status) -> Iterator[Metric]:
    told = status.nodes[:MOST]
    yield _labelled(
        "llmgw_node_gpus",
        f"GPUs that a node has; of the first {MOST} nodes.",
        ("node",),
        {(node.name,): node.gpus for node in told},
    )
    yield _labelled(
        "llmgw_node_gpus_free",
        f"GPUs that nothing holds; of the first {MOST} nodes.",
        ("node",),
        {(node.name,): node.gpus_free for node in told},
    )
    yield _labelled(
        "llmgw_node_reachable",
        f"Whether a node's agent answers; of the first {MOST} nodes.",
        ("node",),
        {(node.name,): node.reach == Reach.OK.value for node in told},
    )


def _alerts(alerts: Iterable[Alert]) -> Metric:
    """Every kind is there all the time, so that a rule can see it come."""
    counts: Counter[tuple[str, ...]] = Counter(
        {(kind.value, severity.value): 0 for kind in AlertKind for severity in Severity}
    )
    counts.update((alert.kind.value, alert.severity.value) for alert in alerts)
    return _labelled(
        "llmgw_alerts", "What is wrong right now; `llmgw status` tells each.", ("kind", "severity"), counts
    )
