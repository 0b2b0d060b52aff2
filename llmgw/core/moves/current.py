"""Whether a copy is what it should be, where it may be."""

from llmgw.core.moves.copies import Copy
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing
from llmgw.core.place.candidates import breaks_rules
from llmgw.core.seen.condition import Health, outdated


def is_current(round_: Round, stand: Standing, copy: Copy) -> bool:
    """Whether a copy is what it should be, where it may be."""
    if copy.leaving or copy.replica.replaced_by or not _runs_what_is_asked(stand, copy):
        return False
    if misplaced(round_, stand, copy):
        return False
    failure = copy.state.failure
    if copy.state.health is Health.FAILED:
        if failure is not None and outdated(failure):
            return False
        return stand.goal is not None
    return True


def _runs_what_is_asked(stand: Standing, copy: Copy) -> bool:
    """One that would have to be started again must be started as Git asks now, to the letter."""
    wanted = stand.goal if stand.goal is not None else stand.model
    if copy.state.health in (Health.MISSING, Health.STOPPED):
        return copy.replica.spec_digest == wanted.spec_digest
    return wanted.runs_as(copy.replica.spec_digest)


def misplaced(round_: Round, stand: Standing, copy: Copy) -> str:
    """Why a copy may not stay where it is; empty when it may. Never said of a node that can't be asked."""
    if copy.state.health is Health.UNKNOWN:
        return ""
    for rank in copy.replica.ranks:
        ledger = round_.placer.ledgers[rank.node]
        if ledger.view.desired is not None and ledger.view.desired.leaving:
            return f"{rank.node} is not in Git any more"
        if reason := breaks_rules(ledger, stand.model.spec.placement):
            return (
                f"{rank.node} is {reason}" if reason.startswith(("in ", "not ")) else f"{rank.node} {reason}"
            )
        if ledger.view.desired is not None and ledger.view.desired.spec.drain:
            return f"{rank.node} is being drained"
        if ledger.address != rank.address:
            return f"{rank.node} has another address now ({ledger.address}, it was {rank.address})"
    return ""
