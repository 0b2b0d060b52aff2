"""Whose going would make room: the search for the replicas to evict so that one more fits. Moves and claims nothing.

Nobody of a higher priority goes where those of lower ones would do; within that the fewest, and none that is not needed in the
end. All ranks of a gang get a place at once or nobody goes. The same question always gets the same answer.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from llmgw.core.place.claims import NodeLedger
from llmgw.core.place.fitting import Fit
from llmgw.model.struct import Struct

LOOKED_AT = 32
"""Nodes on which the search counts exactly who would have to go; of more it takes those with the fewest tenants."""


class Tenant(Struct):
    """A replica that may be asked to go. ``shards`` are the holders' names in the ledgers, ``gpus`` how many it claims."""

    replica: str
    model: str
    ordinal: int
    priority: int
    serves: bool
    gpus: int
    nodes: tuple[str, ...]
    shards: frozenset[str]

    @property
    def order(self) -> tuple[int, bool, int, str, int, str]:
        """Who goes first: the lowest priority, one that serves nobody, one whose going frees much, the highest ordinal."""
        return (self.priority, self.serves, -self.gpus, self.model, -self.ordinal, self.replica)


class Question(Struct):
    """``choose`` finds a fit for every rank on some nodes, in their order, once the named holders are gone; ``fits`` tells
    of one node whether one of ``ranks`` would fit. ``gone`` is gone in any case. ``rank`` orders nodes that need equally many
    to go."""

    choose: Callable[[Iterable[NodeLedger], frozenset[str]], list[Fit]]
    fits: Callable[[NodeLedger, frozenset[str]], bool]
    rank: Callable[[NodeLedger], tuple[object, ...]]
    ranks: int = 1
    gone: frozenset[str] = frozenset()


def clear(
    question: Question, nodes: Sequence[NodeLedger], every: Sequence[Tenant]
) -> tuple[list[Fit], tuple[Tenant, ...]]:
    """The place of every rank and who of ``every``, in their order, has to go for it; nothing and nobody where all would not
    be enough."""
    levels = sorted({tenant.priority for tenant in every})

    def enough(level: int) -> bool:
        return bool(question.choose(nodes, _without(question, _up_to(every, level))))

    # The more go, the more room there is: found by halving.
    lowest = bisect_left(levels, True, key=enough)
    if lowest == len(levels):
        return [], ()
    able = _up_to(every, levels[lowest])
    by_node = _by_node(able)
    ranked = _ranked(question, nodes, by_node)
    found = question.choose(ranked, _without(question, able))
    if not found:  # the nodes left out were needed
        found = question.choose(nodes, _without(question, able))
    chosen = [fit.ledger for fit in found]
    needed = [tenant for tenant in able if any(ledger.view.name in tenant.nodes for ledger in chosen)]
    for tenant in reversed(needed):
        fewer = [each for each in needed if each is not tenant]
        if without := question.choose(chosen, _without(question, fewer)):
            needed, found = fewer, without
    return found, tuple(needed)


def _up_to(tenants: Iterable[Tenant], level: int) -> list[Tenant]:
    return [tenant for tenant in tenants if tenant.priority <= level]


def _without(question: Question, tenants: Iterable[Tenant]) -> frozenset[str]:
    return question.gone.union(*(tenant.shards for tenant in tenants))


def _by_node(tenants: Iterable[Tenant]) -> dict[str, list[Tenant]]:
    found: dict[str, list[Tenant]] = {}
    for tenant in tenants:
        for node in tenant.nodes:
            found.setdefault(node, []).append(tenant)
    return found


def _ranked(
    question: Question, nodes: Sequence[NodeLedger], by_node: Mapping[str, list[Tenant]]
) -> list[NodeLedger]:
    """The nodes on which a rank would fit, those first where the fewest have to go."""

    def tenants(ledger: NodeLedger) -> list[Tenant]:
        return by_node.get(ledger.view.name, [])

    by_crowd = sorted(nodes, key=lambda ledger: (len(tenants(ledger)), *question.rank(ledger)))
    able = (ledger for ledger in by_crowd if question.fits(ledger, _without(question, tenants(ledger))))
    counted = [(_fewest(question, ledger, tenants(ledger)), ledger) for ledger in islice(able, LOOKED_AT)]
    counted.sort(key=lambda each: (each[0], *question.rank(each[1])))
    return [ledger for _, ledger in counted]


def _fewest(question: Question, ledger: NodeLedger, tenants: list[Tenant]) -> float:
    """How many of those on one node have to go so that a rank fits there. Where room is wanted on several nodes, a gang that
    frees several of them counts for less on each."""
    needed = tenants
    for tenant in reversed(tenants):
        fewer = [each for each in needed if each is not tenant]
        if question.fits(ledger, _without(question, fewer)):
            needed = fewer
    return sum(1 / min(len(tenant.nodes), question.ranks) for tenant in needed)
