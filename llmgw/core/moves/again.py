"""The same order once more, under the same name: for a copy that its nodes lost or that somebody stopped there, and for ranks
whose order never came."""

from llmgw.core.amounts import names
from llmgw.core.moves.copies import Copy
from llmgw.core.moves.departure import remove
from llmgw.core.moves.networks import unjoined
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing, Want
from llmgw.core.moves.steps import failing, job_failed, lacking
from llmgw.core.place.candidates import forbidden
from llmgw.core.place.fitting import still_good
from llmgw.core.seen.condition import changed, waits_for_its_place
from llmgw.model.plan import Action, Change, Decision, StepKind
from llmgw.model.record import ReplicaPhase


def start_again(round_: Round, stand: Standing, copy: Copy) -> Want | None:
    """Its node lost it, or somebody stopped it there: the same order once more, if its place is still free."""
    obstacle = _place_lost(round_, stand, copy)
    told = copy.state.leader
    if copy.replica.phase is ReplicaPhase.STARTING and told is None:
        keyword, reason = "not-started", f"{copy.replica.id} was recorded, but its node never got the order"
    elif told is not None:
        keyword, reason = (
            "stopped",
            f"{copy.replica.id} was {changed(told, copy.nodes[0])}, and Git asks for it",
        )
    else:
        verb = "does" if len(copy.nodes) == 1 else "do"
        keyword, reason = "vanished", f"{names(copy.nodes)} {verb} not know {copy.replica.id} any more"
    if obstacle or stand.goal is None:
        return _elsewhere(round_, stand, copy, keyword=keyword, reason=reason, obstacle=obstacle)
    how = "started again in the same place", "its place is still free"
    _send(round_, stand, copy, keyword=keyword, reason=reason, how=how)
    return None


def _place_lost(round_: Round, stand: Standing, copy: Copy, ranks: frozenset[int] | None = None) -> str:
    """Why ``ranks``, or all of them, can't run where they were to; empty when they can."""
    for rank in copy.replica.ranks:
        if ranks is not None and rank.rank not in ranks:
            continue
        ledger = round_.placer.ledgers[rank.node]
        if ledger.view.obstacle:
            return f"{rank.node} is {ledger.view.obstacle}"
        if stand.goal is not None and (why := forbidden(stand.request(stand.goal), ledger)):
            return f"{rank.node}: {why}"
        if not still_good(ledger, tuple(gpu.uuid for gpu in rank.gpus)):
            return f"a GPU it had on {rank.node} is not free for it any more"
        facts = ledger.view.facts
        listening = facts.listening if facts is not None else ()
        if taken := sorted(set(rank.ports) & set(listening)):
            return f"somebody else listens on port {taken[0]} of {rank.node}"
    return unjoined(round_, copy.replica)


def displaced(round_: Round, stand: Standing, copy: Copy) -> Want | None:
    """A copy that its agent can't start again because somebody else listens on its port by now: it would wait for a stranger to
    go. Facts alone may be older than its own end, so the agent must have found it too."""
    if not any(waits_for_its_place(seen.report) for seen in copy.state.shards):
        return None
    for rank in copy.replica.ranks:
        facts = round_.placer.ledgers[rank.node].view.facts
        if facts is not None and (taken := sorted(set(rank.ports) & set(facts.listening))):
            obstacle = f"somebody else listens on port {taken[0]} of {rank.node}"
            reason = f"{copy.replica.id} can't be started again in its place"
            return _elsewhere(round_, stand, copy, keyword="displaced", reason=reason, obstacle=obstacle)
    return None


def complete(round_: Round, stand: Standing, target: Copy) -> Want | None:
    """The orders of some ranks of a starting gang never came: they are sent again, under the same names."""
    replica, missing = target.replica, frozenset(target.state.missing)
    nodes = names(dict.fromkeys(rank.node for rank in replica.ranks if rank.rank in missing))
    reason = f"{replica.id} was recorded, but {nodes} never got the order"
    if obstacle := _place_lost(round_, stand, target, missing):
        return _elsewhere(round_, stand, target, keyword="not-started", reason=reason, obstacle=obstacle)
    how = "sent again", "its other ranks are there"
    _send(round_, stand, target, keyword="not-started", reason=reason, how=how, only=missing)
    return None


def remind(round_: Round, stand: Standing, copy: Copy) -> None:
    """An agent misses something of an order that it holds: the same order brings it, and what runs goes on."""
    lost = copy.state.lost
    told = names(dict.fromkeys(f"{report.shard} has lost {report.lost}" for report in lost))
    _send(
        round_,
        stand,
        copy,
        keyword="order-lost",
        reason=f"the agent's disk: {told}",
        how=("sent once more, what runs goes on", "it is there already"),
        only=frozenset(report.rank for report in lost),
        action=Action.UPDATE,
    )


def _send(
    round_: Round,
    stand: Standing,
    copy: Copy,
    *,
    keyword: str,
    reason: str,
    how: tuple[str, str],
    only: frozenset[int] | None = None,
    action: Action = Action.CREATE,
) -> None:
    """``how``: what is done about it, and why its place is as good as before."""
    replica, goal = copy.replica, stand.goal or stand.model
    jobs = round_.book.jobs(goal, copy.nodes) if len(replica.ranks) > 1 else ()
    failed = failing(jobs)
    change = Change(
        address=copy.address,
        action=action if failed is None else Action.BLOCKED,
        keyword=keyword if failed is None else "job-failed",
        reason=f"{reason}: {how[0] if failed is None else job_failed(failed)}",
        model=stand.model.name,
        ordinal=replica.ordinal,
        replica=replica.id,
        placement=Decision(ranks=replica.ranks, reasons=(how[1],)),
        where=stand.model.where,
    )
    round_.told.changes.append(change)
    if failed is not None:
        return
    stand.moving = True
    if waits := lacking(jobs):
        round_.told.waiting.append(f"{copy.address} waits for {waits}")
    started = round_.book.start(goal, replica.id, replica.ranks, reason=reason, only=only)
    ready = round_.book.wait(StepKind.AWAIT_READY, replica.id, model=goal.name, after=started)
    round_.book.publish(replica.id, model=goal.name, reason="ready again", after=(ready,))


def _elsewhere(
    round_: Round, stand: Standing, copy: Copy, *, keyword: str, reason: str, obstacle: str
) -> Want:
    stand.moving = True
    why = f"its place is lost: {obstacle}"
    remove(round_, copy, keyword="replaced", reason=why, where=stand.model.where)
    return Want(
        stand=stand,
        ordinal=copy.replica.ordinal,
        keep=None,
        keyword=keyword,
        reason=f"{reason}; {obstacle}",
    )
