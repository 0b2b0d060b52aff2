"""What runs without being managed: what was forgotten is told and left alone; what nobody recorded is stopped where somebody
has asked for just that."""

from llmgw.core.amounts import at, names
from llmgw.core.moves import commands
from llmgw.core.moves.round import Round
from llmgw.core.seen.strays import holds, strays
from llmgw.core.seen.survey import SeenShard
from llmgw.model.plan import Action, Change, Notice, Step
from llmgw.model.report import ShardState


def tell_forgotten(round_: Round) -> None:
    for name, each in sorted(round_.record.forgotten.items()):
        why = f" ({each.why})" if each.why else ""
        where = names(dict.fromkeys(rank.node for rank in each.replica.ranks))
        text = (
            f"{name} on {where} was forgotten by {each.by} at {at(each.at)}{why}: it keeps what it holds and no plan touches it;"
            f" `llmgw adopt {name}` manages it again"
        )
        round_.told.warnings.append(Notice(text=text))


def prune_strays(round_: Round, *, adopted: frozenset[str]) -> None:
    """Asked for by ``--prune-unrecorded``. Neither the limit of pruning nor protection counts here: both are about what
    the record knows, and somebody has looked at this list."""
    for replica, shards in strays(round_.record, round_.survey).items():
        if replica in adopted:
            continue
        going = [each for each in shards if each.report.state != ShardState.STOPPING.value]
        if not going:
            round_.told.waiting.append(f"{replica}, which nobody recorded, is stopping")
            continue
        model = shards[0].report.model
        failed = all(each.report.state == ShardState.FAILED.value for each in going)
        how = ("has failed on", "its order is dropped") if failed else ("runs on", "it is stopped")
        reason = f"{replica} {how[0]} {_where(shards)} and nobody recorded it: {how[1]}, as --prune-unrecorded asks"
        for seen in going:
            if seen.report.state == ShardState.FAILED.value:
                round_.book.forget(seen.node, seen.report.shard, reason)
            else:
                round_.book.add(stop_step(seen, reason))
        round_.told.changes.append(
            Change(
                address=f"model/{model}",
                action=Action.REMOVE,
                keyword="unrecorded",
                reason=f"{reason}; it {holds(shards)}",
                model=model,
                previous=replica,
            )
        )


def stop_step(seen: SeenShard, reason: str) -> Step:
    """At once: what nobody published gets no requests from us that could be waited for."""
    return commands.stop(seen.report.shard, seen.node, reason, model=seen.report.model)


def _where(shards: tuple[SeenShard, ...]) -> str:
    return names(dict.fromkeys(each.node for each in shards))
