"""Which fabric the ranks of one replica use: one that all their nodes share, the fastest; or why there is none."""

from collections.abc import Iterable, Mapping
from typing import Literal

from llmgw.core.amounts import names
from llmgw.core.fabric import gids
from llmgw.core.fabric.labels import ETHERNET, STATED, Labels, NodeFabric
from llmgw.model.desired import DesiredModel
from llmgw.model.facts import Facts, HcaPort
from llmgw.model.manifest import ModelSpec, NodeSpec, ProfileSpec
from llmgw.model.struct import Struct

EXAMPLE = "fabrics: [{name: ib-a, hcas: [mlx5_0, mlx5_1]}]"


class Wish(Struct):
    """What a replica asks of the network between its nodes. ``stated``: its env names adapters or their index itself."""

    fabric: Literal["required", "preferred", "none"] = "none"
    stated: bool = False


def wish_of(model: DesiredModel) -> Wish:
    return asked(model.profile, model.spec)


def asked(profile: ProfileSpec, model: ModelSpec) -> Wish:
    if profile.nodes == 1:
        return Wish()
    return Wish(fabric=profile.fabric, stated=bool(STATED & {*profile.env, *model.env}))


def used(fabric: NodeFabric, wish: Wish) -> tuple[HcaPort, ...]:
    """The ports that NCCL is told of: all, or those that agree on one GID index."""
    if fabric.layer != ETHERNET or fabric.stated or wish.stated:
        return fabric.ports
    agreed = gids.agreement(fabric.ports)
    return agreed.ports if agreed is not None else ()


def together(found: Labels, nodes: Iterable[str], name: str, wish: Wish) -> Mapping[str, tuple[HcaPort, ...]]:
    """What each node's rank uses of a fabric. Nodes with the same labels are machines of one kind, whose ports are partners,
    each pair perhaps in a network of its own: one that is left out on one node is left out on all."""
    on = {node: found[node][name] for node in nodes}
    ports = {node: used(fabric, wish) for node, fabric in on.items()}
    if wish.stated or len({fabric.written for fabric in on.values()}) > 1:
        return ports
    if any(fabric.stated or fabric.assumed for fabric in on.values()):
        return ports
    common = set.intersection(*({gids.label(port) for port in each} for each in ports.values()))
    if not common:
        return ports
    return {node: tuple(port for port in each if gids.label(port) in common) for node, each in ports.items()}


def obstacle(fabric: NodeFabric, wish: Wish) -> str:
    """Why a fabric can't be used on a node; empty when it can."""
    if fabric.unseen:
        return "its adapters are known after bootstrap"
    if not fabric.usable:
        return "; ".join(fabric.problems)
    if wish.fabric == "required" and len(used(fabric, wish)) < len(fabric.ports):
        return (
            f"its ports disagree on the GID index ({gids.told(fabric.ports)}), and one index holds for all: "
            "label only ports that agree, or write fabric: preferred"
        )
    return ""


def usable(of_node: Mapping[str, NodeFabric], wish: Wish) -> tuple[str, ...]:
    return tuple(name for name, fabric in sorted(of_node.items()) if not obstacle(fabric, wish))


def lacking(spec: NodeSpec, facts: Facts | None, of_node: Mapping[str, NodeFabric], wish: Wish) -> str:
    """What a node has instead of a usable fabric, for people."""
    if not spec.fabrics:
        there = names(dict.fromkeys(port.device for port in facts.hca_ports)) if facts is not None else ""
        return f"spec.fabrics is not written{f'; it has {there}' if there else ''}: write {EXAMPLE}"
    return "; ".join(f"{name}: {obstacle(fabric, wish)}" for name, fabric in sorted(of_node.items()))


def shared(found: Labels, nodes: Iterable[str], wish: Wish) -> str | None:
    """The fabric that all nodes can use: where the slowest of them is fastest, then by name."""
    if wish.fabric == "none":
        return None
    every = tuple(nodes)
    options = [set(usable(found.get(node, {}), wish)) for node in every]
    common = set.intersection(*options) if options else set()
    return min(common, key=lambda name: (-_slowest(found, every, name, wish), name), default=None)


def _slowest(found: Labels, nodes: Iterable[str], name: str, wish: Wish) -> float:
    return min(gids.speed(used(found[node][name], wish)) for node in nodes)


def apart(found: Labels, nodes: Iterable[str], wish: Wish) -> str:
    """What each node has, where they share nothing: ``gpu01 has ib-a; gpu02 has no fabric labelled``."""
    told = []
    for node in nodes:
        of_node = found.get(node, {})
        why = "; ".join(f"{name}: {obstacle(fabric, wish)}" for name, fabric in sorted(of_node.items()))
        if having := usable(of_node, wish):
            told.append(f"{node} has {names(having)}")
        else:
            told.append(f"{node}: {why}" if why else f"{node} has no fabric labelled")
    return "; ".join(told)


def reason(found: Labels, nodes: Iterable[str], name: str, wish: Wish) -> str:
    """``they share the fabric ib-a, InfiniBand: 8 ports of 400 Gb/s on gpu01, 8 ports of 400 Gb/s on gpu02``."""
    ports = together(found, nodes, name, wish)
    on = [found[node][name] for node in ports]
    layer = next((fabric.layer for fabric in on if fabric.layer), "")
    having = ", ".join(f"{fabric.what(ports[fabric.node])} on {fabric.node}" for fabric in on)
    return f"they share the fabric {name}{f', {kind_text(layer)}' if layer else ''}: {having}"


def kind_text(layer: str) -> str:
    return "RoCE" if layer == ETHERNET else layer
