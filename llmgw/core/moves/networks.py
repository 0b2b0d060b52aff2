"""What a plan tells of the networks between nodes: labels that are not true, and what the ranks that start have to do without."""

from collections.abc import Iterator

from llmgw.core.fabric import choice
from llmgw.core.fabric.labels import problems
from llmgw.core.moves.round import Copy, Round
from llmgw.model.plan import Notice


def untrue_labels(round_: Round) -> Iterator[Notice]:
    """Adapters that a manifest names and that are missing, down or of another kind: named problems, which stop nothing."""
    found = round_.book.labels()
    for view in round_.survey.nodes.values():
        if view.desired is not None:
            yield from (Notice(text=text, where=view.desired.where) for text in problems(view, found))


def shortcomings(round_: Round) -> Iterator[Notice]:
    """Of the replicas that this plan starts."""
    for replica, network in sorted(round_.book.networks.items()):
        yield from (Notice(text=f"{replica}: {note}") for note in network.notes)


def unjoined(round_: Round, copy: Copy) -> str:
    """Why the nodes of a recorded replica don't share the fabric that it requires any more; empty when they do."""
    wish = choice.asked(copy.replica.spec.profile, copy.replica.spec.model)
    found = round_.book.labels()
    if wish.fabric != "required" or choice.shared(found, copy.nodes, wish) is not None:
        return ""
    return (
        f"its nodes share no fabric any more, and it requires one ({choice.apart(found, copy.nodes, wish)})"
    )
