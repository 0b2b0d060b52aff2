"""How a replica goes: out of the endpoints, drained, stopped; each step only if it is still to be done.

A departure begun by an earlier pass is taken up where it stands, whatever interrupted it.
"""

from llmgw.core.amounts import at, names
from llmgw.core.moves.copies import Copy, serves
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing
from llmgw.core.seen.condition import ENDED, Health, unknown_text
from llmgw.core.seen.silence import patience
from llmgw.model.plan import Action, Change, StepKind
from llmgw.model.problems import Where
from llmgw.model.record import ReplicaPhase
from llmgw.model.struct import Struct


class Departure(Struct):
    """``tail``: the step after which nothing is left of it. ``commands``: something is sent to a node for it;
    otherwise it is on its way and only has to be waited for."""

    tail: str
    commands: bool


def depart(round_: Round, copy: Copy, *, reason: str, after: tuple[str, ...] = ()) -> Departure:
    """Never on a node that can't be asked: unknown is not stopped. Of a gang that was given up those ranks go that can be."""
    round_.departing.add(copy.replica.id)
    if copy.state.health is Health.UNKNOWN:
        if not copy.state.given_up:
            raise AssertionError(f"{copy.replica.id} can't be stopped: {copy.state.text}")
        return _depart_in_part(round_, copy, reason=reason, after=after)
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


def _depart_in_part(round_: Round, copy: Copy, *, reason: str, after: tuple[str, ...]) -> Departure:
    """What is left of a given-up gang keeps its place in the record: its silent ranks still hold what they hold."""
    replica, book = copy.replica, round_.book
    living = _living(copy)
    ranks = tuple(rank for rank in replica.ranks if rank.rank in living)
    round_.placer.leave(replica.id, ranks)
    last: tuple[str, ...] = after
    if serves(copy):
        last = (book.drain(replica, reason=reason, after=after),)
    if living.get(0) == Health.DRAINING.value or last != after:
        last = (book.wait(StepKind.AWAIT_DRAINED, replica.id, model=replica.model, after=last),)
    ordered = replica.phase is ReplicaPhase.STOPPING
    todo = frozenset(
        rank for rank, state in living.items() if not (ordered and state == Health.STOPPING.value)
    )
    if todo:
        last = book.stop(replica, reason=reason, after=last, only=todo)
    elif living:
        round_.told.waiting.append(f"{copy.address}: what can be reached of {replica.id} is stopping")
    tail = book.wait(StepKind.AWAIT_STOPPED, replica.id, model=replica.model, after=last)
    return Departure(tail=tail, commands=bool(todo))


def _living(copy: Copy) -> dict[int, str]:
    """States by rank, of those that are known to live."""
    return {
        seen.report.rank: seen.report.state
        for seen in copy.state.shards
        if seen.node not in copy.state.unknown_nodes and seen.report.state not in ENDED
    }


def _since(copy: Copy) -> str:
    since = copy.replica.draining_since
    return f" since {at(since)}" if since is not None else ""


def remove(round_: Round, copy: Copy, *, keyword: str, reason: str, where: Where | None = None) -> None:
    """One replica less, told as a change as long as something is sent for it."""
    if copy.state.health is Health.UNKNOWN and not copy.state.given_up:
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


def let_rest_go(round_: Round, stand: Standing, copy: Copy) -> None:
    """What can be reached of a gang that was given up and does not serve: its GPUs are free for the next one."""
    if not _living(copy):
        return
    gone = _depart_in_part(round_, copy, reason="it is given up, a node of its ranks is silent", after=())
    if not gone.commands:
        return
    stand.moving = True
    told = names(copy.state.unknown_nodes)
    round_.told.changes.append(
        Change(
            address=copy.address,
            action=Action.REMOVE,
            keyword="rank-lost",
            reason=f"{copy.replica.id} has ranks on {told}, which is given up: what can be reached of it stops",
            model=copy.replica.model,
            ordinal=copy.replica.ordinal,
            previous=copy.replica.id,
            where=stand.model.where,
        )
    )


def tell_unknown(round_: Round, copy: Copy, *, where: Where | None = None) -> None:
    """Its node can't be asked: it keeps what it holds, and nothing takes its place."""
    views = [round_.survey.nodes.get(node) for node in copy.state.unknown_nodes]
    if all(view is not None and view.bare and not view.rests for view in views):
        who = names(copy.state.unknown_nodes)
        round_.told.waiting.append(
            f"{copy.address}: {copy.replica.id} is known again once {who} has its agent"
        )
        return
    why = unknown_text(round_.survey, copy.state.unknown_nodes[0])
    until = patience(round_.survey, copy.state.unknown_nodes)
    round_.told.changes.append(
        Change(
            address=copy.address,
            action=Action.BLOCKED,
            keyword="unknown-node",
            reason=f"{why}: whether {copy.replica.id} still runs there is not known, so it keeps what it holds "
            f"and nothing takes its place{until}",
            model=copy.replica.model,
            ordinal=copy.replica.ordinal,
            replica=copy.replica.id,
            where=where,
        )
    )
