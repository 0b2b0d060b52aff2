"""What a plan tells of the networks between nodes: labels that are not true, and what the ranks that start have to do without."""

from collections.abc import Iterator

from llmgw.core.fabric import choice
from llmgw.core.fabric.labels import problems
from llmgw.core.moves.round import Round
from llmgw.core.seen.condition import LEAVING
from llmgw.model.plan import Notice
from llmgw.model.record import ReplicaRecord


def untrue_labels(round_: Round) -> Iterator[Notice]:
    """Adapters that a manifest names and that are missing, down or of another kind: named problems, which stop nothing."""
    found = round_.book.labels()
    for view in round_.survey.nodes.values():
        if view.desired is not None:
            yield from (Notice(text=text, where=view.desired.where) for text in problems(view, found))


def shortcomings(round_: Round) -> Iterator[Notice]:
    """Of the replicas that this plan starts."""
    started = round_.book.started()
    for replica, network in sorted(round_.book.networks.items()):
        if replica not in started:
            continue
        yield from (Notice(text=f"{replica}: {note}") for note in network.notes)


def lost_fabrics(round_: Round) -> Iterator[Notice]:
    """Of the replicas that run: what they were placed for is gone, and they are left alone. Of a node that can't be asked
    nothing is said."""
    for replica in sorted(round_.record.replicas.values(), key=lambda replica: replica.id):
        known = all(round_.survey.nodes[rank.node].known for rank in replica.ranks)
        if known and replica.phase not in LEAVING and (why := unjoined(round_, replica)):
            yield Notice(
                text=f"{replica.id}: {why}; it is left alone while it runs", where=replica.origin.where
            )


def unjoined(round_: Round, replica: ReplicaRecord) -> str:
    """Why the nodes of a recorded replica don't share the fabric that it requires any more; empty when they do."""
    wish = choice.asked(replica.spec.profile, replica.spec.model)
    found, nodes = round_.book.labels(), tuple(dict.fromkeys(rank.node for rank in replica.ranks))
    if wish.fabric != "required" or choice.shared(found, nodes, wish) is not None:
        return ""
    return f"its nodes share no fabric any more, and it requires one ({choice.apart(found, nodes, wish)})"
