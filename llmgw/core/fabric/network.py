"""What each rank of a gang is told of the network between its nodes: the interface that holds its node's own address, and
exactly the adapters of the chosen fabric. Facts behind the variables: docs/nodes.md, "Networks between nodes"."""

from collections.abc import Iterator, Mapping

from llmgw.core.adapter import NodeContext, RankNetwork, Variable
from llmgw.core.amounts import names
from llmgw.core.fabric import choice, gids, interfaces
from llmgw.core.fabric.choice import Wish
from llmgw.core.fabric.labels import ETHERNET, Labels, NodeFabric
from llmgw.model.desired import DesiredModel
from llmgw.model.facts import HcaPort
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct, field


class Network(Struct):
    """By rank, with what a person should know about it."""

    ranks: Mapping[int, RankNetwork] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _Rank(Struct):
    """What one rank is told, as it comes together."""

    environment: dict[str, Variable] = field(default_factory=dict)
    gids: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def network(
    model: DesiredModel,
    ranks: tuple[RankPlacement, ...],
    nodes: Mapping[str, NodeContext],
    found: Labels,
) -> Network:
    """Empty for a single rank, which meets nobody."""
    if len(ranks) == 1:
        return Network()
    wish = choice.wish_of(model)
    at = list(dict.fromkeys(rank.node for rank in ranks))
    fabric = choice.shared(found, at, wish)
    ports = choice.together(found, at, fabric, wish) if fabric is not None else {}
    notes = list(_without_fabric(found, at, wish)) if fabric is None else []
    made: dict[int, RankNetwork] = {}
    for rank in ranks:
        told = _Rank()
        own = interfaces.own(rank.address, nodes[rank.node].facts)
        _sockets(told, rank, own)
        if rank.gpus:
            on_it = found[rank.node][fabric] if fabric is not None else None
            _adapters(told, on_it, ports.get(rank.node, ()), wish)
        made[rank.rank] = RankNetwork(
            environment=told.environment,
            gids=told.gids,
            interface_address=own.address or None,
        )
        notes += told.notes
    return Network(ranks=made, notes=tuple(notes))


def _without_fabric(found: Labels, at: list[str], wish: Wish) -> Iterator[str]:
    if wish.fabric != "none":
        yield (
            f"no fabric joins {names(at)} ({choice.apart(found, at, wish)}): its ranks talk over plain sockets, "
            "which is far slower"
        )


def _sockets(told: _Rank, rank: RankPlacement, own: interfaces.Own) -> None:
    if own.why:
        told.notes.append(f"{rank.node}: {own.why}")
    if not own.name:
        return
    reason = f"{own.name} holds {rank.address}, {rank.node}'s address"
    if rank.gpus:
        told.environment["NCCL_SOCKET_IFNAME"] = Variable(value=f"={own.name}", reason=reason)
        # An interface mostly holds an IPv6 address of the link besides, which leads nowhere.
        told.environment["NCCL_SOCKET_FAMILY"] = Variable(value=own.family, reason=reason)
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        told.environment[name] = Variable(value=own.name, reason=reason)


def _adapters(told: _Rank, fabric: NodeFabric | None, ports: tuple[HcaPort, ...], wish: Wish) -> None:
    if fabric is None:
        why = "the profile asks for no fabric" if wish.fabric == "none" else "no fabric joins its nodes"
        told.environment["NCCL_IB_DISABLE"] = Variable(value="1", reason=why)
        return
    listed = ",".join(map(gids.label, ports)) if ports else ",".join(fabric.assumed)
    kind = f"{choice.kind_text(fabric.layer)}: " if fabric.layer else ""
    reason = f"exactly the adapters of fabric {fabric.name}, {kind}{fabric.what(ports)}"
    told.environment["NCCL_IB_HCA"] = Variable(value=f"={listed}", reason=reason)
    if wish.fabric == "required":
        why = "fabric: required, so NCCL fails rather than fall back to sockets"
        told.environment["NCCL_NET"] = Variable(value="IB", reason=why)
    if fabric.assumed:
        told.notes.append(
            f"{fabric.node}: fabric {fabric.name} is taken as written: nobody has seen its adapters"
        )
    if not (fabric.stated or wish.stated):
        _entries(told, fabric, ports)
        told.notes.extend(_left_out(fabric, ports, wish))


def _entries(told: _Rank, fabric: NodeFabric, ports: tuple[HcaPort, ...]) -> None:
    """The entries of the GID tables that the adapters are used by, and that must still be there when the rank starts."""
    index = 0
    if fabric.layer == ETHERNET and (agreed := gids.agreement(ports)) is not None:
        index = agreed.index
        told.environment["NCCL_IB_GID_INDEX"] = Variable(value=str(index), reason=_entry_text(ports, index))
    for port in ports:
        if (entry := gids.entry(port, index)) is not None:
            told.gids[f"{gids.label(port)}:{index}"] = entry.gid


def _left_out(fabric: NodeFabric, ports: tuple[HcaPort, ...], wish: Wish) -> Iterator[str]:
    """Ports that would work, and why they are not used."""
    agreeing = choice.used(fabric, wish)
    apart = [port for port in fabric.ports if port not in agreeing]
    alone = [port for port in agreeing if port not in ports]
    if apart:
        yield (
            f"{fabric.node}: {_not_used(apart, fabric)}: the ports disagree on the GID index ({gids.told(fabric.ports)}), "
            "and one index holds for all"
        )
    if alone:
        yield f"{fabric.node}: {_not_used(alone, fabric)}: its partner on another node can't be"


def _not_used(ports: list[HcaPort], fabric: NodeFabric) -> str:
    verb = "is" if len(ports) == 1 else "are"
    return f"{names(map(gids.label, ports))} of fabric {fabric.name} {verb} not used"


def _entry_text(ports: tuple[HcaPort, ...], index: int) -> str:
    """``the RoCE v2 entry of 10.1.0.11 on ens1f0 and 10.1.1.11 on ens1f1``."""
    entries = [entry for port in ports if (entry := gids.entry(port, index)) is not None]
    return (
        f"the {gids.ROCE_V2} entry of {names(f'{gids.ipv4(entry)} on {entry.netdev}' for entry in entries)}"
    )
