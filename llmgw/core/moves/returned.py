"""Shards that come back with a machine that somebody had given up for lost, or by an order that came after its pass was taken
over: they are told to stop, since others have taken their places. Where nobody has, adoption takes them over first."""

from llmgw.core.amounts import at, names
from llmgw.core.moves.round import Round
from llmgw.core.moves.strays import stop_step
from llmgw.core.seen.condition import ENDED
from llmgw.core.seen.survey import SeenShard
from llmgw.model.ids import ReplicaId
from llmgw.model.plan import Action, Change
from llmgw.model.record import GivenUp
from llmgw.model.report import ShardState


def stop_returned(round_: Round, *, adopted: frozenset[str]) -> None:
    """Only on nodes that can be asked and commanded."""
    given_up = {each.replica: each for each in round_.record.given_up}
    found: dict[ReplicaId, list[SeenShard]] = {}
    for seen in (*round_.survey.shards.values(), *round_.survey.doubles) if given_up else ():
        replica = seen.report.replica
        alive = seen.report.state not in ENDED and round_.survey.nodes[seen.node].known
        if alive and replica in given_up and replica not in adopted and not round_.record.knows(replica):
            found.setdefault(replica, []).append(seen)
    for replica, shards in sorted(found.items()):
        going = [each for each in shards if each.report.state != ShardState.STOPPING.value]
        if not going:
            round_.told.waiting.append(f"{replica}, which was given up, is stopping")
            continue
        lost = given_up[shards[0].report.replica]
        where = names(dict.fromkeys(each.node for each in shards))
        reason = f"{replica} runs on {where}, and {_how(lost)}: it is stopped"
        for seen in going:
            round_.book.add(stop_step(seen, reason))
        model = shards[0].report.model
        round_.told.changes.append(
            Change(
                address=f"model/{model}",
                action=Action.REMOVE,
                keyword="given-up",
                reason=reason,
                model=model,
                previous=replica,
            )
        )


def _how(lost: GivenUp) -> str:
    if lost.serial:
        return f"its order, of serial {lost.serial}, came after {lost.by} had taken that pass over at {at(lost.at)}"
    return f"was given up together with {lost.node} by {lost.by} at {at(lost.at)}"
