"""Which nodes may take a model at all, and how those that do not are told: one by one in a small fleet, together by
reason in a large one."""

from collections import Counter
from collections.abc import Iterable, Mapping

from llmgw.core.adapter import Need
from llmgw.core.amounts import names, size
from llmgw.core.fabric import choice, interfaces
from llmgw.core.fabric.choice import Wish
from llmgw.core.place.claims import NodeLedger
from llmgw.core.place.fitting import Fit, describe, fit, need_text, suits, unsuited
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import Gpus, PlacementRules
from llmgw.model.plan import Rejection
from llmgw.model.struct import Struct

LOOK_CLOSELY = 64
"""Candidates up to which every single one is explained, with its holders; beyond that by their numbers only."""
TELL_APART = 8
"""Nodes that share a reason are listed one by one up to here."""


class Request(Struct):
    """What one replica asks for. ``weights`` is the digest of weights that are fetched; ``reads`` of those that its engine
    reads, fetched or not."""

    model: str
    gpus: Gpus
    need: Need
    nodes: int
    rules: PlacementRules
    weights: str | None = None
    reads: str | None = None
    network: Wish = Wish()
    alike: bool = False  # the GPUs of one rank must be of one class, as those of all ranks always are
    engine: str = ""
    engine_path: str | None = None
    programs: tuple[str, ...] = ()  # that are not the engine's own
    weights_path: str | None = None
    adapter_paths: tuple[str, ...] = ()
    shunned: tuple[
        str, ...
    ] = ()  # nodes that come after all others, as it has failed there; the newest last of all

    @property
    def spread(self) -> bool:
        return self.rules.spread == "node"

    @property
    def shape_key(self) -> tuple[object, ...]:
        """Equal for requests that have the same candidates among nodes that are not :func:`particular`."""
        labels = tuple(sorted(self.rules.labels.items()))
        gang = (self.nodes > 1, self.network, self.alike)
        return (self.rules.pool, labels, self.rules.nodes, self.gpus, self.need, gang)

    @property
    def rules_key(self) -> tuple[object, ...]:
        """Equal for requests that have the same candidates."""
        runs = (self.engine, self.engine_path, self.programs, self.weights_path, self.adapter_paths)
        return (self.shape_key, self.reads, *runs)


class Candidates(Struct):
    """Nodes that the rules allow, and those they do not, with the reason."""

    nodes: tuple[NodeLedger, ...]
    allowed: frozenset[int]
    rejections: tuple[Rejection, ...]


class Look(Struct):
    """What a look at some nodes found, in their order: those that may take it, and those that may not."""

    allowed: tuple[NodeLedger, ...]
    refused: tuple[tuple[int, Rejection], ...]


def particular(ledger: NodeLedger) -> bool:
    """Whether the machine itself has a say in which models it takes: by its own people's policy, or as their weights are broken
    there. All others only ask for a model's shape, which many models share."""
    facts = ledger.view.facts
    return bool(ledger.view.bad_weights) or (facts is not None and facts.policy is not None)


def look(request: Request, ledgers: Iterable[NodeLedger]) -> Look:
    allowed, refused = [], []
    named = frozenset(request.rules.nodes)
    for ledger in ledgers:
        if ledger.view.desired is None:
            continue
        if rejection := _against_rules(request, ledger, named):
            refused.append((ledger.order, rejection))
        else:
            allowed.append(ledger)
    return Look(allowed=tuple(allowed), refused=tuple(refused))


def candidates(*looks: Look) -> Candidates:
    """What the looks at the parts of a fleet found, as one."""
    nodes = [ledger for each in looks for ledger in each.allowed]
    refused = [each for found in looks for each in found.refused]
    if len(looks) > 1:
        nodes.sort(key=lambda ledger: ledger.order)
        refused.sort(key=lambda each: each[0])
    return Candidates(
        nodes=tuple(nodes),
        allowed=frozenset(ledger.order for ledger in nodes),
        rejections=merge(rejection for _, rejection in refused),
    )


def breaks_rules(ledger: NodeLedger, rules: PlacementRules, named: frozenset[str] | None = None) -> str:
    """Why a node is not one that the rules ask for; empty when it is. ``named``: ``rules.nodes``, for many questions."""
    node = ledger.view.desired
    return "not in Git" if node is None else breaks_rules_of(node, rules, named)


def breaks_rules_of(node: DesiredNode, rules: PlacementRules, named: frozenset[str] | None = None) -> str:
    """The same of a node that Git names."""
    if rules.nodes and node.name not in (named if named is not None else rules.nodes):
        return "not among placement.nodes"
    if node.spec.pool != rules.pool:
        return f"in pool {node.spec.pool}, not {rules.pool}"
    for key, wanted in sorted(rules.labels.items()):
        if (have := node.labels.get(key)) != wanted:
            return f"label {key} is {have}, not {wanted}" if have else f"has no label {key}={wanted}"
    return ""


def forbidden(request: Request, ledger: NodeLedger) -> str:
    """Why the machine's own policy does not let this run there; empty when it does, and where nothing is known of it."""
    facts = ledger.view.facts
    policy = facts.policy if facts is not None else None
    if policy is None:
        return ""
    weights = (request.weights_path,) if request.weights_path is not None else ()
    paths = (*weights, *request.adapter_paths)
    return (
        policy.obstacle
        or policy.refuses_engine(request.engine, request.engine_path)
        or next((why for program in request.programs if (why := policy.refuses_program(program))), "")
        or next((why for path in paths if (why := policy.refuses_path(path))), "")
    )


def _bad_weights(request: Request, ledger: NodeLedger) -> str:
    why = ledger.view.bad_weights.get(request.reads or "")
    return f"the weights can't be used there: {why}" if why else ""


def _against_rules(request: Request, ledger: NodeLedger, named: frozenset[str]) -> Rejection | None:
    name = ledger.view.name
    reason = (
        breaks_rules(ledger, request.rules, named)
        or ledger.view.obstacle
        or forbidden(request, ledger)
        or _bad_weights(request, ledger)
    )
    if reason:
        return Rejection(node=name, reason=reason)
    if rejection := _cannot_meet(request, ledger):
        return rejection
    if not request.gpus.per_node:
        return None
    if not ledger.gpus:
        facts = ledger.view.facts
        problems = "; ".join(facts.problems) if facts is not None else ""
        return Rejection(node=name, reason="has no GPUs" + (f" ({problems})" if problems else ""))
    if not any(suits(ledger, entry, request.gpus, request.need) for entry in ledger.gpus):
        reason, need, have = unsuited(ledger, request.gpus, request.need)
        return Rejection(node=name, reason=reason, need=need, have=have)
    return None


def _cannot_meet(request: Request, ledger: NodeLedger) -> Rejection | None:
    """Why a node can't hold a rank that meets others over the network."""
    if request.nodes == 1:
        return None
    name, facts = ledger.view.name, ledger.view.facts
    own = interfaces.own(ledger.address, facts)
    if own.wrong:
        return Rejection(
            node=name, reason="no interface holds its address", need=ledger.address, have=f"it has {own.why}"
        )
    node = ledger.view.desired
    if request.network.fabric != "required" or node is None:
        return None
    if choice.usable(ledger.fabrics, request.network):
        return None
    have = choice.lacking(node.spec, facts, ledger.fabrics, request.network)
    return Rejection(node=name, reason="has no usable fabric", need="one (fabric: required)", have=have)


def turned_down(request: Request, among: Candidates, chosen: Mapping[str, object]) -> tuple[Rejection, ...]:
    """Every candidate but the chosen ones, with the reason it was not taken."""
    rest = [ledger for ledger in among.nodes if ledger.view.name not in chosen]
    told = _closely if len(among.nodes) <= LOOK_CLOSELY else _by_numbers
    return (*told(request, rest, first=next(iter(chosen), "")), *among.rejections)


def _closely(request: Request, rest: list[NodeLedger], *, first: str) -> tuple[Rejection, ...]:
    found = []
    for ledger in rest:
        answer = fit(ledger, request.gpus, request.need, leader=request.nodes == 1)
        if isinstance(answer, Fit) and (mixed := _mixed(request, ledger)):
            need = f"{request.gpus.per_node} of one class (parallel.tensor)"
            found.append(Rejection(node=ledger.view.name, reason="mixed GPU classes", need=need, have=mixed))
        elif isinstance(answer, Fit):
            found.append(
                Rejection(node=ledger.view.name, reason=_second_best(first), have=_room(request, ledger))
            )
        else:
            reason, need, have = describe(ledger, answer, request.gpus, request.need)
            found.append(Rejection(node=ledger.view.name, reason=reason, need=need, have=have))
    return merge(found)


def _mixed(request: Request, ledger: NodeLedger) -> str:
    """The free GPUs by class, where a rank needs them alike and no class has enough: ``1 h100-80g and 1 l40s-45g free``."""
    if not request.alike:
        return ""
    free = Counter(
        entry.gpu.gpu_class
        for entry in ledger.gpus
        if entry.whole() and suits(ledger, entry, request.gpus, request.need)
    )
    if max(free.values(), default=0) >= request.gpus.per_node:
        return ""
    return f"{names(f'{count} {gpu_class}' for gpu_class, count in sorted(free.items()))} free"


def _by_numbers(request: Request, rest: list[NodeLedger], *, first: str) -> tuple[Rejection, ...]:
    """Without asking each node closely: what its counters say is enough to be told together."""
    groups: dict[int, list[str]] = {}
    least = request.gpus.per_node if request.gpus.share is None else 0
    whole = bool(least)
    for ledger in rest:
        groups.setdefault(ledger.free_whole if whole else 0, []).append(ledger.view.name)
    need = need_text(request.gpus, request.need, rest[0].gpus if rest else ())
    found = []
    for free, nodes in sorted(groups.items()):
        room = free >= least
        have = f"{free} free on each" if whole else ""
        if room and first:
            found.append(Rejection(node=names(nodes), reason=_second_best(first), have=have))
        else:
            reason = "not enough GPU" if whole and not room else "not enough room"
            found.append(Rejection(node=names(nodes), reason=reason, need=need, have=have))
    return tuple(found)


def _second_best(first: str) -> str:
    return f"comes after {first}" if first else "has room, but not for all ranks together"


def _room(request: Request, ledger: NodeLedger) -> str:
    if request.gpus.per_node:
        return f"{ledger.free_whole} of {len(ledger.gpus)} GPUs free"
    free = ledger.memory_free()
    return f"{size(free)} of memory free" if free is not None else ""


def merge(rejections: Iterable[Rejection]) -> tuple[Rejection, ...]:
    """Those that say the same of many nodes become one."""
    groups: dict[tuple[str, str, str], list[Rejection]] = {}
    for rejection in rejections:
        groups.setdefault((rejection.reason, rejection.need, rejection.have), []).append(rejection)
    told: list[Rejection] = []
    for (reason, need, have), same in groups.items():
        if len(same) > TELL_APART:
            who = names(rejection.node for rejection in same)
            told.append(Rejection(node=who, reason=reason, need=need, have=have))
        else:
            told += same
    return tuple(told)
