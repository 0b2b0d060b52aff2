"""What people should know of a node and what stops nothing: fewer GPUs than its manifest promises, ports that anybody may
get, an address that it does not hold, a clock that is wrong. One sentence each, told by plans and by status."""

from collections.abc import Iterator
from ipaddress import ip_address

from llmgw.core.amounts import plural, span
from llmgw.core.seen.survey import NodeView
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Connections to elsewhere never take a port of these."""
SKEW = 5.0
"""Seconds that a node's clock may differ from the controller's: its journal, its logs and the tokens that registries
check by time are read beside those of others."""


def cautions(view: NodeView) -> tuple[str, ...]:
    """Only of what the node itself has told: nothing is said of facts that are taken from the record or the manifest."""
    node, facts = view.desired, view.facts
    if node is None or facts is None or view.presumed or view.intruder:
        return ()
    return (*expectation(node, facts), *_ports(node, facts), *unheld_address(node, facts))


def clock_caution(view: NodeView) -> tuple[str, ...]:
    """Apart from the others because it changes by itself, and a plan says the same twice."""
    if view.skew is None or abs(view.skew) <= SKEW:
        return ()
    return (f"its clock is {clock_text(view.skew)} this one's: start NTP there (chrony, systemd-timesyncd)",)


def clock_text(skew: float) -> str:
    """``7s ahead of``, ``2m 5s behind``."""
    return f"{span(abs(skew))} {'ahead of' if skew > 0 else 'behind'}"


def expectation(node: DesiredNode, facts: Facts) -> Iterator[str]:
    wanted = node.spec.expect
    if not wanted.gpus:
        return
    if wanted.gpu_class is None:
        having = [gpu for gpu in facts.gpus if gpu.parent is None]
    else:
        having = [gpu for gpu in facts.gpus if gpu.gpu_class == wanted.gpu_class]
    if len(having) < wanted.gpus:
        kind = f" of class {wanted.gpu_class}" if wanted.gpu_class else ""
        why = f" ({'; '.join(facts.problems)})" if facts.problems else ""
        yield f"has {plural(len(having), 'GPU')}{kind}, its manifest expects {wanted.gpus}{why}"


def _ports(node: DesiredNode, facts: Facts) -> Iterator[str]:
    """A port that the kernel may give to anybody may be taken when an engine wants it."""
    if facts.ephemeral_ports is None or node.address in LOOPBACK:
        return
    ours, (low, high) = node.spec.ports, facts.ephemeral_ports
    if ours.from_port <= high and low <= ours.to_port:
        yield (
            f"ports {ours.from_port} to {ours.to_port} overlap those the kernel gives to outgoing connections ({low} to"
            f" {high}): an engine may find its port taken; choose others in spec.ports"
        )


def unheld_address(node: DesiredNode, facts: Facts) -> Iterator[str]:
    """Engines bind to it. A name is looked up by the node itself; a pretended node's interfaces are no machine's."""
    if not facts.interfaces or facts.gpu_source == "pretended":
        return
    try:
        wanted = ip_address(node.address)
    except ValueError:
        return
    if wanted.is_loopback or wanted.is_unspecified:
        return
    held = {address for one in facts.interfaces for address in one.addresses}
    if str(wanted) not in held and node.address not in held:
        yield (
            f"none of its interfaces holds its address {node.address}, so engines can't listen there: set spec.address to one"
            f" of {_addresses(facts)}"
        )


def _addresses(facts: Facts) -> str:
    own = [
        address
        for one in facts.interfaces
        if one.up
        for address in one.addresses
        if not ip_address(address).is_loopback and not ip_address(address).is_link_local
    ]
    return ", ".join(own[:8]) or "its own (it has none but loopback)"
