"""Agents that obey a newer record than the one at hand: they would refuse every command, and what they run is not what this
record tells of."""

from llmgw.core.seen.survey import NodeView, Survey
from llmgw.model.record import Record
from llmgw.model.struct import replace


def obeying(survey: Survey, record: Record) -> Survey:
    """The same, with nodes that a newer record has commanded taken for unknown."""
    nodes = {name: _view(view, record) for name, view in survey.nodes.items()}
    return replace(survey, nodes=nodes)


def _view(view: NodeView, record: Record) -> NodeView:
    fence = view.report.fence if view.report is not None and not view.intruder else None
    if fence is None or fence.fleet != record.fleet or fence.serial <= record.serial:
        return view
    fenced = (
        f"its agent obeys serial {fence.serial} (intent {fence.intent[:8]}), and this record is at serial {record.serial}: somebody is"
        " applying right now, or the record was set back, or it is not the one that this fleet is applied with"
    )
    return replace(view, fenced=fenced, obstacle=view.obstacle or "obeying a newer record")
