"""How a replica goes: out of the endpoints, drained, stopped; each step only if it is still to be done.

A departure begun by an earlier pass is taken up where it stands, whatever interrupted it.
"""

from dataclasses import dataclass

from llmgw.core.amounts import at, names
from llmgw.core.moves.round import Copy, Round
from llmgw.core.seen.condition import Health, unknown_text
from llmgw.model.plan import Action, Change, StepKind
from llmgw.model.problems import Where
from llmgw.model.record import ReplicaPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """``tail``: the step after which nothing is left of it. ``commands``: something is sent to a node for it;
    otherwise it is on its way and only has to be waited for."""

    tail: str
    commands: bool


def depart(round_: Round, copy: Copy, *, reason: str, after: tuple[str, ...] = ()) -> Departure:
    """Never for a replica whose node can't be asked: unknown is not stopped."""
    if copy.state.health is Health.UNKNOWN:
        raise AssertionError(f"{copy.replica.id} can't be stopped: {copy.state.text}")
    replica, book = copy.replica, round_.book
    round_.placer.leave(replica.id, replica.ranks)
    last: tuple[str, ...] = after
    commands = False
    if copy.state.health is Health.READY and replica.phase is not ReplicaPhase.STOPPING:
        last = (book.drain(replica, reason=reason, after=after),)
        commands = True
    draining = commands or copy.state.health is Health.DRAINING
    if draining and replica.phase is not ReplicaPhase.STOPPING:
        last = (book.wait(StepKind.AWAIT_DRAINED, replica.id, model=replica.model, after=last),)
    # A crash passes through stopping too: only one that we asked to go, with every rank, needs no word more.
    if copy.state.health is not Health.STOPPING or not copy.leaving or copy.state.alive:
        last = book.stop(replica, reason=reason, after=last)
        commands = commands or not draining or replica.phase is ReplicaPhase.STOPPING
    tail = book.wait(StepKind.AWAIT_STOPPED, replica.id, model=replica.model, after=last)
    if not commands:
        round_.told.waiting.append(f"{copy.address}: {replica.id} is {copy.state.text}{_since(copy)}")
    return Departure(tail=tail, commands=commands)


def _since(copy: Copy) -> str:
    since = copy.replica.draining_since
    return f" since {at(since)}" if since is not None else ""


def remove(round_: Round, copy: Copy, *, keyword: str, reason: str, where: Where | None = None) -> None:
    """One replica less, told as a change as long as something is sent for it."""
    if copy.state.health is Health.UNKNOWN:
        tell_unknown(round_, copy, where=where)
        return
    if depart(round_, copy, reason=reason).commands:
        round_.told.changes.append(
            Change(
                address=copy.address,
                action=Action.REMOVE,
                keyword=keyword,
                reason=f"{reason}: {copy.replica.id} is {copy.state.text}",
                model=copy.replica.model,
                ordinal=copy.replica.ordinal,
                previous=copy.replica.id,
                where=where,
            )
        )


def tell_unknown(round_: Round, copy: Copy, *, where: Where | None = None) -> None:
    """Its node can't be asked: it keeps what it holds, and nothing takes its place."""
    views = [round_.survey.nodes.get(node) for node in copy.state.unknown_nodes]
    if all(view is not None and view.bare for view in views):
        who = names(copy.state.unknown_nodes)
        round_.told.waiting.append(
            f"{copy.address}: {copy.replica.id} is known again once {who} has its agent"
        )
        return
    why = unknown_text(round_.survey, copy.state.unknown_nodes[0])
    round_.told.changes.append(
        Change(
            address=copy.address,
            action=Action.BLOCKED,
            keyword="unknown-node",
            reason=f"{why}: whether {copy.replica.id} still runs there is not known, so it keeps what it holds "
            "and nothing takes its place",
            model=copy.replica.model,
            ordinal=copy.replica.ordinal,
            replica=copy.replica.id,
            where=where,
        )
    )
