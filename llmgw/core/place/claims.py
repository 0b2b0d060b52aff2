"""Who holds what on which node: recorded replicas that have not stopped, shards that nobody recorded, what is kept
for people, and processes that are not ours.

The invariant: claims on a GPU never exceed it, nor on ports or memory. A ledger is filled in while one plan is made
and thrown away with it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from llmgw.core.amounts import GIB, size
from llmgw.core.fabric.labels import NodeFabric, labels
from llmgw.core.seen.cautions import LOOPBACK
from llmgw.core.seen.condition import ENDED, LEAVING, condition
from llmgw.core.seen.survey import NodeView, Survey
from llmgw.model.claims import Claims
from llmgw.model.facts import Facts, Gpu
from llmgw.model.ids import shard_id
from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.manifest import PortRange, Reserve
from llmgw.model.record import RankPlacement, ReplicaRecord

IDLE_MEMORY = GIB
"""Bytes that a GPU without any process may show as used: the driver's own part, some hundred MiB."""


@dataclass(slots=True, kw_only=True)
class Holding:
    """``memory`` None is the whole GPU. ``leaving``: will be given back without anything else being decided."""

    holder: str
    memory: int | None
    leaving: bool = False


@dataclass(slots=True, kw_only=True)
class GpuLedger:
    """One GPU. ``unusable`` says why no shard may have it at all; ``foreign`` bytes are held by others."""

    gpu: Gpu
    unusable: str = ""
    foreign: int = 0
    foreign_text: str = ""
    holdings: list[Holding] = field(default_factory=list)

    def whole(self, *, without: frozenset[str] = frozenset(), soon: bool = False) -> bool:
        """Whether a shard can have it for itself; ``soon``: once those that leave have gone."""
        if self.unusable or self.foreign:
            return False
        return not self.holdings or not any(_counts(holding, without, soon=soon) for holding in self.holdings)

    def free(self, *, without: frozenset[str] = frozenset(), soon: bool = False) -> int:
        """Bytes that a share may still claim."""
        if self.unusable:
            return 0
        left = self.gpu.memory_total - self.foreign
        for holding in self.holdings:
            if _counts(holding, without, soon=soon):
                if holding.memory is None:
                    return 0
                left -= holding.memory
        return max(left, 0)

    def state(self) -> str:
        """Who holds it, for people."""
        if self.unusable:
            return self.unusable
        parts = [holding.holder for holding in self.holdings if holding.memory is None]
        if parts:
            return f"is held by {', '.join(parts)}"
        taken = [f"{holding.holder} holds {size(holding.memory or 0)}" for holding in self.holdings]
        taken += [self.foreign_text] if self.foreign_text else []
        return f"has {size(self.free())} free" + (f", {', '.join(taken)}" if taken else "")


def _counts(holding: Holding, without: frozenset[str], *, soon: bool) -> bool:
    return holding.holder not in without and not (soon and holding.leaving)


@dataclass(slots=True, kw_only=True)
class NodeLedger:
    """``memory_total`` None: not known. ``taken`` are ports that are held or listened on, ``ephemeral`` those that the kernel
    gives to outgoing connections."""

    view: NodeView
    order: int  # its place among all nodes, by name
    address: str
    ports: PortRange
    gpus: tuple[GpuLedger, ...] = ()
    linked: bool = False  # some of its GPUs are connected by NVLink
    fabrics: Mapping[str, NodeFabric] = field(default_factory=dict)
    memory_total: int | None = None
    memory: list[Holding] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    ephemeral: range = range(0)
    free_whole: int = 0
    free_soon: int = 0  # whole GPUs, once those that leave have gone
    shared: int = 0  # GPUs that are held in shares
    share_room: int = 0  # bytes of the largest share that fits on a shared GPU

    def claim(self, holder: str, claims: Claims) -> None:
        self.hold(holder, claims)
        self.count()

    def hold(self, holder: str, claims: Claims, *, leaving: bool = False) -> None:
        """The claim alone, for many at once: whoever holds counts at the end."""
        by_uuid = {entry.gpu.uuid: entry for entry in self.gpus}
        for gpu in claims.gpus:
            entry = by_uuid.get(gpu.uuid)
            if entry is not None:
                entry.holdings.append(Holding(holder=holder, memory=gpu.memory, leaving=leaving))
        if claims.memory:
            self.memory.append(Holding(holder=holder, memory=claims.memory, leaving=leaving))
        self.taken.update(claims.ports)

    def leave(self, holder: str) -> None:
        """What it holds will be given back by what is already decided."""
        for holding in self._held(holder):
            holding.leaving = True
        self.count()

    def settle(self) -> None:
        """Memory on a GPU of ours that no process is named for is our own shard's."""
        for entry in self.gpus:
            if entry.holdings and not entry.gpu.processes:
                entry.foreign, entry.foreign_text = 0, ""
        self.count()

    def count(self) -> None:
        self.free_whole = sum(1 for entry in self.gpus if entry.whole())
        self.free_soon = sum(1 for entry in self.gpus if entry.whole(soon=True))
        shared = [
            entry for entry in self.gpus if any(holding.memory is not None for holding in entry.holdings)
        ]
        self.shared = len(shared)
        self.share_room = max((entry.free() for entry in shared), default=0)

    def memory_free(self, *, without: frozenset[str] = frozenset(), soon: bool = False) -> int | None:
        if self.memory_total is None:
            return None
        held = sum(holding.memory or 0 for holding in self.memory if _counts(holding, without, soon=soon))
        return self.memory_total - held

    def free_ports(self, count: int) -> tuple[int, ...]:
        """The lowest ``count`` in a row, away from those that the kernel gives to outgoing connections as long as there are
        others; the longest row there is when none is long enough."""
        best: list[int] = []
        for avoided in (self.ephemeral, range(0)) if self.ephemeral else (range(0),):
            row: list[int] = []
            for port in range(self.ports.from_port, self.ports.to_port + 1):
                row = [*row, port] if port not in self.taken and port not in avoided else []
                best = max(best, row, key=len)
                if len(best) >= count:
                    return tuple(best[:count])
        return tuple(best)

    def _held(self, holder: str) -> Iterator[Holding]:
        for entry in self.gpus:
            yield from (holding for holding in entry.holdings if holding.holder == holder)
        yield from (holding for holding in self.memory if holding.holder == holder)


def rank_claims(rank: RankPlacement) -> Claims:
    return Claims(gpus=rank.gpus, memory=rank.memory, ports=rank.ports)


def ledgers(survey: Survey, replicas: Iterable[ReplicaRecord]) -> dict[str, NodeLedger]:
    """Everything that is held before this plan adds to it, by node."""
    found = labels(survey.nodes.values())
    books = {
        view.name: _ledger(view, order, found[view.name]) for order, view in enumerate(survey.nodes.values())
    }
    recorded = set()
    for replica in sorted(replicas, key=lambda each: each.id):
        for rank in replica.ranks:
            holder = shard_id(replica.id, rank.rank)
            recorded.add(holder)
            if (book := books.get(rank.node)) is not None and not _given_back(
                replica, holder, book.view, survey
            ):
                book.hold(holder, rank_claims(rank), leaving=replica.phase in LEAVING)
    for seen in (*survey.shards.values(), *survey.doubles):
        if seen.report.shard not in recorded and seen.report.state not in ENDED:
            books[seen.node].hold(seen.report.shard, seen.report.claims)
    for book in books.values():
        book.settle()
    return books


def _given_back(replica: ReplicaRecord, holder: str, view: NodeView, survey: Survey) -> bool:
    """Of a gang that was given up, what its agent knows to have ended: the other ranks may never be heard of again."""
    if len(replica.ranks) == 1 or not view.known or not condition(replica, survey).given_up:
        return False
    seen = survey.shards.get(holder)
    return seen is None or seen.node != view.name or seen.report.state in ENDED


def _ledger(view: NodeView, order: int, fabrics: Mapping[str, NodeFabric]) -> NodeLedger:
    spec = view.desired.spec if view.desired is not None else None
    reserve = spec.reserve if spec is not None else Reserve()
    facts = view.facts or Facts()
    parents = {gpu.parent for gpu in facts.gpus if gpu.parent}
    policy = facts.policy or LocalPolicy(file="")
    kept = max(reserve.memory, policy.reserve.memory)
    total = facts.memory_total - kept if facts.memory_total else None
    return NodeLedger(
        view=view,
        order=order,
        address=view.desired.address if view.desired is not None else "",
        ports=spec.ports if spec is not None else PortRange(),
        gpus=tuple(_gpu_ledger(gpu, reserve, parents, policy) for gpu in sorted(facts.gpus, key=_by_index)),
        linked=any(gpu.nvlink_peers for gpu in facts.gpus),
        fabrics=fabrics,
        memory_total=total,
        taken=set(facts.listening),
        ephemeral=_ephemeral(view, facts),
    )


def _by_index(gpu: Gpu) -> tuple[int, str]:
    """In whatever order they are reported: the same ones are taken first."""
    return (gpu.index, gpu.uuid)


def _ephemeral(view: NodeView, facts: Facts) -> range:
    """Connections to elsewhere never take a port of a loopback address."""
    if facts.ephemeral_ports is None or view.desired is None or view.desired.address in LOOPBACK:
        return range(0)
    low, high = facts.ephemeral_ports
    return range(low, high + 1)


def _gpu_ledger(gpu: Gpu, reserve: Reserve, parents: set[str], policy: LocalPolicy) -> GpuLedger:
    unusable = ""
    if gpu.uuid in reserve.gpus:
        unusable = "is kept for people (reserve)"
    elif policy.keeps(gpu.uuid, gpu.parent):
        unusable = f"is kept for people ({policy.where('reserve')} on the node)"
    elif gpu.uuid in parents:
        unusable = "is split into MIG instances"
    elif gpu.health:
        unusable = f"is unhealthy: {'; '.join(gpu.health)}"
    foreign, text = _foreign(gpu)
    return GpuLedger(gpu=gpu, unusable=unusable, foreign=foreign, foreign_text=text)


def _foreign(gpu: Gpu) -> tuple[int, str]:
    """Bytes held by processes that are not ours, and who they are."""
    strangers = [process for process in gpu.processes if process.shard is None]
    if strangers:
        held = [
            f"pid {process.pid} of user {process.user} holds "
            + (size(process.memory) if process.memory is not None else "an unknown amount")
            for process in strangers
        ]
        known = [process.memory for process in strangers if process.memory is not None]
        # The driver may not tell how much a process holds: then nothing is left to count on.
        total = sum(known) if len(known) == len(strangers) else gpu.memory_total
        return max(total, 1), ", ".join(held)
    if not gpu.processes and gpu.memory_used > IDLE_MEMORY:
        return gpu.memory_used, f"{size(gpu.memory_used)} are used by processes the driver does not name"
    return 0, ""
