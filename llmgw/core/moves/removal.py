"""Models that Git no longer names: drained, stopped and dropped, as far as the guards let them."""

from collections.abc import Mapping

from llmgw.core.moves.copies import Copy
from llmgw.core.moves.departure import remove
from llmgw.core.moves.guards import blocked_change
from llmgw.core.moves.round import Round
from llmgw.core.seen.condition import Health, condition
from llmgw.model.plan import Action, Change
from llmgw.model.record import ReplicaRecord


def remove_models(
    round_: Round,
    replicas: Mapping[str, list[ReplicaRecord]],
    blocked: Mapping[str, tuple[str, str]],
) -> None:
    for name in sorted(round_.record.models):
        if name in round_.desired.models:
            continue
        if name in blocked:
            round_.told.changes.append(blocked_change(name, blocked[name]))
            continue
        _remove(round_, name, replicas.get(name, []))


def _remove(round_: Round, name: str, replicas: list[ReplicaRecord]) -> None:
    if not replicas:
        reason = "not in Git any more; nothing of it runs"
        round_.book.publish(name, model=name, reason=reason)
        round_.told.changes.append(
            Change(
                address=f"model/{name}", action=Action.REMOVE, keyword="removed", reason=reason, model=name
            )
        )
        return
    for replica in sorted(replicas, key=lambda each: (-each.ordinal, each.n)):
        copy = Copy(replica=replica, state=condition(replica, round_.survey))
        remove(round_, copy, keyword="removed", reason=f"{name} is not in Git any more")


def leftovers(round_: Round, kept: frozenset[str]) -> None:
    """Orders of replicas that have stopped are dropped along with the next commands; never for themselves alone.

    ``kept`` names replicas whose logs still explain something."""
    for seen in (*round_.survey.shards.values(), *round_.survey.doubles):
        shard = seen.report
        recorded = shard.replica in round_.record.replicas or shard.replica in kept
        if shard.state == Health.STOPPED.value and not recorded:
            round_.book.forget(seen.node, shard.shard, "it has stopped and nobody asks for it")
