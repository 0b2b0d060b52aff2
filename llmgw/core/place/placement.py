"""Where a replica goes, and why not elsewhere.

Packs by default: the node with the fewest free GPUs that still fits, among equals one that has the weights, then by
name, so that the same question gets the same answer. What is placed stays where it is.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llmgw.core.amounts import names, plural
from llmgw.core.fabric import choice
from llmgw.core.place.candidates import (
    LOOK_CLOSELY,
    Candidates,
    Look,
    Request,
    candidates,
    look,
    particular,
    turned_down,
)
from llmgw.core.place.claims import NodeLedger, rank_claims
from llmgw.core.place.clearing import Question, Tenant, clear
from llmgw.core.place.fitting import NOBODY, Fit, fit
from llmgw.core.place.gang import gather, shortage
from llmgw.core.place.links import all_linked
from llmgw.model.ids import shard_id
from llmgw.model.plan import Decision, Rejection
from llmgw.model.record import RankPlacement


@dataclass(slots=True)
class Placer:
    """Finds places and keeps the ledgers. Free capacity is indexed by the number of free GPUs, so that a large
    fleet is not walked for every replica."""

    ledgers: Mapping[str, NodeLedger]
    _by_free: dict[int, list[int]] = field(default_factory=dict)
    _order: list[NodeLedger] = field(default_factory=list)
    _by_cpu: list[int] = field(default_factory=list)
    _weights: dict[str, set[int]] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _candidates: dict[tuple[object, ...], Candidates] = field(default_factory=dict)
    _looks: dict[tuple[object, ...], tuple[Look, Candidates]] = field(default_factory=dict)
    _particular: list[NodeLedger] = field(default_factory=list)
    _plain: list[NodeLedger] = field(default_factory=list)
    _told: dict[str, tuple[Rejection, ...]] = field(default_factory=dict)
    _hopeless: dict[tuple[object, ...], Decision] = field(default_factory=dict)
    _crowded: set[tuple[object, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._order = sorted(self.ledgers.values(), key=lambda ledger: ledger.order)
        for ledger in self._order:
            (self._particular if particular(ledger) else self._plain).append(ledger)
            self._by_free.setdefault(ledger.free_whole, []).append(ledger.order)
            for weights in ledger.view.facts.weights if ledger.view.facts else ():
                self._weights.setdefault(weights.digest, set()).add(ledger.order)
            if any(holding.leaving for entry in ledger.gpus for holding in entry.holdings) or any(
                holding.leaving for holding in ledger.memory
            ):
                self._leaving.add(ledger.view.name)
        # Replicas that compute on the CPU keep away from machines with GPUs as long as they can.
        self._by_cpu = sorted(
            range(len(self._order)), key=lambda order: (len(self._order[order].gpus), order)
        )

    # ---- what the rollout asks -----------------------------------------------------------------------

    def place(self, request: Request, copies: Counter[str]) -> Decision:
        """With what is free now. ``copies`` counts the model's replicas by node. Nothing is claimed yet."""
        key = (request.rules_key, request.need, request.nodes)
        if known := self._hopeless.get(key):
            return known
        among = self._among(request)
        chosen = self._choose(request, self._in_order(request, among, copies))
        if chosen:
            return self._decide(request, among, chosen, copies=copies)
        why = (shortage(request, among),) if request.nodes > 1 else ()
        refused = Decision(reasons=why, rejections=turned_down(request, among, {}))
        # Nothing becomes free while a plan is made: what does not fit once never will in this plan.
        self._hopeless[key] = refused
        return refused

    def place_instead(
        self, request: Request, ranks: Iterable[RankPlacement], replica: str, *, anywhere: bool = False
    ) -> Decision:
        """As if ``replica`` were gone already. A single rank is only tried where it runs, unless ``anywhere``: everywhere else
        was tried before. A gang may find other nodes beside its own."""
        ranks = tuple(ranks)
        among = self._among(request)
        own = {rank.node: self.ledgers[rank.node] for rank in ranks if rank.node in self.ledgers}
        nodes = [ledger for ledger in own.values() if ledger.order in among.allowed]
        if request.nodes > 1 or anywhere:
            nodes += [ledger for ledger in among.nodes if ledger.view.name not in own]
        without = frozenset(shard_id(replica, rank.rank) for rank in ranks)
        chosen = self._choose(request, nodes, without=without)
        return (
            self._decide(request, among, chosen, freed_by=f"once {replica} has stopped")
            if chosen
            else Decision()
        )

    def place_soon(self, request: Request) -> Decision:
        """As if everything that is on its way out were gone already."""
        among = self._among(request)
        least = request.gpus.per_node if request.gpus.share is None else 0
        nodes = [
            ledger
            for ledger in among.nodes
            if ledger.free_soon >= least and (request.nodes > 1 or ledger.view.name in self._leaving)
        ]
        chosen = self._choose(request, nodes, soon=True)
        return (
            self._decide(request, among, chosen, freed_by="once those that leave have stopped")
            if chosen
            else Decision()
        )

    def place_cleared(
        self,
        request: Request,
        copies: Counter[str],
        tenants: Sequence[Tenant],
        *,
        gone: Iterable[RankPlacement] = (),
        replica: str = "",
    ) -> tuple[Decision, tuple[Tenant, ...]]:
        """As if everything on its way out were gone, ``replica`` with the ranks ``gone`` too, and with them as many of
        ``tenants`` as it takes, in their order; and who these are. Nobody where that is not enough."""
        highest = tenants[-1].priority if tenants else None
        key = (request.rules_key, request.need, request.nodes, highest, replica)
        if key in self._crowded:
            return Decision(), ()
        among = self._among(request)
        without = frozenset(shard_id(replica, rank.rank) for rank in gone)
        holders = self._weights.get(request.weights or "", set())

        def choose(nodes: Iterable[NodeLedger], without: frozenset[str]) -> list[Fit]:
            return self._choose(request, nodes, without=without, soon=True)

        def fits(ledger: NodeLedger, without: frozenset[str]) -> bool:
            leads = request.nodes == 1
            found = fit(ledger, request.gpus, request.need, without=without, soon=True, leader=leads)
            return isinstance(found, Fit)

        def rank(ledger: NodeLedger) -> tuple[object, ...]:
            crowd = copies[ledger.view.name] if request.spread else 0
            return (crowd, ledger.order not in holders, ledger.order)

        question = Question(choose=choose, fits=fits, rank=rank, ranks=request.nodes, gone=without)
        chosen, going = clear(question, among.nodes, tenants)
        if not chosen:
            # Who goes while a plan is made goes for somebody else: it only gets harder.
            self._crowded.add(key)
            return Decision(), ()
        away = names([*([replica] if replica else []), *(tenant.replica for tenant in going)])
        one = len(going) + bool(replica) == 1
        freed_by = f"once {away} {'has' if one else 'have'} stopped"
        return self._decide(request, among, chosen, freed_by=freed_by), going

    def claim(self, replica: str, ranks: Iterable[RankPlacement]) -> None:
        for rank in ranks:
            ledger = self.ledgers[rank.node]
            before = ledger.free_whole
            ledger.claim(shard_id(replica, rank.rank), rank_claims(rank))
            self._moved(ledger, before)

    def leave(self, replica: str, ranks: Iterable[RankPlacement]) -> None:
        """The replica is going; what it holds is free soon."""
        for rank in ranks:
            if (ledger := self.ledgers.get(rank.node)) is not None:
                ledger.leave(shard_id(replica, rank.rank))
                self._leaving.add(rank.node)

    # ---- how it answers ------------------------------------------------------------------------------

    def _moved(self, ledger: NodeLedger, before: int) -> None:
        if ledger.free_whole != before:
            bucket = self._by_free[before]
            del bucket[bisect_left(bucket, ledger.order)]
            insort(self._by_free.setdefault(ledger.free_whole, []), ledger.order)

    def _among(self, request: Request) -> Candidates:
        """Found once for all replicas that ask alike, and on most nodes for all models of one shape."""
        key = request.rules_key
        if key not in self._candidates:
            self._candidates[key] = self._looked(request)
        return self._candidates[key]

    def _looked(self, request: Request) -> Candidates:
        shape = request.shape_key
        if shape not in self._looks:
            plain = look(request, self._plain)
            self._looks[shape] = (plain, candidates(plain))
        plain, alone = self._looks[shape]
        return candidates(plain, look(request, self._particular)) if self._particular else alone

    def _choose(
        self,
        request: Request,
        nodes: Iterable[NodeLedger],
        *,
        without: frozenset[str] = NOBODY,
        soon: bool = False,
    ) -> list[Fit]:
        """One fit a rank, or none at all."""
        if request.nodes > 1 or request.alike:
            return gather(request, nodes, without=without, soon=soon)
        for ledger in nodes:
            found = fit(ledger, request.gpus, request.need, without=without, soon=soon)
            if isinstance(found, Fit):
                return [found]
        return []

    def _in_order(self, request: Request, among: Candidates, copies: Counter[str]) -> Iterator[NodeLedger]:
        """Candidates from the most to the least preferred."""
        later: list[NodeLedger] = []

        shunned = {name: number for number, name in enumerate(request.shunned, start=1)}

        def rank(ledger: NodeLedger) -> tuple[int, int]:
            name = ledger.view.name
            return (shunned.get(name, 0), copies[name] if request.spread else 0)

        for order in self._packed(request, among):
            ledger = self._order[order]
            if any(rank(ledger)):
                later.append(ledger)
            else:
                yield ledger
        yield from sorted(later, key=rank)

    def _packed(self, request: Request, among: Candidates) -> Iterator[int]:
        allowed = among.allowed
        if not request.gpus.per_node:
            yield from self._on_cpu(request, allowed)
            return
        shared: Collection[int] = ()
        if request.gpus.share is not None:
            # Nodes whose GPUs are shared already come first: whole ones stay free for those that need them.
            share = request.gpus.share
            shared = {
                ledger.order: None for ledger in among.nodes if ledger.shared and ledger.share_room >= share
            }
            yield from shared
        least = request.gpus.per_node if request.gpus.share is None else 0
        holders = self._weights.get(request.weights or "", set()) & allowed
        for free in sorted(self._by_free):
            if free < least:
                continue
            bucket = tuple(self._by_free[free])
            if holders:
                yield from (order for order in bucket if order in holders)
            for order in bucket:
                if order in allowed and order not in holders and order not in shared:
                    yield order

    def _on_cpu(self, request: Request, allowed: frozenset[int]) -> Iterable[int]:
        orders = (order for order in self._by_cpu if order in allowed)
        if not (holders := self._weights.get(request.weights or "", set()) & allowed):
            return orders
        return sorted(orders, key=lambda order: (len(self._order[order].gpus), order not in holders))

    def _decide(
        self,
        request: Request,
        among: Candidates,
        chosen: list[Fit],
        *,
        freed_by: str = "",
        copies: Counter[str] | None = None,
    ) -> Decision:
        ranks = tuple(
            RankPlacement(
                rank=rank,
                node=found.ledger.view.name,
                address=found.ledger.address,
                gpus=found.gpus,
                memory=request.need.memory,
                ports=found.ports,
            )
            for rank, found in enumerate(chosen)
        )
        reasons = tuple(dict.fromkeys(self._why(request, found, freed_by, copies) for found in chosen))
        reasons += _linked(chosen) + _joined(request, chosen) + _summed(request, chosen)
        return Decision(ranks=ranks, reasons=reasons, rejections=self._others(request, among, ranks))

    def _why(self, request: Request, found: Fit, freed_by: str, copies: Counter[str] | None) -> str:
        ledger = found.ledger
        name = ledger.view.name
        if freed_by:
            return f"{name} has room {freed_by}"
        if request.gpus.share is not None and request.gpus.per_node:
            room = "room on the fullest GPU that fits"
        elif request.gpus.per_node:
            room = f"{ledger.free_whole} of {plural(len(ledger.gpus), 'GPU')} free"
            room += "" if request.spread else ", the fewest that fit"
        else:
            room = "room; computes on the CPU"
        have = (
            ", and the weights already"
            if ledger.order in self._weights.get(request.weights or "", ())
            else ""
        )
        apart = ""
        if request.spread and copies is not None:
            there = copies[name]
            apart = f", and {there or 'none'} of its replicas{', the fewest' if there else ''} (spread: node)"
        return f"{name} has {room}{have}{apart}"

    def _others(
        self, request: Request, among: Candidates, ranks: tuple[RankPlacement, ...]
    ) -> tuple[Rejection, ...]:
        chosen = {rank.node: rank for rank in ranks}
        if len(among.nodes) <= LOOK_CLOSELY:
            return turned_down(request, among, chosen)
        if request.model not in self._told:
            self._told[request.model] = turned_down(request, among, chosen)
        return self._told[request.model]


def _linked(chosen: list[Fit]) -> tuple[str, ...]:
    """Where a rank has several GPUs: that they are connected, if that is known."""
    told = (
        f"its GPUs on {found.ledger.view.name} are connected by NVLink"
        for found in chosen
        if len(found.gpus) > 1 and all_linked(found.ledger, {claim.uuid for claim in found.gpus})
    )
    return tuple(told)


def _summed(request: Request, chosen: list[Fit]) -> tuple[str, ...]:
    """What it takes there, as a sum, where its weights are known."""
    if not request.need.reckoned:
        return ()
    if not request.gpus.per_node:
        return (f"needs {request.need.sum}",)
    found = (
        request.need.of(entry.gpu)
        for fit_ in chosen
        for entry in fit_.ledger.gpus
        if entry.gpu.uuid in {claim.uuid for claim in fit_.gpus}
    )
    return tuple(dict.fromkeys(f"needs {each.sum}" for each in found if each is not None))


def _joined(request: Request, chosen: list[Fit]) -> tuple[str, ...]:
    """Which fabric joins the ranks, and why that one."""
    found = {each.ledger.view.name: each.ledger.fabrics for each in chosen}
    fabric = choice.shared(found, found, request.network)
    return (choice.reason(found, found, fabric, request.network),) if fabric is not None else ()
