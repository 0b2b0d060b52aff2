"""Machines on which no agent could be set up: how often in a row, so that the next try may wait."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from llmgw.core.amounts import at, plural
from llmgw.core.seen.survey import NodeView, Survey
from llmgw.model.plan import Plan, StepKind, StepOutcome, StepResult
from llmgw.model.record import Setback
from llmgw.model.struct import replace

FIRST_REST = timedelta(minutes=1)
LONGEST_REST = timedelta(minutes=30)
"""A machine that is set up by hand meanwhile is met within this, or at once by ``llmgw node bootstrap``."""
FREE = 1
"""Failures after which the next try waits for nothing: a line that broke is the usual reason."""
MOST_DOUBLINGS = 10


def after(
    setbacks: Mapping[str, Setback], plan: Plan, results: Mapping[str, StepResult], *, now: datetime
) -> Mapping[str, Setback]:
    """With what came of this plan's bootstraps. One whose outcome nobody knows counts as neither."""
    told = dict(setbacks)
    for step in plan.steps:
        result = results.get(step.id)
        if step.kind is not StepKind.BOOTSTRAP or step.node is None or result is None:
            continue
        if result.outcome is StepOutcome.DONE:
            told.pop(step.node, None)
        elif result.outcome is StepOutcome.FAILED:
            before = told.get(step.node)
            count = before.count + 1 if before is not None else 1
            told[step.node] = Setback(count=count, at=now, error=result.error)
    return dict(sorted(told.items()))


def rest_over(setback: Setback) -> datetime:
    """When the next try may begin."""
    if setback.count <= FREE:
        return setback.at
    rest: timedelta = FIRST_REST * 2 ** min(setback.count - FREE - 1, MOST_DOUBLINGS)
    return setback.at + min(rest, LONGEST_REST)


def resting(survey: Survey, setbacks: Mapping[str, Setback], *, now: datetime) -> Survey:
    """The same, with nodes that wait for their next try named. Nothing is placed on one that has no agent."""
    if not setbacks:
        return survey
    views = {name: _view(view, setbacks.get(name), now) for name, view in survey.nodes.items()}
    return replace(survey, nodes=views)


def _view(view: NodeView, setback: Setback | None, now: datetime) -> NodeView:
    if setback is None or (over := rest_over(setback)) <= now:
        return view
    rests = f"its agent could not be set up {plural(setback.count, 'time')} in a row, the last time at {at(setback.at)}: {setback.error}"
    obstacle = view.obstacle or ("without an agent, which could not be set up" if view.bare else "")
    return replace(view, rests=rests, rest_over=over, obstacle=obstacle)
