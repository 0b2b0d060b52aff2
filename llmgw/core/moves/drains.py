"""Nodes that are to be empty: drained by their manifests, or not in Git any more. Their replicas move as any misplaced ones do;
here stands what is told of the node itself."""

from llmgw.core.amounts import names
from llmgw.core.moves.diff import change as field_change
from llmgw.core.moves.diff import differences
from llmgw.core.moves.round import Round
from llmgw.core.seen.condition import unknown_text
from llmgw.core.seen.drained import DRAINED, drain_text
from llmgw.core.seen.survey import NodeView
from llmgw.model.plan import Action, Change, Notice
from llmgw.wire import codec

NOT_TOLD_TWICE = frozenset({"spec.address", "spec.ssh.host"})
"""An address that changed is told as such, with the moves that it makes."""


def tell_changed(round_: Round, view: NodeView) -> None:
    """Its manifest is another one: nothing restarts for that, the record makes it true."""
    node, known = view.desired, round_.record.nodes.get(view.name)
    if node is None or node.leaving or known is None or known.address != node.address:
        return
    if known.spec is None or known.spec == node.spec:
        return
    before, after = codec.to_json(known.spec), codec.to_json(node.spec)
    fields = tuple(
        field_change(path, old, new)
        for path, old, new in differences(before, after, "spec")
        if path not in NOT_TOLD_TWICE
    )
    if node.spec.drain and not known.spec.drain:
        held = replicas_on(round_, view.name)
        keyword, reason = (
            "draining",
            f"it is to be empty: {names(held)} {_goes(held)}" if held else "it takes nothing more",
        )
    elif known.spec.drain and not node.spec.drain:
        keyword, reason = "undrained", "it may take shards again; what has moved away stays where it is"
    else:
        keyword, reason = "updated", "changes in place: what runs there goes on"
    round_.book.publish(f"node/{view.name}", model=None, reason=reason)
    round_.told.changes.append(
        Change(
            address=f"node/{view.name}",
            action=Action.UPDATE,
            keyword=keyword,
            reason=reason,
            fields=fields,
            where=node.where,
        )
    )


def _goes(held: list[str]) -> str:
    return "moves elsewhere" if len(held) == 1 else "move elsewhere"


def tell_drained(round_: Round, view: NodeView) -> None:
    """Whether anything is left, which nobody else tells: moves are told as such."""
    if round_.survey.offline or (view.desired is not None and view.desired.leaving):
        return
    if text := drain_text(view, round_.survey, round_.record):
        more = ": its agent reports no live shard and no job" if text == DRAINED else ""
        _note(round_, view, f"{text}{more}")


def tell_leaving(round_: Round, view: NodeView) -> None:
    """Git does not name it any more, and replicas of the record are there."""
    held = names(replicas_on(round_, view.name))
    if view.known or round_.survey.offline:
        _note(round_, view, f"not in Git any more: it is forgotten once {held} is gone from there")
        return
    reason = (
        f"not in Git any more, and {held} can't be stopped there: {unknown_text(round_.survey, view.name)}, last known at "
        f"{view.desired.address if view.desired is not None else ''}. Nothing is forgotten before it is known to have stopped: "
        f"bring the machine back, or give it up for lost: llmgw node remove {view.name} --lost"
    )
    round_.told.changes.append(
        Change(address=f"node/{view.name}", action=Action.BLOCKED, keyword="node-removed", reason=reason)
    )


def _note(round_: Round, view: NodeView, text: str) -> None:
    where = view.desired.where if view.desired is not None and not view.desired.leaving else None
    round_.told.warnings.append(Notice(text=f"node/{view.name}: {text}", where=where))


def replicas_on(round_: Round, node: str) -> list[str]:
    return sorted(
        replica.id for replica in round_.record.holding if any(rank.node == node for rank in replica.ranks)
    )
