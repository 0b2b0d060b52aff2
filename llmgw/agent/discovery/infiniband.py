"""InfiniBand and RoCE ports from sysfs. Any of these files may be missing, empty or refuse to be read; ``root`` is a
parameter so that captured trees can be read in tests."""

import re
from pathlib import Path

from llmgw.model.facts import Gid, HcaPort

ROOT = Path("/sys/class/infiniband")
MAX_DEVICES = 64
MAX_GIDS = 256
_NO_GID = re.compile(r"^[0:]*$")
_EMPTY_LINK_LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0000"


def infiniband_ports(root: Path = ROOT) -> tuple[HcaPort, ...]:
    """Sorted by device and port; empty without such adapters."""
    return tuple(
        _port(device, folder)
        for device in _entries(root)[:MAX_DEVICES]
        for folder in _entries(device / "ports")
        if folder.name.isdigit()
    )


def _port(device: Path, folder: Path) -> HcaPort:
    state = _read(folder / "state").partition(":")[2].strip() or "UNKNOWN"
    rate = re.match(r"[\d.]+", _read(folder / "rate"))
    return HcaPort(
        device=device.name,
        port=int(folder.name),
        link_layer=_read(folder / "link_layer") or "Unknown",
        state=state,
        rate=float(rate[0]) if rate and state == "ACTIVE" else None,
        guid=_read(device / "node_guid"),
        gids=_gids(folder),
    )


def _gids(folder: Path) -> tuple[Gid, ...]:
    numbers = sorted(int(entry.name) for entry in _entries(folder / "gids") if entry.name.isdigit())
    found = []
    for index in numbers[:MAX_GIDS]:
        gid = _read(folder / "gids" / str(index))
        if gid and not _NO_GID.match(gid) and gid != _EMPTY_LINK_LOCAL:
            found.append(
                Gid(
                    index=index,
                    gid=gid,
                    gid_type=_read(folder / "gid_attrs" / "types" / str(index)),
                    netdev=_read(folder / "gid_attrs" / "ndevs" / str(index)),
                )
            )
    return tuple(found)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(file: Path) -> str:
    """First line; empty where the driver refuses (EINVAL is its way to say *none*)."""
    try:
        with file.open(errors="replace") as stream:
            return stream.readline(4096).strip()
    except OSError:
        return ""
