"""Nodes that come, change and go: agents installed and upgraded, machines that Git no longer names."""

from llmgw.core.amounts import at, names, span
from llmgw.core.moves.diff import change as field_change
from llmgw.core.moves.drains import replicas_on, tell_changed, tell_drained, tell_leaving
from llmgw.core.moves.round import Round
from llmgw.core.record.custody import forgotten_on
from llmgw.core.seen.cautions import cautions
from llmgw.core.seen.survey import NodeView
from llmgw.model.manifest import AgentSettings
from llmgw.model.plan import Action, Change, FieldChange, Notice
from llmgw.model.record import NodeRecord
from llmgw.model.report import Reach
from llmgw.model.struct import Struct


class Agents(Struct):
    """Which agents will do: those that are not older than ``oldest``. Others are brought to ``version``, the only one that
    this llmgw can install, and one of that version that was made of other files to ``build``; empty: any will do."""

    oldest: str
    version: str
    build: str

    @staticmethod
    def wanted(asked: AgentSettings, version: str, build: str) -> "Agents":
        """A fleet that asks for less than this llmgw brings keeps what it has until it asks for more."""
        oldest = asked.version or version
        return Agents(oldest=oldest, version=version, build="" if is_older(oldest, version) else build)

    def outdated(self, view: NodeView) -> tuple[str, str, FieldChange] | None:
        """Keyword, reason and difference where the node's agent is to be replaced."""
        if view.report is None or view.desired is None:
            return None
        agent = view.report.agent
        stay = "engines stay as they are"
        if is_older(agent.version, self.oldest):
            to = f", upgraded to {self.version}" if self.oldest != self.version else ": upgraded"
            field = field_change("agent.version", agent.version, self.version)
            return "agent-older", f"agent {agent.version} is older than {self.oldest}{to}, {stay}", field
        # Agents of this machine run from the controller's own files; others have a bundle that was made of them.
        if (
            self.build
            and view.desired.spec.transport == "ssh"
            and agent.version == self.version
            and agent.build != self.build
        ):
            reason = f"agent {agent.version} was made of other files than this llmgw's: replaced, {stay}"
            return "agent-build", reason, field_change("agent.build", agent.build or None, self.build)
        return None


def settle_nodes(round_: Round, *, agents: Agents) -> None:
    for view in round_.survey.nodes.values():
        if not view.named:
            _not_in_git(round_, view)
        elif view.fenced:
            _fenced(round_, view)
        elif view.intruder:
            _block(round_, view, "other-fleet", f"{view.intruder}: nothing is done there")
        elif view.reach is Reach.NO_AGENT:
            _bare(round_, view)
        elif view.reach is Reach.UNREACHABLE:
            _unreachable(round_, view)
        elif view.reach is Reach.NOT_ASKED:
            _unasked(round_, view)
        elif view.report is not None:
            _answering(round_, view, agents)
        _tell_renamed(round_, view)
        tell_changed(round_, view)
        tell_drained(round_, view)
        _look_again(round_, view)
        _caution(round_, view)


def _look_again(round_: Round, view: NodeView) -> None:
    """When its grace ends, there is something to do that nobody will tell of."""
    silence = view.silence
    waits = (
        silence is not None and not silence.given_up and not silence.brake and replicas_on(round_, view.name)
    )
    if waits and silence is not None and silence.over is not None and silence.over > round_.now:
        round_.told.due.append(silence.over)


def _fenced(round_: Round, view: NodeView) -> None:
    reason = (
        f"{view.fenced}: nothing is done there. If nobody is applying, look at the record's history (llmgw history) and at where it is "
        "kept (stateRepo, stateRef); a record that was set back is rebuilt from the agents by llmgw recover"
    )
    _block(round_, view, "newer-record", reason)


def _rests(round_: Round, view: NodeView) -> None:
    """A machine that can't be set up is not tried at every pass; whoever has mended it need not wait."""
    assert view.rest_over is not None
    round_.told.due.append(view.rest_over)
    reason = f"{view.rests}; it is tried again from {at(view.rest_over)} on, and at once by llmgw node bootstrap {view.name}"
    _block(round_, view, "setup-rests", reason)


def _bare(round_: Round, view: NodeView) -> None:
    if view.rests:
        _rests(round_, view)
        return
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
    silence = view.silence
    since = f" since {at(silence.since)}" if silence is not None and silence.since is not None else ""
    _block(
        round_,
        view,
        "unreachable",
        f"can't be reached{since}: {why}; nothing is done there{_held(round_, view)}",
    )


def _held(round_: Round, view: NodeView) -> str:
    """What is there, and what becomes of it."""
    held = replicas_on(round_, view.name)
    if not held:
        return ""
    kept = f"; what runs there keeps what it holds: {names(held)}"
    silence = view.silence
    if silence is None:
        return kept
    if silence.brake:
        return (
            f"{kept}. Nothing is started elsewhere while the brake holds: {silence.brake}. It lets go when enough of them answer; a "
            f"machine that is gone for good is given up by llmgw node remove {view.name} --lost"
        )
    if silence.given_up:
        gone = f"; its replicas are started elsewhere, as far as there is room. Gone for good: llmgw node remove {view.name} --lost"
        return f"{kept}{gone}"
    when = f"from {at(silence.over)} on" if silence.over is not None else "once its grace is over"
    return f"{kept}; started elsewhere {when} ({span(round_.desired.fleet.unreachable.grace)} of grace)"


def _answering(round_: Round, view: NodeView, agents: Agents) -> None:
    known = round_.record.nodes.get(view.name)
    report = view.report
    if report is None or view.desired is None:
        return
    if view.rests:
        _rests(round_, view)
    elif (outdated := agents.outdated(view)) is not None:
        keyword, reason, field = outdated
        round_.book.bootstrap(view.name, reason)
        _tell(round_, view, Action.UPDATE, keyword, reason, (field,))
    if known is None:
        reason = f"new in Git; its agent {report.agent.version} answers"
        round_.book.publish(f"node/{view.name}", model=None, reason=reason)
        _tell(round_, view, Action.CREATE, "new-node", reason)
    elif known.address != view.desired.address:
        _moved(round_, view, known)


def _tell_renamed(round_: Round, view: NodeView) -> None:
    """The record makes it true, and the agent is told its new name; nothing else changes."""
    known = round_.record.nodes.get(view.name)
    if view.desired is None or view.desired.leaving or known is None or not known.formerly:
        return
    old = known.formerly[-1]
    fresh = view.name in round_.renamed_nodes
    to_be_told = view.known and view.report is not None and view.report.agent.node != view.name
    if not fresh and not to_be_told:
        return
    reason = f"renamed from {old}: nothing restarts"
    if to_be_told and not view.rests:
        round_.book.bootstrap(view.name, f"renamed from {old}: its agent is told, engines stay as they are")
    elif fresh:
        round_.book.publish(f"node/{view.name}", model=None, reason=reason)
    else:
        return
    _tell(round_, view, Action.UPDATE, "renamed", reason, (field_change("metadata.name", old, view.name),))


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
    held = replicas_on(round_, view.name)
    if held and view.desired is not None:
        tell_leaving(round_, view)
        return
    if held:
        reason = (
            f"not in Git any more, but {names(held)} {'runs' if len(held) == 1 else 'run'} there and can't be stopped "
            "without it: bring the node back, move its replicas elsewhere, then remove it"
        )
        _block(round_, view, "node-removed", reason)
        return
    if left := forgotten_on(round_.record, view.name):
        reason = (
            f"not in Git any more, but {names(left)} {'runs' if len(left) == 1 else 'run'} there, which nobody manages: adopt it (llmgw"
            f" adopt), stop it there (llmgw-agent stop), or give the machine up (llmgw node remove {view.name} --lost)"
        )
        _block(round_, view, "node-removed", reason)
        return
    reason = "not in Git any more; nothing of ours runs there. Its agent stays until somebody removes it"
    round_.book.publish(f"node/{view.name}", model=None, reason=reason)
    _tell(round_, view, Action.REMOVE, "node-removed", reason)


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
