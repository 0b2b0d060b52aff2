"""From what a driver puts into sysfs to what a rank is told: the discovery's ports are the ones that fabrics are made of."""

from pathlib import Path

from llmgw.agent.discovery.infiniband import infiniband_ports
from llmgw.core.fabric import gids
from tests.agent.discovery.test_infiniband import IPV4, LINK_LOCAL, ZERO, adapter, tree


def roce_files(index: int) -> dict[str, str]:
    """A RoCE port's table: an empty entry that refuses to tell its type, and the right one at ``index``."""
    entries = {0: (LINK_LOCAL, "IB/RoCE v1"), 1: (LINK_LOCAL, "RoCE v2"), index - 1: (IPV4, "IB/RoCE v1")}
    entries[index] = (IPV4, "RoCE v2")
    files: dict[str, str] = {"link_layer": "Ethernet"}
    for number in range(index + 2):
        gid, kind = entries.get(number, (ZERO, "EINVAL"))
        files[f"gids/{number}"] = gid
        files[f"gid_attrs/types/{number}"] = kind
        files[f"gid_attrs/ndevs/{number}"] = "ens1f0np0" if number in entries else "EINVAL"
    return {name.replace("/", "__"): text for name, text in files.items()}


def test_the_entry_of_version_2_with_an_ipv4_address_is_found_behind_holes(tmp_path: Path) -> None:
    root = tree(tmp_path, adapter("mlx5_0", 1, **roce_files(9)) | adapter("mlx5_1", 1, **roce_files(3)))
    first, second = infiniband_ports(root)
    assert (gids.usable(first), gids.usable(second)) == ((9,), (3,))
    agreed = gids.agreement((first, second))
    assert agreed is not None
    assert (agreed.index, agreed.ports, agreed.left_out) == (3, (second,), (first,))


def test_among_equal_sets_the_faster_one_agrees(tmp_path: Path) -> None:
    slow = adapter("mlx5_1", 1, **roce_files(3), rate="100 Gb/sec (4X EDR)")
    root = tree(tmp_path, adapter("mlx5_0", 1, **roce_files(9)) | slow)
    agreed = gids.agreement(infiniband_ports(root))
    assert agreed is not None
    assert (agreed.index, [port.device for port in agreed.ports]) == (9, ["mlx5_0"])
