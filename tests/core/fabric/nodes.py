"""Machines with InfiniBand or RoCE, for tests of the networks between nodes."""

from collections.abc import Mapping, Sequence

from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Gid, HcaPort, Interface
from llmgw.model.manifest import Fabric, Value
from llmgw.model.struct import replace
from tests.core.builders import NodeState, address_of, facts, node

V2 = "RoCE v2"
V1 = "IB/RoCE v1"


def mapped(address: str) -> str:
    """An IPv4 address as a GID table shows it."""
    first, second, third, fourth = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{first:02x}{second:02x}:{third:02x}{fourth:02x}"


def infiniband(device: str, *, state: str = "ACTIVE", rate: float = 400, port: int = 1) -> HcaPort:
    return HcaPort(
        device=device,
        port=port,
        link_layer="InfiniBand",
        state=state,
        rate=rate if state == "ACTIVE" else None,
        transport="InfiniBand",
        physical="LinkUp" if state == "ACTIVE" else "Polling",
        gids=(Gid(index=0, gid="fe80:0000:0000:0000:a088:c203:00ab:cd01", gid_type="IB/RoCE v1"),),
    )


def roce(
    device: str,
    address: str,
    index: int = 3,
    *,
    rate: float = 200,
    netdev: str = "",
    also: Sequence[Gid] = (),
) -> HcaPort:
    """``index`` is where the RoCE v2 entry of its own address stands; version 1 has the one before."""
    own = netdev or f"{device}np0"
    local = "fe80:0000:0000:0000:ba59:9fff:fe00:0001"
    return HcaPort(
        device=device,
        port=1,
        link_layer="Ethernet",
        state="ACTIVE",
        rate=rate,
        transport="RoCE",
        physical="LinkUp",
        netdev=own,
        gids=(
            Gid(index=0, gid=local, gid_type=V1, netdev=own),
            Gid(index=1, gid=local, gid_type=V2, netdev=own),
            *also,
            Gid(index=index - 1, gid=mapped(address), gid_type=V1, netdev=own),
            Gid(index=index, gid=mapped(address), gid_type=V2, netdev=own),
        ),
    )


def machine(name: str, *ports: HcaPort, gpus: int = 8) -> NodeState:
    """Its address is on ``ens1f0``; ``eth0`` and ``ib0`` have others."""
    number = address_of(name).rpartition(".")[2]
    interfaces = (
        Interface(name="lo", addresses=("127.0.0.1",)),
        Interface(name="eth0", addresses=(f"192.0.2.{number}",)),
        Interface(name="ens1f0", addresses=(address_of(name),)),
        Interface(name="ib0", addresses=(f"10.9.0.{number}",)),
    )
    found = replace(facts(name, gpus=gpus), hca_ports=ports, interfaces=interfaces)
    return NodeState(name, found)


def labelled(name: str, *, env: Mapping[str, Value] | None = None, **fabrics: Sequence[str]) -> DesiredNode:
    """``ib_a=["mlx5_0"]`` labels the fabric ib-a."""
    labels = tuple(
        Fabric(name=fabric.replace("_", "-"), hcas=tuple(hcas)) for fabric, hcas in fabrics.items()
    )
    return node(name, fabrics=labels, env=env or {})
