"""What manifests say of a node's fabrics, checked against what the node is: adapters that are missing, down or of another
kind are named, and the others are used."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from llmgw.core.amounts import names, plural
from llmgw.core.fabric import gids
from llmgw.core.seen.survey import NodeView
from llmgw.model.facts import Facts, HcaPort
from llmgw.model.manifest import Fabric
from llmgw.model.report import Reach
from llmgw.model.struct import Struct, replace

INFINIBAND = "InfiniBand"
ETHERNET = "Ethernet"
ACTIVE = "ACTIVE"


class NodeFabric(Struct):
    """One labelled fabric on one node, as ``written`` in its manifest, sorted. ``ports`` can be used, all of one ``layer`` and, on Ethernet, with a RoCE v2 entry.
    ``assumed`` are the adapters as written, where nobody has looked yet; ``unseen`` says that they can't be used before.
    ``stated``: the node's own env names adapters or their index, so that nobody else needs to."""

    name: str
    node: str
    written: tuple[str, ...] = ()
    layer: str = ""
    ports: tuple[HcaPort, ...] = ()
    assumed: tuple[str, ...] = ()
    unseen: bool = False
    stated: bool = False
    problems: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return bool(self.ports or self.assumed) and not self.unseen

    def what(self, ports: tuple[HcaPort, ...]) -> str:
        """Those of its ports that are used, in words: ``2 ports of 400 Gb/s``."""
        if not self.ports:
            return f"{names(self.assumed)} as written"
        rates = sorted({port.rate for port in ports if port.rate})
        each = f" of {'/'.join(f'{rate:g}' for rate in rates)} Gb/s" if rates else ""
        return f"{plural(len(ports), 'port')}{each}"


STATED = frozenset({"NCCL_IB_HCA", "NCCL_IB_GID_INDEX"})
"""Variables by which people take the choice of adapters, or of their index, upon themselves."""

Labels = Mapping[str, Mapping[str, NodeFabric]]
"""By node, then by fabric."""


def labels(views: Iterable[NodeView]) -> Labels:
    """Every labelled fabric of every node in Git. A fabric is of one kind: what most of its ports are."""
    found = {view.name: _of_node(view) for view in views}
    kinds: dict[str, Counter[str]] = {}
    for of_node in found.values():
        for name, fabric in of_node.items():
            kinds.setdefault(name, Counter()).update(port.link_layer for port in fabric.ports)
    layers = {
        name: max(counts, key=lambda layer: (counts[layer], layer))
        for name, counts in kinds.items()
        if counts
    }
    return {
        node: {name: _of_layer(fabric, layers.get(name, "")) for name, fabric in of_node.items()}
        for node, of_node in found.items()
    }


def _of_node(view: NodeView) -> dict[str, NodeFabric]:
    if view.desired is None:
        return {}
    spec = view.desired.spec
    stated = not STATED.isdisjoint(spec.env)
    return {
        label.name: replace(_checked(view, label), written=tuple(sorted(label.hcas)), stated=stated)
        for label in spec.fabrics
    }


def _checked(view: NodeView, label: Fabric) -> NodeFabric:
    facts = view.facts
    if facts is None or (
        view.reach is Reach.NO_AGENT and not facts.hca_ports and facts.gpu_source != "pretended"
    ):
        return NodeFabric(name=label.name, node=view.name, unseen=True)
    if facts.gpu_source == "expected":
        return NodeFabric(name=label.name, node=view.name, assumed=label.hcas)
    having = {written: _ports(written, facts) for written in label.hcas}
    problems = (_missing(written, facts, ports) for written, ports in having.items())
    active = (port for ports in having.values() for port in ports if port.state == ACTIVE)
    return NodeFabric(
        name=label.name,
        node=view.name,
        ports=tuple(sorted(active, key=lambda port: (port.device, port.port))),
        problems=tuple(problem for problem in problems if problem),
    )


def _ports(written: str, facts: Facts) -> list[HcaPort]:
    """All ports of an adapter, or the one that is written: ``mlx5_0`` or ``mlx5_0:1``."""
    device, _, number = written.partition(":")
    return [port for port in facts.hca_ports if port.device == device and number in ("", str(port.port))]


def _missing(written: str, facts: Facts, ports: list[HcaPort]) -> str:
    """Why nothing of an adapter can be used; one of its ports is enough."""
    if not ports:
        there = names(dict.fromkeys(port.device for port in facts.hca_ports)) or "no adapter"
        why = next((f" ({problem})" for problem in facts.problems if "InfiniBand" in problem), "")
        return f"{written} is missing: there is {there}{why}"
    if any(port.state == ACTIVE for port in ports):
        return ""
    return f"{written} is {'; '.join(dict.fromkeys(_state(port) for port in ports))}"


def _state(port: HcaPort) -> str:
    return f"{port.state} ({port.physical})" if port.physical else port.state


def _of_layer(fabric: NodeFabric, layer: str) -> NodeFabric:
    """Without the ports that are of another kind than the fabric, or of none that NCCL can use."""
    problems = list(fabric.problems)
    ports: list[HcaPort] = []
    for port in fabric.ports:
        if why := _unfit(port, layer, fabric.name):
            problems.append(f"{gids.label(port)} {why}")
        else:
            ports.append(port)
    return replace(fabric, layer=layer, ports=tuple(ports), problems=tuple(problems))


def _unfit(port: HcaPort, layer: str, fabric: str) -> str:
    if port.link_layer != layer:
        return f"is {port.link_layer}, and the fabric {fabric} is {layer}"
    if port.link_layer not in (INFINIBAND, ETHERNET):
        return f"has the link layer {port.link_layer}, neither {INFINIBAND} nor {ETHERNET}"
    if port.transport == "iWARP":
        return "speaks iWARP, which NCCL can't use"
    if port.link_layer == ETHERNET and not gids.usable(port):
        return f"has no {gids.ROCE_V2} entry with an IPv4 address: give {port.netdev or 'its interface'} one"
    return ""


def problems(view: NodeView, found: Labels) -> Iterator[str]:
    """What is wrong with the node's labels, one sentence a fabric."""
    for fabric in found.get(view.name, {}).values():
        if fabric.problems:
            yield f"node/{view.name}: fabric {fabric.name}: {'; '.join(fabric.problems)}"
