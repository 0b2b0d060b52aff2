"""What became of the commands of a pass whose controller died: read from what the agents report now.

Pure. A command that left no trace on a node whose agent answers was not carried out; on any other node it stays
unknown.
"""

from collections.abc import Mapping, Sequence

from llmgw.model.facts import EngineFact, WeightsFact
from llmgw.model.plan import Plan, Step, StepKind, StepOutcome, StepResult
from llmgw.model.report import Observed, Reach, Report, ShardState

_ON_THE_WAY_OUT = frozenset({ShardState.STOPPING.value, ShardState.STOPPED.value})
_DRAINED = _ON_THE_WAY_OUT | {ShardState.DRAINING.value}


def became_of(plan: Plan, observed: Observed) -> Mapping[str, StepResult]:
    """What became of every step, by step id."""
    results: dict[str, StepResult] = {}
    for step in plan.steps:
        results[step.id] = StepResult(outcome=_outcome(step, observed, results))
    return results


def _outcome(step: Step, observed: Observed, results: Mapping[str, StepResult]) -> StepOutcome:
    if step.kind is StepKind.PUBLISH:
        known = all(name in results and results[name].outcome is StepOutcome.DONE for name in step.after)
        return StepOutcome.DONE if known else StepOutcome.DEFERRED
    node = observed.nodes.get(step.node or "")
    if step.kind is StepKind.BOOTSTRAP and node is not None and node.reach is Reach.NO_AGENT:
        return StepOutcome.DEFERRED
    if node is None or node.report is None:
        # Without an agent as well: it may have died since, and orders outlive it.
        return StepOutcome.UNKNOWN
    return StepOutcome.DONE if _left_its_trace(step, node.report) else StepOutcome.DEFERRED


def _left_its_trace(step: Step, report: Report) -> bool:
    state = next((it.state for it in report.shards if it.shard == step.shard), None)
    traces: dict[StepKind, bool] = {
        StepKind.BOOTSTRAP: True,
        StepKind.INSTALL: step.install is not None
        and (_has_job(report, step.install.job) or _has(report.facts.engines, step.install.digest)),
        StepKind.FETCH: step.fetch is not None
        and (_has_job(report, step.fetch.job) or _has(report.facts.weights, step.fetch.digest)),
        StepKind.START: state is not None,
        StepKind.DRAIN: state is None or state in _DRAINED,
        StepKind.STOP: state is None or state in _ON_THE_WAY_OUT,
        StepKind.FORGET: state is None,
        StepKind.CANCEL: not any(it.job == step.job for it in report.jobs),
        StepKind.COLLECT: not any(_is_there(name, report) for name in step.collect),
    }
    return traces.get(step.kind, False)


def _is_there(name: str, report: Report) -> bool:
    """Of tools and half-made ones no report tells; a repeat is free."""
    kind, _, digest = name.partition("/")
    return (kind == "engine" and _has(report.facts.engines, digest)) or (
        kind == "weights" and _has(report.facts.weights, digest)
    )


def _has_job(report: Report, job: str) -> bool:
    return any(it.job == job for it in report.jobs)


def _has(kept: Sequence[EngineFact] | Sequence[WeightsFact], wanted: str) -> bool:
    return any(it.digest == wanted for it in kept)
