"""The node's network interfaces with their addresses, and which of its ports somebody listens on."""

import socket
from pathlib import Path

import psutil

from llmgw.model.facts import Interface
from llmgw.model.manifest import PortRange

_LISTEN = "0A"
MAX_TABLE = 8 * 1024 * 1024


def interfaces() -> tuple[Interface, ...]:
    """Sorted by name; IPv4 and IPv6 addresses without prefix length or zone."""
    stats = psutil.net_if_stats()
    found = []
    for name, entries in sorted(psutil.net_if_addrs().items()):
        addresses = tuple(
            entry.address.partition("%")[0]
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6)
        )
        stat = stats.get(name)
        speed = stat.speed if stat is not None and 0 < stat.speed < 65535 * 16 else None
        found.append(Interface(name=name, addresses=addresses, speed=speed, up=stat is None or stat.isup))
    return tuple(found)


def listening(ports: PortRange, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """TCP ports of the range with a listener, whoever it is. The kernel's own tables need no rights and cost
    little, unlike looking into every process."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            with (proc / "net" / table).open() as file:
                rows = file.read(MAX_TABLE).splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            cells = row.split()
            if len(cells) > 3 and cells[3] == _LISTEN:
                found.add(int(cells[1].rpartition(":")[2], 16))
    return tuple(sorted(port for port in found if ports.from_port <= port <= ports.to_port))
