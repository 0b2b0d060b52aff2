"""What is left on a node that is being drained. Nothing is only said where its agent itself says so."""

from collections.abc import Iterator

from llmgw.core.amounts import names
from llmgw.core.seen.condition import ENDED, unknown_text
from llmgw.core.seen.survey import NodeView, Survey
from llmgw.model.record import Record
from llmgw.model.report import JobState

UNDER_WAY = frozenset({JobState.QUEUED.value, JobState.RUNNING.value})
DRAINED = "drained"


def is_drained(view: NodeView) -> bool:
    """Whether its agent reports that no shard lives there and no job is under way, whoever ordered them."""
    return view.known and not any(_left(view))


def drain_text(view: NodeView, survey: Survey, record: Record) -> str:
    """``drained``, or what holds it: ``being drained: chat-…-0.1-r0 (ready) is left``; empty for a node that is not drained."""
    if view.desired is None or not view.desired.spec.drain:
        return ""
    if not view.known:
        recorded = [it.id for it in record.replicas.values() if view.name in {rank.node for rank in it.ranks}]
        told = (
            f"; {names(recorded)} {'is' if len(recorded) == 1 else 'are'} recorded there" if recorded else ""
        )
        return f"being drained: what is left there is not known: {unknown_text(survey, view.name)}{told}"
    left = list(_left(view, record))
    return f"being drained: {names(left)} {'is' if len(left) == 1 else 'are'} left" if left else DRAINED


def _left(view: NodeView, record: Record | None = None) -> Iterator[str]:
    report = view.report
    for shard in report.shards if report is not None else ():
        if shard.state not in ENDED:
            by_hand = (
                f", {shard.by_hand.verb} by hand by {shard.by_hand.by}" if shard.by_hand is not None else ""
            )
            stray = ", nobody recorded it" if record is not None and not record.knows(shard.replica) else ""
            yield f"{shard.shard} ({shard.state}{by_hand}{stray})"
    for job in report.jobs if report is not None else ():
        if job.state in UNDER_WAY:
            yield f"{job.job} ({job.state})"
