"""Which entry of a RoCE adapter's GID table its ports use. One index holds for all ports of a process, and it differs from
machine to machine, so it is read from the tables and never fixed."""

from collections.abc import Iterable
from ipaddress import IPv6Address

from llmgw.core.amounts import names
from llmgw.model.facts import Gid, HcaPort
from llmgw.model.struct import Struct

ROCE_V2 = "RoCE v2"


class Agreement(Struct):
    """The largest set of ports that have a fitting entry at the same ``index``, and the others."""

    index: int
    ports: tuple[HcaPort, ...]
    left_out: tuple[HcaPort, ...] = ()


def usable(port: HcaPort) -> tuple[int, ...]:
    """Indices of RoCE v2 entries with an IPv4 address on the port's own interface; where that has no address, on those
    above it, such as a VLAN's."""
    found = [gid for gid in port.gids if gid.gid_type == ROCE_V2 and ipv4(gid) is not None]
    own = [gid for gid in found if gid.netdev == port.netdev]
    return tuple(sorted(gid.index for gid in own or found))


def ipv4(gid: Gid) -> str | None:
    """The IPv4 address that a GID is made of."""
    try:
        mapped = IPv6Address(gid.gid).ipv4_mapped
    except ValueError:
        return None
    return str(mapped) if mapped is not None else None


def entry(port: HcaPort, index: int) -> Gid | None:
    return next((gid for gid in port.gids if gid.index == index), None)


def agreement(ports: Iterable[HcaPort]) -> Agreement | None:
    """None when no port has such an entry. Among equal sets the faster one, then the lower index."""
    every = tuple(ports)
    having: dict[int, list[HcaPort]] = {}
    for port in every:
        for index in usable(port):
            having.setdefault(index, []).append(port)
    if not having:
        return None
    index = min(having, key=lambda index: (-len(having[index]), -speed(having[index]), index))
    chosen = tuple(having[index])
    return Agreement(index=index, ports=chosen, left_out=tuple(port for port in every if port not in chosen))


def speed(ports: Iterable[HcaPort]) -> float:
    """Gb/s of all together, as far as they tell."""
    return sum(port.rate or 0 for port in ports)


def told(ports: Iterable[HcaPort]) -> str:
    """``mlx5_0:1 has 3; mlx5_1:1 has 5 and 7``."""
    return "; ".join(f"{label(port)} has {names(map(str, usable(port))) or 'none'}" for port in ports)


def label(port: HcaPort) -> str:
    """As NCCL names a port."""
    return f"{port.device}:{port.port}"
