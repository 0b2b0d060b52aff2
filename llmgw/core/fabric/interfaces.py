"""Which interface of a node holds its own address: the one that its ranks meet the others at."""

from ipaddress import IPv4Address, IPv6Address, ip_address

from llmgw.core.amounts import names
from llmgw.model.facts import Facts
from llmgw.model.struct import Struct

LOOPBACK = "lo"


class Own(Struct):
    """``name`` is empty where it is not known, ``why`` says why; ``wrong``: the node tells its interfaces, and none has it.
    ``address`` as the node itself writes it."""

    name: str = ""
    address: str = ""
    family: str = ""  # as NCCL names it
    why: str = ""
    wrong: bool = False


def own(address: str, facts: Facts | None) -> Own:
    wanted = _parsed(address)
    if wanted is None:
        return Own(why=f"its address {address} is a name: write spec.address with the IP address")
    family = "AF_INET6" if wanted.version == 6 else "AF_INET"
    if wanted.is_loopback:
        return Own(name=LOOPBACK, family=family)
    told = facts.interfaces if facts is not None else ()
    if not told:
        return Own(
            why=f"which interface holds {address} is not known, so NCCL and Gloo choose one by themselves"
        )
    for interface in told:
        for held in interface.addresses:
            if _parsed(held) == wanted:
                why = "" if interface.up else f"{interface.name}, which holds {address}, is down"
                return Own(name=interface.name, address=held, family=family, why=why)
    having = names(
        f"{interface.name} {' '.join(interface.addresses)}" for interface in told if interface.addresses
    )
    return Own(why=having or "no interface with an address", wrong=True)


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(address)
    except ValueError:
        return None
