"""A replica over two bare machines that share a RoCE network: from their GID tables, as drivers write them, to what the
processes of its ranks hold. GPUs and adapters are pretended below the agent: by a program, and by a tree in place of sysfs."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.agent.discovery import smi
from tests.agent.discovery.test_infiniband import LINK_LOCAL, ZERO
from tests.core.fabric.nodes import mapped
from tests.e2e.sshroad import SshRoad, engines
from tests.rig.host import Host
from tests.rig.rig import Rig, require_rig

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.long("two machines are made from nothing, twice over; the parts are tested by themselves"),
]

PORT = "/sys/class/infiniband/mlx5_0/ports/1"


def give_gpu(host: Host) -> None:
    uuid = f"GPU-{host.name}"
    report = smi.report(smi.gpu(uuid=uuid))
    host.write("/usr/local/share/report.xml", report)
    table = f"echo '0, {uuid}, 9.0'"
    host.fake(
        "nvidia-smi",
        f"#!/bin/sh\ncase \"$*\" in '-q -x') cat /usr/local/share/report.xml;; *compute_cap*) {table};; *) exit 2;; esac\n",
    )


def give_adapter(host: Host, index: int) -> None:
    """A RoCE port of eth0 whose RoCE v2 entry with the host's own address stands at ``index``."""
    host.must(
        "sh",
        "-c",
        "mountpoint -q /sys/class || mount -t tmpfs tmpfs /sys/class; rm -rf /sys/class/infiniband",
    )
    entries = {0: (LINK_LOCAL, "IB/RoCE v1"), 1: (LINK_LOCAL, "RoCE v2")}
    entries |= {index - 1: (mapped(host.address), "IB/RoCE v1"), index: (mapped(host.address), "RoCE v2")}
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "200 Gb/sec (2X NDR)",
        "link_layer": "Ethernet",
    }
    for number in range(index + 1):
        gid, kind = entries.get(number, (ZERO, ""))
        files |= {
            f"gids/{number}": gid,
            f"gid_attrs/types/{number}": kind,
            f"gid_attrs/ndevs/{number}": "eth0",
        }
    for name, text in files.items():
        host.write(f"{PORT}/{name}", f"{text}\n")


def label(road: SshRoad, host: Host, *hcas: str) -> None:
    file = road.manifests / f"node-{host.name}.yaml"
    document = json.loads(file.read_text())
    document["spec"]["fabrics"] = [{"name": "roce-a", "hcas": list(hcas)}]
    file.write_text(json.dumps(document))


def environment(host: Host) -> dict[str, str]:
    (pid,) = engines(host, "chat")
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_ranks_over_two_machines_are_told_of_their_own_adapters(tmp_path: Path) -> None:
    require_rig("that the ranks of a replica use the network that their machines share")
    with Rig(tmp_path, hosts=2) as rig:
        first, second = rig.hosts
        for host, index in ((first, 3), (second, 5)):
            give_gpu(host)
            give_adapter(host, index)
        road = SshRoad(rig, tmp_path / "road")
        label(road, first, "mlx5_0")
        label(road, second, "mlx5_7")
        road.write_profile(
            nodes=2, gpus={"perNode": 1}, fabric="required", restart={"backoff": "1s", "maxBackoff": "2s"}
        )
        road.write_model("chat", replicas=1)
        road.commit("Serve chat on two machines, with a wrong label")
        road.llmgw("apply", "--yes", "--no-wait", expect=5)
        refused = road.llmgw("plan")
        assert "fabric roce-a: mlx5_7 is missing: there is mlx5_0" in refused
        assert "it needs 2 nodes at once that share a fabric (fabric: required)" in refused

        label(road, second, "mlx5_0")
        road.commit("Correct the label")
        told = road.llmgw("plan", "--show-commands")
        assert "they share the fabric roce-a, RoCE: 1 port of 200 Gb/s" in told
        road.llmgw("apply", "--yes")
        for host, entry in ((first, "3"), (second, "5")):
            env = environment(host)
            assert (env["NCCL_IB_HCA"], env["NCCL_IB_GID_INDEX"]) == ("=mlx5_0:1", entry), host.name
            assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")

        # The driver was loaded anew and filled the table in another order: the old index is never used again.
        give_adapter(second, 7)
        (pid,) = engines(second, "chat")
        os.kill(pid, signal.SIGKILL)
        road.llmgw("apply", "--yes")
        assert environment(second)["NCCL_IB_GID_INDEX"] == "7"
        road.close()
