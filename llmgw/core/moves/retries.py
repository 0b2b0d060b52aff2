"""What served and was given up is tried again: elsewhere if there is room, else in its own place, and ever less often. Until
then it stays as it is, for people to look at."""

from llmgw.core.amounts import plural, span
from llmgw.core.moves.copies import Copy
from llmgw.core.moves.departure import depart
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing, Want
from llmgw.core.seen.attempts import has_served, rest, tried_again
from llmgw.model.desired import DesiredModel
from llmgw.model.plan import Action, Change
from llmgw.model.record import Attempts


def try_again(round_: Round, stand: Standing, copy: Copy) -> Want | None:
    """A single shard that its agent does not start any more. Of a spec that never served it is left: another one is needed."""
    goal, node = stand.goal or stand.model, copy.nodes[0]
    if not has_served(copy.replica, stand.known):
        _left(round_, stand, copy, "it is started again when its spec changes")
        return None
    failed = stand.failed_before(goal, copy.replica.ordinal)
    if failed is not None and (again := tried_again(failed, goal.profile)) > round_.now:
        round_.told.due.append(again)
        _left(round_, stand, copy, _rests(failed, goal))
        return None
    stand.moving = True
    depart(round_, copy, reason="it was given up and is tried again")
    return Want(
        stand=stand,
        ordinal=copy.replica.ordinal,
        keep=None,
        keyword="restarted",
        reason=f"{copy.replica.id} failed on {node}: {_error(copy)}",
        action=Action.MOVE,
        lost=copy.replica.id,
        shunned=failed.nodes if failed is not None else copy.nodes,
    )


def given_up_text(failed: Attempts, goal: DesiredModel, address: str) -> str:
    """Of one that has no copy any more."""
    gang = goal.profile.nodes > 1
    how = (
        f"after {plural(failed.count, 'attempt')}: {failed.replica} failed as a whole"
        if gang
        else f": {failed.replica}"
    )
    return f"given up {how}: {failed.error}; {_rests(failed, goal)}, or by `llmgw apply --replace {address}`"


def _rests(failed: Attempts, goal: DesiredModel) -> str:
    """Without the time: two plans made a moment apart say the same."""
    row = (
        f"that was the {failed.count}. time in a row; "
        if goal.profile.nodes == 1 and failed.count > 1
        else ""
    )
    pause = span(rest(failed, goal.profile).total_seconds())
    return f"{row}it is tried again after a rest of {pause}, at once when its spec changes"


def _error(copy: Copy) -> str:
    failure = copy.state.failure
    return (failure.last_error or failure.reason) if failure is not None else copy.state.text


def _left(round_: Round, stand: Standing, copy: Copy, until: str) -> None:
    failure = copy.state.failure
    lines = failure.last_exit.last_lines[-5:] if failure is not None and failure.last_exit is not None else ()
    round_.told.changes.append(
        Change(
            address=copy.address,
            action=Action.BLOCKED,
            keyword="failed",
            reason=f"{copy.replica.id} failed on {copy.nodes[0]}: {_error(copy)}; {until}, "
            f"by `llmgw apply --replace {copy.address}`, or by hand on the node{':' if lines else ''}"
            + "".join(f"\n{line}" for line in lines),
            model=stand.model.name,
            ordinal=copy.replica.ordinal,
            replica=copy.replica.id,
            where=stand.model.where,
        )
    )
