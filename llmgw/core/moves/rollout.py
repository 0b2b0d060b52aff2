"""One model from what runs to what it is to be, ordinal by ordinal.

::

    no copy                         create
    current and ready               its predecessors are drained and stopped
    current and on its way          its predecessor serves until it is ready
    current and gone from its node  started again, in its place if that is free
    a gang that lost a rank         stopped on all its nodes, then started anew after a pause
    none current, some old          create before destroy, or destroy before create: see core/moves/succession
    on a node that can't be asked   blocked, for itself only
    the same, and given up          started elsewhere; when it is known again, the older of the two goes
    two that are what is asked for  the newer stays, unless only the older serves

First everything that goes or stays is settled for all models, then places are found for what comes: by priority, of equals
those that had a copy before those that never had one, then by name. Who makes room for whom: see core/moves/eviction.
"""

from llmgw.core.amounts import at
from llmgw.core.moves.adapters import settle_adapters, why_replaced
from llmgw.core.moves.again import complete, displaced, remind, start_again
from llmgw.core.moves.copies import Copy, best_current, best_old, broken, serves
from llmgw.core.moves.current import is_current, misplaced
from llmgw.core.moves.departure import depart, let_rest_go, remove, tell_unknown
from llmgw.core.moves.diff import ADAPTERS, spec_changes
from llmgw.core.moves.diff import change as field_change
from llmgw.core.moves.model_level import TOLD_OF_THE_MODEL, tell_held, tell_in_place
from llmgw.core.moves.retries import try_again
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing, Want
from llmgw.core.record.recording import desired_spec
from llmgw.core.seen.condition import Condition, Health
from llmgw.model.plan import Action, Change, FieldChange, StepKind
from llmgw.model.struct import replace


def settle_model(round_: Round, stand: Standing) -> list[Want]:
    """Everything about a model but the places of what is new."""
    tell_in_place(round_, stand)
    tell_held(round_, stand)
    _shrink(round_, stand)
    wants = []
    for ordinal in range(stand.model.spec.replicas):
        want = _settle_ordinal(round_, stand, ordinal)
        if want is not None:
            wants.append(want)
    return wants


# ---- fewer -------------------------------------------------------------------------------------------


def _shrink(round_: Round, stand: Standing) -> None:
    """Ordinals that nobody asks for any more, the highest first."""
    count = stand.model.spec.replicas
    for ordinal in sorted((each for each in stand.copies if each >= count), reverse=True):
        for copy in stand.copies[ordinal]:
            reason = f"replicas is {count}: ordinal {ordinal} is one too many"
            if count == 0 and stand.model.spec.protect:
                _protected(round_, stand, copy)
                continue
            _let_go(round_, stand, [copy], keyword="scaled-down", reason=reason)


def _protected(round_: Round, stand: Standing, copy: Copy) -> None:
    round_.told.changes.append(
        Change(
            address=copy.address,
            action=Action.BLOCKED,
            keyword="protected",
            reason=f"{stand.model.name} is protected: its last replica is not stopped; set protect: false first",
            model=stand.model.name,
            ordinal=copy.replica.ordinal,
            replica=copy.replica.id,
            where=stand.model.where,
        )
    )


# ---- one ordinal -------------------------------------------------------------------------------------


def _settle_ordinal(round_: Round, stand: Standing, ordinal: int) -> Want | None:
    copies = stand.copies.get(ordinal, [])
    given_up = [copy for copy in copies if copy.state.given_up]
    unknown = [copy for copy in copies if copy.state.health is Health.UNKNOWN and not copy.state.given_up]
    known = [copy for copy in copies if copy.state.health is not Health.UNKNOWN]
    for copy in unknown:
        tell_unknown(round_, copy, where=stand.model.where)
    leaving = [copy for copy in known if copy.leaving]
    live = [copy for copy in known if not copy.leaving and not broken(copy)]
    lost = [copy for copy in known if broken(copy) and not copy.leaving]
    _let_go(round_, stand, lost, keyword="rank-lost", reason="it has lost a rank and ends as a whole")
    target = best_current(copy for copy in live if is_current(round_, stand, copy))
    olds = [copy for copy in live if copy is not target]
    # A gang whose leader still answers serves until another copy does; of one that does not, what can be reached goes at once.
    olds += [copy for copy in given_up if serves(copy)]
    for copy in given_up:
        if not serves(copy):
            let_rest_go(round_, stand, copy)
    if target is None and unknown:
        return None
    if target is None:
        want = _need_new(round_, stand, ordinal, leaving=leaving, olds=olds)
        return _instead_of_lost(round_, want, given_up)
    _let_go(round_, stand, leaving, reason="its successor is there")
    return _settle_target(round_, stand, target, olds)


def _instead_of_lost(round_: Round, want: Want | None, given_up: list[Copy]) -> Want | None:
    """Told as the move that it is: nothing has failed but a node."""
    lost = given_up[0] if given_up else None
    if want is None or lost is None or want.keep not in (None, *given_up):
        return want
    node = lost.state.unknown_nodes[0]
    view = round_.survey.nodes.get(node)
    since = view.silence.since if view is not None and view.silence is not None else None
    silent = f"{node} has been silent{f' since {at(since)}' if since is not None else ''}"
    reason = f"{silent}: {lost.replica.id}, which is there, is given up"
    return replace(want, keyword="node-lost", reason=reason, action=Action.MOVE, lost=lost.replica.id)


def _settle_target(round_: Round, stand: Standing, target: Copy, olds: list[Copy]) -> Want | None:
    """``target`` is what it should be: what it still needs, and when its predecessors go."""
    health = target.state.health
    if target.state.lost:
        remind(round_, stand, target)
        return None
    other = health in (Health.READY, Health.COMING) and settle_adapters(round_, stand, target)
    if health is Health.READY:
        _retire(round_, stand, target, olds, unchanged=not other)
        return None
    if health is Health.FAILED:
        return try_again(round_, stand, target)
    if health in (Health.MISSING, Health.STOPPED):
        return start_again(round_, stand, target)
    lost = displaced(round_, stand, target)
    if lost is None and target.state.missing:
        lost = complete(round_, stand, target)
    if lost is not None:
        return lost
    stand.moving = True
    _wait_for(round_, stand, target, olds)
    return None


def _let_go(
    round_: Round, stand: Standing, copies: list[Copy], *, reason: str, keyword: str = "replaced"
) -> None:
    """Departures that an earlier pass began, and copies that are of no use to anybody; one that serves only goes as long
    as enough others do."""
    for copy in copies:
        if serves(copy) and not stand.spare_one(stand.must_serve()):
            _serves_on(round_, stand, copy, reason)
            continue
        stand.moving = True
        remove(round_, copy, keyword=keyword, reason=reason, where=stand.model.where)


def _retire(round_: Round, stand: Standing, target: Copy, olds: list[Copy], *, unchanged: bool) -> None:
    """The new one is ready: published, then the old ones drain and stop, as long as enough others serve. ``unchanged``:
    nothing was told of it yet."""
    if target.replica.id in stand.adopted:
        return
    if stand.held is not None:
        failed = [old for old in olds if old.replica.spec_digest == stand.held.spec_digest]
        olds = [old for old in olds if old not in failed]
        _let_go(
            round_, stand, failed, keyword="held", reason=f"its spec is held; {target.replica.id} serves on"
        )
    if not olds:
        if unchanged:
            round_.told.unchanged.add(target.replica.id)
        return
    going = [old for old in olds if not serves(old) or stand.spare_one(stand.must_serve())]
    for old in olds:
        if old not in going:
            _serves_on(round_, stand, old, f"{target.replica.id} is ready")
    if not going:
        return
    stand.moving = True
    new = target.replica
    publish = round_.book.publish(new.id, model=new.model, reason=f"{new.id} is ready")
    for old in going:
        depart(round_, old, reason=f"{new.id} has taken over", after=(publish,))
    round_.told.changes.append(
        _rolling(stand, target, going[0], f"{new.id} is ready: {going[0].replica.id} goes")
    )


def _serves_on(round_: Round, stand: Standing, copy: Copy, why: str) -> None:
    """A new spec that fails after it was ready must not take one replica after the other along."""
    told = f"{why}, but {copy.replica.id} serves on: {stand.must_serve()} must serve, {stand.ready} do"
    if stand.moving:
        round_.told.waiting.append(f"{copy.address}: {told}")
        return
    round_.told.changes.append(
        Change(
            address=copy.address,
            action=Action.BLOCKED,
            keyword="stalled",
            reason=f"{told}, and nothing is under way that would change it",
            model=stand.model.name,
            ordinal=copy.replica.ordinal,
            previous=copy.replica.id,
            where=stand.model.where,
        )
    )


def _wait_for(round_: Round, stand: Standing, target: Copy, olds: list[Copy]) -> None:
    new = target.replica
    since = _since(target.state)
    round_.told.waiting.append(f"{target.address}: {new.id} is {target.state.text}{since}")
    keep = best_old(olds)
    _let_go(round_, stand, [old for old in olds if old is not keep], reason=f"{new.id} takes its place")
    if keep is None:
        return
    ready = round_.book.wait(StepKind.AWAIT_READY, new.id, model=new.model, after=())
    publish = round_.book.publish(new.id, model=new.model, reason="ready", after=(ready,))
    depart(round_, keep, reason=f"{new.id} has taken over", after=(publish,))
    round_.told.changes.append(
        _rolling(stand, target, keep, f"{keep.replica.id} serves until {new.id} is ready")
    )


def _since(state: Condition) -> str:
    times = [seen.report.since for seen in state.shards]
    return f" since {at(max(times))}" if times else ""


def _rolling(stand: Standing, target: Copy, old: Copy, news: str) -> Change:
    same = old.replica.spec_digest == target.replica.spec_digest and not old.replica.replaced_by
    return Change(
        address=target.address,
        action=Action.MOVE if same else Action.CREATE_BEFORE_DESTROY,
        keyword="rolling",
        reason=news,
        model=stand.model.name,
        ordinal=target.replica.ordinal,
        replica=target.replica.id,
        previous=old.replica.id,
        fields=spec_changes(old.replica.spec, target.replica.spec, replaces=not same),
        where=stand.model.where,
    )


# ---- anew ------------------------------------------------------------------------------------------


def _need_new(
    round_: Round, stand: Standing, ordinal: int, *, leaving: list[Copy], olds: list[Copy]
) -> Want | None:
    """No copy is what it should be. The best old one serves on; the others are of no use."""
    keep = best_old(olds)
    if stand.goal is None:
        # Held, and nothing to go back to: what has failed goes, what serves stays.
        useless = [old for old in olds if old.state.health is Health.FAILED]
        _let_go(round_, stand, leaving + useless, keyword="held", reason="its spec is held")
        return None
    useless = [old for old in olds if old is not keep]
    _let_go(round_, stand, leaving + useless, reason="it is not what Git asks for")
    base = keep or next(iter(useless), None)
    if base is None and (failed := stand.failed_before(stand.goal, ordinal)) is not None:
        how = "found its place not as planned" if failed.refused else "failed as a whole"
        reason = f"{failed.replica} {how}: {failed.error}"
        return Want(stand=stand, ordinal=ordinal, keep=None, keyword="restarted", reason=reason)
    if base is None and (evicted := stand.evicted.get(ordinal)) is not None:
        reason = (
            f"it made room for {evicted.made_room_for} (serial {evicted.serial}), and there is room again"
        )
        return Want(stand=stand, ordinal=ordinal, keep=None, keyword="room-again", reason=reason)
    if base is None:
        had = ordinal in stand.placements
        keyword = "missing" if had else "new-model" if stand.known is None else "scaled-up"
        reason = (
            "no copy of it is left"
            if had
            else "new in Git"
            if stand.known is None
            else "one more is asked for"
        )
        return Want(stand=stand, ordinal=ordinal, keep=None, keyword=keyword, reason=reason)
    return _replace(round_, stand, ordinal, keep=keep, base=base)


def _replace(round_: Round, stand: Standing, ordinal: int, *, keep: Copy | None, base: Copy) -> Want:
    goal = stand.goal or stand.model
    old = base.replica
    fields: tuple[FieldChange, ...] = ()
    if old.replaced_by:
        keyword, action = "asked-for", Action.CREATE_BEFORE_DESTROY
        reason = f"{old.replaced_by} asked for a new copy in its place"
        if old.spec_digest != goal.spec_digest:
            fields = spec_changes(old.spec, desired_spec(goal, round_.key_id), replaces=True)
            fields = tuple(each for each in fields if each.path not in TOLD_OF_THE_MODEL)
    elif old.spec_digest == goal.spec_digest:
        reason = misplaced(round_, stand, base) or f"{old.id} is {base.state.text}"
        keyword, action = "moved", Action.MOVE
    else:
        changed = spec_changes(old.spec, desired_spec(goal, round_.key_id), replaces=True)
        fields = tuple(each for each in changed if each.path not in TOLD_OF_THE_MODEL)
        forcing = [each.path for each in fields if each.forces_replacement]
        if not forcing:
            fields = (*fields, field_change("specDigest", old.spec_digest, str(goal.spec_digest)))
        keyword, action = "spec-changed", Action.CREATE_BEFORE_DESTROY
        whole = dict.fromkeys(ADAPTERS if path.startswith(ADAPTERS) else path for path in forcing)
        reason = f"{', '.join([*whole][:3]) or 'specDigest'} can't change while it runs"
        if why := why_replaced(old.spec, goal, round_.adapters[goal.profile.engine.name].lora_ranks):
            reason += f": {why}"
        if stand.held is not None:
            keyword, reason = "reverted", f"back to the last good spec {goal.spec_digest[:8]}"
    return Want(
        stand=stand,
        ordinal=ordinal,
        keep=keep,
        keyword=keyword,
        reason=reason,
        action=action if keep is not None else Action.CREATE,
        fields=fields,
    )
