"""Places for all ranks of a gang at once: so many nodes, a different one for each rank, all of one kind; or none at all."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address

from llmgw.core.amounts import names, plural
from llmgw.core.fabric import choice
from llmgw.core.place.candidates import Candidates, Request
from llmgw.core.place.claims import NodeLedger
from llmgw.core.place.fitting import NOBODY, Fit, fit, need_text, suits
from llmgw.model.struct import Struct, replace


class Kind(Struct):
    """What the ranks of one gang have in common. Nodes on loopback addresses are one machine's: no other machine can meet
    them there."""

    gpu_class: str  # empty: they compute on the CPU
    loopback: bool
    fabric: str = ""  # empty: they may do without


@dataclass(slots=True, kw_only=True)
class _Group:
    """Nodes of one kind that fit, as they come."""

    leader: Fit | None = None
    workers: list[Fit] = field(default_factory=list)

    def whole(self, ranks: int) -> list[Fit]:
        """The leader first; empty as long as somebody is missing."""
        if self.leader is None or len(self.workers) < ranks - 1:
            return []
        return [self.leader, *self.workers[: ranks - 1]]


def gather(
    request: Request,
    nodes: Iterable[NodeLedger],
    *,
    without: frozenset[str] = NOBODY,
    soon: bool = False,
) -> list[Fit]:
    """One fit a rank out of the first nodes of one kind, in their order, or none. The first with ports enough leads. A
    fabric that is preferred is looked for first, and done without where no gang comes together on one."""
    tries = {"none": (False,), "preferred": (True, False), "required": (True,)}[request.network.fabric]
    every = tuple(nodes) if len(tries) > 1 else nodes
    for joined in tries:
        if found := _gather(request, every, joined=joined, without=without, soon=soon):
            return found
    return []


def _gather(
    request: Request, nodes: Iterable[NodeLedger], *, joined: bool, without: frozenset[str], soon: bool
) -> list[Fit]:
    """``joined``: only nodes that share a fabric."""
    groups: dict[Kind, _Group] = {}
    for ledger in nodes:
        for kind in kinds(ledger, request, joined=joined):
            group = groups.setdefault(kind, _Group())
            _add(group, ledger, _of_kind(request, kind), without=without, soon=soon)
            if found := group.whole(request.nodes):
                return found
    return []


def _add(group: _Group, ledger: NodeLedger, request: Request, *, without: frozenset[str], soon: bool) -> None:
    if group.leader is None:
        found = fit(ledger, request.gpus, request.need, without=without, soon=soon)
        if isinstance(found, Fit):
            group.leader = found
            return
    found = fit(ledger, request.gpus, request.need, without=without, soon=soon, leader=False)
    if isinstance(found, Fit):
        group.workers.append(found)


def kinds(ledger: NodeLedger, request: Request, *, joined: bool) -> Iterator[Kind]:
    """One for each class of GPUs and, where they must be ``joined``, each fabric."""
    loopback = _is_loopback(ledger.address)
    fabrics = choice.usable(ledger.fabrics, request.network) if joined else ("",)
    classes: Iterable[str] = ("",)
    if request.gpus.per_node:
        classes = (
            entry.gpu.gpu_class for entry in ledger.gpus if suits(ledger, entry, request.gpus, request.need)
        )
    for gpu_class in dict.fromkeys(classes):
        yield from (Kind(gpu_class=gpu_class, loopback=loopback, fabric=fabric) for fabric in fabrics)


def _of_kind(request: Request, kind: Kind) -> Request:
    if kind.gpu_class in ("", request.gpus.gpu_class):
        return request
    return replace(request, gpus=replace(request.gpus, gpu_class=kind.gpu_class))


ADDRESSES = 4096
"""Addresses of which it is kept what they are: a plan asks again for each replica of several GPUs."""


@lru_cache(maxsize=ADDRESSES)
def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def shortage(request: Request, among: Candidates) -> str:
    """Why no gang came together, with numbers: ``it needs 2 nodes with 8 whole GPUs each, 1 of 4 has that``."""
    having: dict[Kind, list[str]] = {}
    required = request.network.fabric == "required"
    for ledger in among.nodes:
        for kind in kinds(ledger, request, joined=required):
            of_kind = _of_kind(request, kind)
            if isinstance(fit(ledger, of_kind.gpus, of_kind.need, leader=False), Fit):
                having.setdefault(kind, []).append(ledger.view.name)
    able = {name for group in having.values() for name in group}
    has = f"{len(able)} of {len(among.nodes)} {'has' if len(able) == 1 else 'have'} that"
    share = " that share a fabric (fabric: required)" if required else ""
    if required and not among.nodes:
        return f"it needs {request.nodes} nodes{share}, and none has one that can be used"
    text = f"it needs {request.nodes} nodes at once{share} with {_need(request, among)} each, {has}"
    if len(able) < request.nodes:
        return text
    if any(len(group) >= request.nodes for group in having.values()):
        ports = plural(request.need.ports + request.need.leader_ports, "free port")
        return f"{text}, but none of them has {ports} for rank 0"
    apart = "; ".join(f"{_kind_text(kind)} {names(group)}" for kind, group in having.items())
    must = "be alike and share a fabric" if required else "be alike"
    return f"{text}, but the ranks of one replica must {must}: {apart}"


def _need(request: Request, among: Candidates) -> str:
    kin = next((ledger.gpus for ledger in among.nodes if ledger.gpus), ())
    return need_text(request.gpus, request.need, kin)


def _kind_text(kind: Kind) -> str:
    where = " at loopback addresses" if kind.loopback else ""
    fabric = f" in {kind.fabric}" if kind.fabric else ""
    return f"{kind.gpu_class or 'without GPUs'}{where}{fabric} on"
