"""Adapters from sysfs trees, with what drivers really put there and what they refuse to be asked."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from llmgw.agent.discovery.infiniband import infiniband_ports
from llmgw.model.facts import Gid, HcaPort

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:a288:c203:00ab:1234"
ROUTABLE = "fe80:0000:0000:0000:0e42:a1ff:fe5b:1c2e"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a0a:0001"
REFUSES = Path("/proc/self/clear_refs")  # reading it gives EINVAL, as sysfs does for empty entries


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """``root`` is what /sys/class/infiniband is on a real machine. None of the values: the entry refuses."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if text == "EINVAL":
            (root / name).symlink_to(REFUSES)
        else:
            (root / name).write_text(text + "\n")
    return root


def adapter(device: str, port: int = 1, **changed: str) -> dict[str, str]:
    """An InfiniBand adapter of 400 Gb/s."""
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "gids/0": LINK_LOCAL,
        "gid_attrs/types/0": "IB/RoCE v1",
        "gid_attrs/ndevs/0": "EINVAL",
    }
    own = {f"{device}/node_guid": "a088:c203:00ab:1234", f"{device}/node_type": "1: CA"}
    given = {name.replace("__", "/"): text for name, text in changed.items()}
    return own | {f"{device}/ports/{port}/{name}": text for name, text in {**files, **given}.items()}


def test_native_infiniband_is_told_with_its_guids(tmp_path: Path) -> None:
    assert infiniband_ports(tree(tmp_path, adapter("mlx5_0"))) == (
        HcaPort(
            device="mlx5_0",
            port=1,
            link_layer="InfiniBand",
            state="ACTIVE",
            rate=400.0,
            guid="a088:c203:00ab:1234",
            gids=(Gid(index=0, gid=LINK_LOCAL, gid_type="IB/RoCE v1"),),
            transport="InfiniBand",
            physical="LinkUp",
            port_guid="a288:c203:00ab:1234",
        ),
    )


def test_roce_is_told_from_it_with_the_gids_that_matter_and_where_they_are(tmp_path: Path) -> None:
    """Empty entries read as zeros, and their type and interface can't be read at all."""
    entries = {
        "gids/0": ROUTABLE,
        "gid_attrs/ndevs/0": "eth2",
        "gids/1": ZERO,
        "gid_attrs/types/1": "EINVAL",
        "gid_attrs/ndevs/1": "EINVAL",
        "gids/9": IPV4,
        "gid_attrs/types/9": "RoCE v2",
        "gid_attrs/ndevs/9": "eth2",
        "gids/10": "fe80:0000:0000:0000:0000:0000:0000:0000",
    }
    files = adapter("mlx5_3", link_layer="Ethernet", rate="200 Gb/sec (2X NDR)")
    for name in ("ndevs", "types"):
        files.pop(f"mlx5_3/ports/1/gid_attrs/{name}/0")
    files |= {f"mlx5_3/ports/1/{name}": text for name, text in entries.items()}
    [port] = infiniband_ports(tree(tmp_path / "infiniband", files))
    assert (port.transport, port.rate, port.netdev, port.port_guid) == ("RoCE", 200.0, "eth2", "")
    assert port.gids == (
        Gid(index=0, gid=ROUTABLE, gid_type="", netdev="eth2"),
        Gid(index=9, gid=IPV4, gid_type="RoCE v2", netdev="eth2"),
    )
    assert port.bond == ()


def test_a_bond_names_its_members(tmp_path: Path) -> None:
    files = adapter("mlx5_bond_0", link_layer="Ethernet")
    files["mlx5_bond_0/ports/1/gids/3"] = IPV4
    files["mlx5_bond_0/ports/1/gid_attrs/ndevs/3"] = "bond0"
    root = tree(tmp_path / "infiniband", files)
    tree(tmp_path / "net", {"bond0/bonding/slaves": "enp1s0f1np1 enp1s0f0np0"})
    [port] = infiniband_ports(root)
    assert (port.netdev, port.bond, port.transport) == ("bond0", ("enp1s0f0np0", "enp1s0f1np1"), "RoCE")


def test_an_iwarp_card_is_neither(tmp_path: Path) -> None:
    files = adapter("irdma0", link_layer="Ethernet") | {"irdma0/node_type": "4: RNIC"}
    assert infiniband_ports(tree(tmp_path, files))[0].transport == "iWARP"


@pytest.mark.parametrize(
    ("state", "physical"),
    [("1: DOWN", "2: Polling"), ("1: DOWN", "3: Disabled"), ("2: INIT", "5: LinkUp"), ("EINVAL", "EINVAL")],
)
def test_the_rate_of_a_port_that_is_not_active_is_not_believed(
    tmp_path: Path, state: str, physical: str
) -> None:
    files = adapter("mlx5_0", state=state, phys_state=physical, rate="40 Gb/sec (4X QDR)")
    [port] = infiniband_ports(tree(tmp_path, files))
    assert port.rate is None
    assert port.state == (state.partition(": ")[2] or "UNKNOWN")
    assert port.physical == physical.partition(": ")[2]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2.5 Gb/sec (1X)", 2.5),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("800 Gb/sec (4X XDR)", 800.0),
        ("100 Gb/sec (4X EDR)", 100.0),
        ("EINVAL", None),
        ("", None),
        (". Gb/sec", None),
        ("unknown", None),
    ],
)
def test_rates_are_read_as_drivers_write_them(tmp_path: Path, text: str, rate: float | None) -> None:
    assert infiniband_ports(tree(tmp_path, adapter("mlx5_0", rate=text)))[0].rate == rate


def test_adapters_and_ports_are_in_order_and_a_sick_one_hides_no_other(tmp_path: Path) -> None:
    """hfi1 has no node_guid file of its own kind here, mlx4 has two ports, and one driver answers nothing at all."""
    files = adapter("mlx4_0", 2) | adapter("mlx4_0", 1) | {"hfi1_0/ports/1/state": ""}
    files |= {f"sick_0/ports/1/{name}": "EINVAL" for name in ("state", "rate", "link_layer", "gids/0")}
    files |= {"sick_0/node_guid": "EINVAL", "mlx4_0/ports/notes": "x", "no_ports/fw_ver": "1"}
    found = infiniband_ports(tree(tmp_path, files))
    assert [(one.device, one.port) for one in found] == [
        ("hfi1_0", 1),
        ("mlx4_0", 1),
        ("mlx4_0", 2),
        ("sick_0", 1),
    ]
    assert found[3] == HcaPort(device="sick_0", port=1, link_layer="Unknown", state="UNKNOWN")
    assert found[0].transport == ""


def test_a_machine_without_adapters_is_an_island_and_no_error(tmp_path: Path) -> None:
    assert infiniband_ports(tmp_path / "nowhere") == ()
    (tmp_path / "infiniband").mkdir()
    assert infiniband_ports(tmp_path / "infiniband") == ()


def test_files_that_would_block_or_never_end_do_not(tmp_path: Path) -> None:
    root = tree(tmp_path, adapter("mlx5_0"))
    guid = root / "mlx5_0" / "node_guid"
    guid.unlink()
    os.mkfifo(guid)
    layer = root / "mlx5_0" / "ports" / "1" / "link_layer"
    layer.unlink()
    layer.symlink_to("/dev/zero")
    [port] = infiniband_ports(root)
    assert (port.guid, port.link_layer, port.state) == ("", "Unknown", "ACTIVE")


def test_nine_adapters_with_full_tables_are_cheap_to_read(tmp_path: Path) -> None:
    """They are looked at every half minute: 0.3 % of a core are 90 ms of that."""
    files: dict[str, str] = {}
    for number in range(9):
        files |= adapter(f"mlx5_{number}")
        files |= {f"mlx5_{number}/ports/1/gids/{index}": ZERO for index in range(1, 256)}
    root = tree(tmp_path, files)
    begin = time.process_time()
    assert len(infiniband_ports(root)) == 9
    assert time.process_time() - begin < 0.5, "a generous bound: it takes some 20 ms"
