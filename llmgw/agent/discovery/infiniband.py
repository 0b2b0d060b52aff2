"""InfiniBand and RoCE ports from sysfs. Any of these files may be missing, empty or refuse to be read (EINVAL is a
driver's way to say *none*); the roots are parameters so that captured trees can be read in tests."""

import os
import re
from pathlib import Path

from llmgw.model.facts import Gid, HcaPort

ROOT = Path("/sys/class/infiniband")
NETWORK = "net"
"""The folder of network interfaces, beside ``ROOT``."""
MAX_DEVICES = 64
MAX_PORTS = 8
MAX_GIDS = 1024
MAX_TEXT = 4096
MAX_MEMBERS = 16
_EMPTY_LINK_LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0000"
_RATE = re.compile(r"\d+(?:\.\d+)?")


def infiniband_ports(root: Path = ROOT) -> tuple[HcaPort, ...]:
    """Sorted by device and port; empty without such adapters."""
    return tuple(
        _port(root, device, number)
        for device in _names(root)[:MAX_DEVICES]
        for number in _numbers(root / device / "ports")[:MAX_PORTS]
    )


def _port(root: Path, device: str, number: int) -> HcaPort:
    adapter = root / device
    folder = adapter / "ports" / str(number)
    state = _after_colon(_read(folder / "state")) or "UNKNOWN"
    # A port that is down reports a rate all the same.
    rate = _RATE.match(_read(folder / "rate")) if state == "ACTIVE" else None
    layer = _read(folder / "link_layer") or "Unknown"
    gids = _gids(folder)
    netdev = next((gid.netdev for gid in gids if gid.netdev), "")
    return HcaPort(
        device=device,
        port=number,
        link_layer=layer,
        state=state,
        rate=float(rate[0]) if rate else None,
        guid=_guid(_read(adapter / "node_guid")),
        gids=gids,
        transport=_transport(layer, _after_colon(_read(adapter / "node_type"))),
        physical=_after_colon(_read(folder / "phys_state")),
        port_guid=_port_guid(gids, layer),
        netdev=netdev,
        bond=_bonded(root.parent / NETWORK, netdev),
    )


def _transport(layer: str, node: str) -> str:
    """Native InfiniBand and RoCE look alike but for the link layer; an iWARP card is neither."""
    if layer == "InfiniBand":
        return "InfiniBand"
    if layer == "Ethernet":
        return "iWARP" if node == "RNIC" else "RoCE"
    return ""


def _gids(folder: Path) -> tuple[Gid, ...]:
    """Entries in use. Their numbers differ from machine to machine, and have holes."""
    found = []
    for index in _numbers(folder / "gids")[:MAX_GIDS]:
        gid = _read(folder / "gids" / str(index)).lower()
        if gid.strip("0:") and gid != _EMPTY_LINK_LOCAL:
            found.append(
                Gid(
                    index=index,
                    gid=gid,
                    gid_type=_read(folder / "gid_attrs" / "types" / str(index)),
                    netdev=_read(folder / "gid_attrs" / "ndevs" / str(index)),
                )
            )
    return tuple(found)


def _port_guid(gids: tuple[Gid, ...], layer: str) -> str:
    """The lower half of an InfiniBand port's first GID."""
    if layer != "InfiniBand" or not gids or gids[0].index != 0:
        return ""
    return ":".join(gids[0].gid.split(":")[-4:])


def _guid(text: str) -> str:
    return text.lower() if text.strip("0:") else ""


def _bonded(network: Path, netdev: str) -> tuple[str, ...]:
    """A bond's own members. ``mlx5_bond_0`` is only a name that drivers give to the adapter of one."""
    if not netdev or "/" in netdev:
        return ()
    return tuple(sorted(_read(network / netdev / "bonding" / "slaves").split()[:MAX_MEMBERS]))


# ---- Files ------------------------------------------------------------------------------------------------


def _after_colon(text: str) -> str:
    """``4: ACTIVE`` -> ``ACTIVE``."""
    return text.partition(":")[2].strip()


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is needed, of hundreds of entries
    except OSError:
        return []


def _numbers(folder: Path) -> list[int]:
    return sorted(int(name) for name in _names(folder) if name.isdigit())


def _read(file: Path) -> str:
    """First line; empty where the driver refuses. Cheap, because an adapter has hundreds of GID entries."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        data = os.read(descriptor, MAX_TEXT)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return data.decode(errors="replace").partition("\n")[0].strip("\0 \t\r")
