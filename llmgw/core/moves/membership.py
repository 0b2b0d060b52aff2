"""Nodes that come, change and go: agents installed and upgraded, machines that Git no longer names."""

from llmgw.core.amounts import names
from llmgw.core.moves.diff import change as field_change
from llmgw.core.moves.round import Round
from llmgw.core.seen.cautions import cautions
from llmgw.core.seen.survey import NodeView
from llmgw.model.plan import Action, Change, FieldChange, Notice
from llmgw.model.record import NodeRecord
from llmgw.model.report import Reach


def settle_nodes(round_: Round, *, agent_version: str) -> None:
    for view in round_.survey.nodes.values():
        if view.desired is None:
            _not_in_git(round_, view)
        elif view.intruder:
            _block(round_, view, "other-fleet", f"{view.intruder}: nothing is done there")
        elif view.reach is Reach.NO_AGENT:
            _bare(round_, view)
        elif view.reach is Reach.UNREACHABLE:
            _unreachable(round_, view)
        elif view.reach is Reach.NOT_ASKED:
            _unasked(round_, view)
        elif view.report is not None:
            _answering(round_, view, agent_version)
        _caution(round_, view)


def _bare(round_: Round, view: NodeView) -> None:
    known = round_.record.nodes.get(view.name)
    if known is None:
        action, keyword = Action.CREATE, "new-node"
        reason = "no agent there yet: it is installed and started"
    else:
        action, keyword = Action.UPDATE, "agent-gone"
        reason = "its agent does not run any more: it is started again, what it ran is adopted"
    if view.facts is None:
        reason += "; what the node is made of is known after bootstrap"
    round_.book.bootstrap(view.name, reason)
    _tell(round_, view, action, keyword, reason)


def _unasked(round_: Round, view: NodeView) -> None:
    """Offline, what was never recorded is taken for a machine without an agent."""
    if round_.survey.offline and view.name not in round_.record.nodes:
        reason = "not recorded yet: its agent is installed unless it runs already"
        if view.facts is None:
            reason += "; what the node is made of is known after bootstrap"
        round_.book.bootstrap(view.name, reason)
        _tell(round_, view, Action.CREATE, "new-node", reason)


def _unreachable(round_: Round, view: NodeView) -> None:
    why = view.error or "no answer"
    held = _replicas_on(round_, view.name)
    runs = f"; what runs there keeps what it holds: {names(held)}" if held else ""
    _block(round_, view, "unreachable", f"can't be reached: {why}; nothing is done there{runs}")


def _answering(round_: Round, view: NodeView, agent_version: str) -> None:
    known = round_.record.nodes.get(view.name)
    report = view.report
    if report is None or view.desired is None:
        return
    if is_older(report.agent.version, agent_version):
        reason = (
            f"agent {report.agent.version} is older than {agent_version}: upgraded, engines stay as they are"
        )
        round_.book.bootstrap(view.name, reason)
        fields = (field_change("agent.version", report.agent.version, agent_version),)
        _tell(round_, view, Action.UPDATE, "agent-older", reason, fields)
    if known is None:
        reason = f"new in Git; its agent {report.agent.version} answers"
        round_.book.publish(f"node/{view.name}", model=None, reason=reason)
        _tell(round_, view, Action.CREATE, "new-node", reason)
    elif known.address != view.desired.address:
        _moved(round_, view, known)


def _moved(round_: Round, view: NodeView, known: NodeRecord) -> None:
    if view.desired is None:
        return
    reason = "its address in Git changed: what runs there is bound to the old one and moves"
    round_.book.publish(f"node/{view.name}", model=None, reason=reason)
    fields = (field_change("spec.address", known.address, view.desired.address),)
    _tell(round_, view, Action.UPDATE, "address-changed", reason, fields)


def _caution(round_: Round, view: NodeView) -> None:
    where = view.desired.where if view.desired is not None else None
    round_.told.warnings += [Notice(text=f"node/{view.name}: {text}", where=where) for text in cautions(view)]


def _not_in_git(round_: Round, view: NodeView) -> None:
    if view.name not in round_.record.nodes:
        return
    held = _replicas_on(round_, view.name)
    if held:
        reason = (
            f"not in Git any more, but {names(held)} {'runs' if len(held) == 1 else 'run'} there and can't be stopped "
            "without it: bring the node back, move its replicas elsewhere, then remove it"
        )
        _block(round_, view, "node-removed", reason)
        return
    reason = "not in Git any more; nothing of ours runs there. Its agent stays until somebody removes it"
    round_.book.publish(f"node/{view.name}", model=None, reason=reason)
    _tell(round_, view, Action.REMOVE, "node-removed", reason)


def _replicas_on(round_: Round, node: str) -> list[str]:
    return sorted(
        replica.id
        for replica in round_.record.replicas.values()
        if any(rank.node == node for rank in replica.ranks)
    )


def _block(round_: Round, view: NodeView, keyword: str, reason: str) -> None:
    _tell(round_, view, Action.BLOCKED, keyword, reason)


def _tell(
    round_: Round,
    view: NodeView,
    action: Action,
    keyword: str,
    reason: str,
    fields: tuple[FieldChange, ...] = (),
) -> None:
    where = view.desired.where if view.desired is not None else None
    round_.told.changes.append(
        Change(
            address=f"node/{view.name}",
            action=action,
            keyword=keyword,
            reason=reason,
            fields=fields,
            where=where,
        )
    )


def is_older(version: str, wanted: str) -> bool:
    """By numbers; versions that are not numbers are never older, so that nothing is replaced by a guess."""
    have, want = _numbers(version), _numbers(wanted)
    return have is not None and want is not None and have < want


def _numbers(version: str) -> tuple[int, ...] | None:
    parts = version.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else None
