"""How a wanted copy comes: create before destroy while the GPUs allow it, else destroy before create, else others of lower
priority make room; within ``maxSurge`` (old and new counted together) and ``maxUnavailable``. Nothing is stopped for a successor
that would not fit.
"""

from llmgw.core.adapter import STATE_IT
from llmgw.core.amounts import at, names, plural, span
from llmgw.core.moves import flags
from llmgw.core.moves.copies import Copy, serves
from llmgw.core.moves.departure import depart
from llmgw.core.moves.eviction import evict, find_room, waits
from llmgw.core.moves.nearest import nearest
from llmgw.core.moves.retries import given_up_text
from llmgw.core.moves.round import Round
from llmgw.core.moves.sizes import learns_later, tell_unseen, tell_untold
from llmgw.core.moves.standing import Want
from llmgw.core.moves.steps import Job, failing, job_failed, lacking
from llmgw.core.place.clearing import Tenant
from llmgw.core.seen.attempts import times_given_up, tried_again
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import ReplicaId
from llmgw.model.plan import Action, Change, Decision, StepKind
from llmgw.model.record import Attempts
from llmgw.model.struct import Struct, replace


def fulfil(round_: Round, want: Want) -> None:
    """Finds a place and writes the steps, or says why not."""
    stand = want.stand
    goal = stand.goal
    if goal is None:
        return
    if stand.need.refused:
        _block(round_, want, "wrong-shape", stand.need.refused + nearest(round_, goal))
        return
    if (failed := stand.failed_before(goal, want.ordinal)) is not None and _rests(round_, want, goal, failed):
        return
    _place(round_, _without_evicted(round_, want), goal)


def _without_evicted(round_: Round, want: Want) -> Want:
    """Its predecessor may have made room for somebody since it was settled."""
    gone = want.keep is not None and want.keep.replica.id in round_.departing
    return replace(want, keep=None) if gone else want


def _place(round_: Round, want: Want, goal: DesiredModel) -> None:
    stand, keep = want.stand, want.keep
    if stand.total + 1 > stand.allowed:
        if stand.model.spec.rollout.max_surge == 0 and keep is not None:
            _one_for_one(round_, want, goal, keep, why="maxSurge is 0")
        else:
            _take_turns(
                round_, want, f"{plural(stand.total, 'copy', 'copies')} of at most {stand.allowed} exist"
            )
        return
    decision = round_.placer.place(stand.request(goal, shunned=want.shunned), stand.crowd(keep))
    if decision.ranks:
        _create(round_, want, goal, decision)
        return
    soon = round_.placer.place_soon(stand.request(goal))
    if soon.ranks:
        _wait_for_room(round_, want, goal, soon)
    elif keep is not None and not keep.state.given_up:
        _one_for_one(round_, want, goal, keep, why="no room for both", refused=decision)
    elif not _clear(round_, want, goal):
        _no_room(round_, want, goal, decision)


# ---- create before destroy ---------------------------------------------------------------------------


def _create(round_: Round, want: Want, goal: DesiredModel, decision: Decision) -> None:
    stand, keep = want.stand, want.keep
    jobs = round_.book.jobs(goal, (rank.node for rank in decision.ranks))
    if (failed := failing(jobs)) is not None:
        _block(round_, want, "job-failed", job_failed(failed), placement=decision)
        return
    replica = stand.next_id(goal, want.ordinal)
    verdicts = flags.verdicts(round_, goal, replica, decision.ranks)
    if unknown := flags.refusal(verdicts):
        _block(round_, want, "unknown-flag", unknown, placement=decision)
        return
    if _size_untold(round_, want, goal, decision, jobs):
        return
    decision = replace(decision, reasons=(*decision.reasons, *flags.untold(verdicts)))
    if goal.profile.nodes > 1:
        _tell_jobs(round_, want, jobs)
    started = round_.book.start(goal, replica, decision.ranks, reason=want.reason)
    published = _publish(round_, goal, replica, started)
    if keep is not None:
        depart(round_, keep, reason=f"{replica} has taken over", after=(published,))
    _take(round_, want, replica, decision)
    stand.total += 1
    round_.told.changes.append(_change(want, replica=replica, placement=decision))


def _publish(round_: Round, goal: DesiredModel, replica: ReplicaId, after: tuple[str, ...]) -> str:
    ready = round_.book.wait(StepKind.AWAIT_READY, replica, model=goal.name, after=after)
    return round_.book.publish(replica, model=goal.name, reason="ready", after=(ready,))


def _take(round_: Round, want: Want, replica: ReplicaId, decision: Decision) -> None:
    round_.placer.claim(replica, decision.ranks)
    want.stand.moving = True
    for rank in decision.ranks:
        want.stand.nodes[rank.node] += 1


# ---- destroy before create ---------------------------------------------------------------------------


def _one_for_one(
    round_: Round, want: Want, goal: DesiredModel, keep: Copy, *, why: str, refused: Decision | None = None
) -> None:
    """In the place of ``keep``; else beside it where others make room; else in its place and theirs. ``refused``: there is
    no room beside it."""
    stand = want.stand
    decision = round_.placer.place_instead(
        stand.request(goal), keep.replica.ranks, keep.replica.id, anywhere=refused is None
    )
    if decision.ranks:
        if refused is not None:
            decision = replace(decision, rejections=refused.rejections)
        _make_room(round_, want, goal, decision, Leaving(keep=keep, why=why))
        return
    if refused is not None and _clear(round_, want, goal):
        return
    decision, tenants = find_room(round_, want, goal, instead=keep)
    if decision.ranks:
        _make_room(round_, want, goal, decision, Leaving(keep=keep, why=why, tenants=tenants))
        return
    refused = refused or round_.placer.place(stand.request(goal), stand.crowd(keep))
    _no_room(round_, want, goal, refused)


def _clear(round_: Round, want: Want, goal: DesiredModel) -> bool:
    """Whether others make room for it, or would if nothing else were in the way, which is told then."""
    decision, tenants = find_room(round_, want, goal)
    if not decision.ranks:
        return False
    _make_room(round_, want, goal, decision, Leaving(tenants=tenants))
    return True


class Leaving(Struct):
    """Who goes before it comes: its own predecessor, because of ``why``, and others of lower priority."""

    keep: Copy | None = None
    why: str = ""
    tenants: tuple[Tenant, ...] = ()


def _make_room(round_: Round, want: Want, goal: DesiredModel, decision: Decision, leaving: Leaving) -> None:
    """All that it needs is brought first, then who is in its place goes, then it starts."""
    stand, keep = want.stand, leaving.keep
    if keep is not None and serves(keep) and not _may_stop(round_, want, keep, leaving.why):
        return
    stays = f"; {want.keep.replica.id} serves on" if want.keep is not None else ""
    jobs = round_.book.jobs(goal, (rank.node for rank in decision.ranks))
    if (failed := failing(jobs)) is not None:
        _block(round_, want, "job-failed", job_failed(failed) + stays, placement=decision)
        return
    replica = stand.next_id(goal, want.ordinal)
    verdicts = flags.verdicts(round_, goal, replica, decision.ranks)
    if unknown := flags.refusal(verdicts):
        _block(round_, want, "unknown-flag", unknown + stays, placement=decision)
        return
    if _size_untold(round_, want, goal, decision, jobs):
        return
    decision = replace(decision, reasons=(*decision.reasons, *flags.untold(verdicts)))
    before: tuple[str, ...] = ()
    if lacking(jobs):
        ordered = round_.book.order(jobs, model=goal.name)
        before = (round_.book.wait(StepKind.AWAIT_JOBS, replica, model=goal.name, after=ordered),)
        _tell_jobs(round_, want, jobs)
    gone = evict(round_, want, leaving.tenants, replica, after=before)
    change = _change(want, replica=replica, placement=decision)
    if keep is not None:
        gone = (*gone, depart(round_, keep, reason=f"makes room for {replica}", after=before).tail)
        outage = _outage(want, keep, replica) if serves(keep) else "none: it does not serve now"
        reason = f"{want.reason}; {leaving.why}"
        change = replace(change, action=Action.DESTROY_BEFORE_CREATE, reason=reason, outage=outage)
        stand.serving.discard(want.ordinal)
    started = round_.book.start(goal, replica, decision.ranks, reason=want.reason, after=gone)
    published = _publish(round_, goal, replica, started)
    if keep is None:
        stand.total += 1
        if want.keep is not None:
            depart(round_, want.keep, reason=f"{replica} has taken over", after=(published,))
    _take(round_, want, replica, decision)
    round_.told.changes.append(_with_evicted(change, leaving.tenants))


def _with_evicted(change: Change, tenants: tuple[Tenant, ...]) -> Change:
    if not tenants:
        return change
    who = names(tenant.replica for tenant in tenants)
    reason = f"{change.reason}; {who} of lower priority {'makes' if len(tenants) == 1 else 'make'} room"
    return replace(change, reason=reason, evicts=tuple(tenant.replica for tenant in tenants))


def _may_stop(round_: Round, want: Want, keep: Copy, why: str) -> bool:
    """Whether a serving replica may go before its successor is there; tells why not."""
    stand = want.stand
    rollout = stand.model.spec.rollout
    if rollout.max_unavailable == 0:
        reason = f"{why}, and maxUnavailable is 0: {keep.replica.id} serves on; free GPUs, or allow 1"
        _block(round_, want, "no-surge", reason)
        return False
    if stand.model.spec.protect and stand.ready <= 1:
        reason = f"{why}, and {stand.model.name} is protected: its last ready replica is not stopped"
        _block(round_, want, "protected", reason)
        return False
    least = stand.must_serve_without()
    if not stand.spare_one(least):
        _take_turns(round_, want, f"{least} must serve, {stand.ready} do")
        return False
    return True


def _outage(want: Want, keep: Copy, replica: ReplicaId) -> str:
    stand = want.stand
    others = len(stand.serving - {want.ordinal})
    leader = keep.state.leader
    took = leader.loading_seconds if leader is not None else None
    about = f" (the last start took {span(took)})" if took else ""
    what = f"one replica less, {others} left" if others else f"{stand.model.name} does not answer"
    return f"{what} from the drain of {keep.replica.id} until {replica} is ready{about}"


def _size_untold(
    round_: Round, want: Want, goal: DesiredModel, decision: Decision, jobs: tuple[Job, ...]
) -> bool:
    """Whether nobody knows yet if it fits. Then what it needs is brought first, which will tell, and its place is kept; or it
    is refused, if nothing will."""
    stand = want.stand
    if tell_untold(round_, goal, stand.need, decision.ranks):
        return False
    later = learns_later(round_, goal, (rank.node for rank in decision.ranks), jobs)
    if not later:
        reason = f"{stand.need.unknown}: {STATE_IT}"
        _block(round_, want, "unknown-size", reason, placement=decision)
        return True
    tell_unseen(round_, goal)
    round_.book.order(jobs, model=goal.name)
    _take(round_, want, stand.next_id(goal, want.ordinal), decision)
    address = stand.address(want.ordinal)
    round_.told.waiting.append(f"{address} waits for {later}, which tells how much memory it takes")
    reason = f"{want.reason}; starts when {later} has told how much memory it takes (known after that)"
    round_.told.changes.append(replace(_change(want, placement=decision), reason=reason))
    return True


def _tell_jobs(round_: Round, want: Want, jobs: tuple[Job, ...]) -> None:
    if todo := lacking(jobs):
        round_.told.waiting.append(f"{want.stand.address(want.ordinal)} waits for {todo}")


# ---- later, or not at all ----------------------------------------------------------------------------


def _wait_for_room(round_: Round, want: Want, goal: DesiredModel, soon: Decision) -> None:
    """What leaves frees the place: it is kept for this one."""
    replica = want.stand.next_id(goal, want.ordinal)
    _take(round_, want, replica, soon)
    where = names(dict.fromkeys(rank.node for rank in soon.ranks))
    round_.told.waiting.append(f"{want.stand.address(want.ordinal)} waits for room on {where}")
    change = _change(want, replica=None, placement=soon)
    round_.told.changes.append(replace(change, reason=f"{want.reason}; starts when {where} has room again"))


def _rests(round_: Round, want: Want, goal: DesiredModel, failed: Attempts) -> bool:
    """What failed is started again after a pause; tells so. Its place is kept meanwhile, unless it is given up."""
    stand, again = want.stand, tried_again(failed, goal.profile)
    if round_.now >= again:
        return False
    if times_given_up(failed, goal.profile) and not failed.refused:
        round_.told.due.append(again)
        _block(round_, want, "failed", given_up_text(failed, goal, stand.address(want.ordinal)))
        return True
    kept = round_.placer.place(stand.request(goal), stand.crowd(want.keep))
    kept = kept if kept.ranks else round_.placer.place_soon(stand.request(goal))
    if kept.ranks and stand.total < stand.allowed:
        _take(round_, want, stand.next_id(goal, want.ordinal), kept)
    stand.moving = True
    round_.told.due.append(again)
    address = stand.address(want.ordinal)
    tried = _tried(failed, goal.profile.restart.give_up_after)
    round_.told.waiting.append(f"{address} is started again at {at(again)}, {tried}: {failed.error}")
    # Without the time: two plans made a moment apart say the same.
    reason = f"{want.reason}; {tried}, started again after a pause"
    round_.told.changes.append(replace(_change(want), reason=reason))
    return True


def _tried(failed: Attempts, most: int) -> str:
    if failed.refused:
        return f"its place was not as planned {plural(failed.refused, 'time')} in a row"
    return f"{failed.count} of {plural(most, 'attempt')} failed"


def _take_turns(round_: Round, want: Want, why: str) -> None:
    """One after the other. If nothing is under way that could end, nobody's turn will come."""
    if not want.stand.moving:
        _block(round_, want, "no-turn", f"{why}, and nothing is under way that would change it")
        return
    address = want.stand.address(want.ordinal)
    round_.told.waiting.append(f"{address} waits its turn: {why}")
    round_.told.changes.append(replace(_change(want), reason=f"{want.reason}; waits its turn: {why}"))


def _block(
    round_: Round, want: Want, keyword: str, reason: str, *, placement: Decision | None = None
) -> None:
    change = _change(want, placement=placement, action=Action.BLOCKED)
    told = f"{want.reason}; {reason}" if want.keep is not None else reason
    round_.told.changes.append(replace(change, keyword=keyword, reason=told))


def _no_room(round_: Round, want: Want, goal: DesiredModel, refused: Decision) -> None:
    told = _why_not(want, refused)
    if want.keep is not None and want.keep.state.given_up:
        told += f"; {want.keep.replica.id}, whose leader answers, serves on"
    elif want.keep is not None:
        told += f"; it would not fit in the place of {want.keep.replica.id} either, which serves on"
    if want.keyword == "moved":
        told += ". Make room on another node, or take back what moves it"
    told += nearest(round_, goal, want.stand.need)
    waiting = waits(want)
    keyword, reason = ("evicted", f"{waiting}; {told}") if waiting else ("no-room", told)
    _block(round_, want, keyword, reason, placement=_without_reasons(refused))


def _why_not(want: Want, refused: Decision) -> str:
    """With the numbers that are about several nodes together; those of single nodes stand at each."""
    pool = want.stand.model.spec.placement.pool
    if refused.reasons:
        return f"pool {pool} has no room: {'; '.join(refused.reasons)}"
    if not refused.rejections:
        return "the fleet has no node yet: `llmgw node add HOST` writes its manifest"
    return f"no node of pool {pool} has room for it"


def _without_reasons(decision: Decision) -> Decision:
    """Those of a refusal are told already."""
    return replace(decision, reasons=())


def _change(
    want: Want,
    *,
    replica: ReplicaId | None = None,
    placement: Decision | None = None,
    action: Action | None = None,
) -> Change:
    evicted = want.stand.evicted.get(want.ordinal)
    return Change(
        address=want.stand.address(want.ordinal),
        action=action or want.action,
        keyword=want.keyword,
        reason=want.reason,
        model=want.stand.model.name,
        ordinal=want.ordinal,
        replica=replica,
        previous=want.keep.replica.id if want.keep is not None else want.lost,
        fields=want.fields,
        placement=placement,
        where=want.stand.model.where,
        evicted_for=evicted.made_room_for if evicted is not None and want.keep is None else "",
    )
