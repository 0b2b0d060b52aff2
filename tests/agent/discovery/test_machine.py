"""The network, the host, pretended nodes, and the probe for machines without an
agent."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

import llmgw
from llmgw.agent.discovery.gpus import GpuDiscovery
from llmgw.agent.discovery.host import host_facts
from llmgw.agent.discovery.network import interfaces, listening
from llmgw.agent.discovery.pretended import PretendedChecks
from llmgw.agent.discovery.survey import Survey
from llmgw.agent.settings import Layout, layout
from llmgw.agent.shards.checks import SystemChecks
from llmgw.model.facts import Facts, Gid, Gpu, HcaPort
from llmgw.model.manifest import PortRange
from llmgw.wire import codec
from llmgw.wire.setup import AgentSettings

PROBE = Path(llmgw.__file__).parent / "runtime" / "factprobe.py"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a0a:0001"


def test_loopback_is_an_interface_with_its_address() -> None:
    assert any("127.0.0.1" in one.addresses for one in interfaces())
    assert not any("%" in address for one in interfaces() for address in one.addresses)


def test_a_listener_within_the_range_is_seen_and_others_are_not() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert listening(PortRange(from_port=port, to_port=port)) == (port,)
        assert port not in listening(PortRange(from_port=1, to_port=port - 1))


def test_the_host_is_described(tmp_path: Path) -> None:
    facts = host_facts([tmp_path, tmp_path / "nowhere"])
    assert facts.kernel == os.uname().release
    assert facts.cpus == len(os.sched_getaffinity(0))
    assert [disk.path for disk in facts.disks] == [str(tmp_path)]
    assert facts.memory_total > 0


# ---- pretended nodes -------------------------------------------------------------------------------------

GPU = Gpu(uuid="GPU-1", index=0, name="H100", gpu_class="h100-80g", memory_total=80 * 2**30)
HCA = HcaPort(
    device="mlx5_0",
    port=1,
    link_layer="Ethernet",
    state="ACTIVE",
    gids=(Gid(index=3, gid=IPV4, gid_type="RoCE v2"),),
)


async def nobody(_: int) -> None:
    return None


def survey(folder: Path, *, pretends: bool) -> Survey:
    places: Layout = layout(folder, AgentSettings(node="n1"))
    gpus = GpuDiscovery(env={"PATH": "/nowhere"})
    return Survey(places=places, ports=PortRange(), gpus=gpus, owner=nobody, pretends=pretends)


def pretend(folder: Path, facts: Facts) -> None:
    (folder / "pretended.json").write_bytes(codec.dumps(facts))


def test_a_pretended_node_shows_what_its_file_says_and_the_rest_as_it_is(tmp_path: Path) -> None:
    pretend(tmp_path, Facts(gpus=(GPU,), hca_ports=(HCA,), cpus=128))
    look = survey(tmp_path, pretends=True)
    facts = asyncio.run(look.look())
    assert (facts.gpus, facts.hca_ports, facts.cpus) == ((GPU,), (HCA,), 128)
    assert (facts.gpu_source, facts.problems) == ("pretended", ())
    assert facts.memory_total == psutil.virtual_memory().total
    assert asyncio.run(look.sample()) == (GPU,)


def test_a_changed_file_is_seen_at_the_next_look(tmp_path: Path) -> None:
    pretend(tmp_path, Facts(gpus=(GPU,)))
    look = survey(tmp_path, pretends=True)
    assert asyncio.run(look.look()).gpus == (GPU,)
    pretend(tmp_path, Facts())
    assert asyncio.run(look.look()).gpus == ()


@pytest.mark.parametrize("text", ["{", '{"gpuz": []}', '{"gpus": [{"uuid": "GPU-1"}]}'])
def test_a_pretended_file_that_cannot_be_read_is_a_problem_and_shows_no_gpu(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "pretended.json").write_text(text)
    facts = asyncio.run(survey(tmp_path, pretends=True).look())
    assert facts.gpus == ()
    assert "pretended.json" in facts.problems[0]


def test_a_part_that_fails_is_a_problem_and_hides_no_other(tmp_path: Path) -> None:
    class Broken(GpuDiscovery):
        async def sample(self) -> None:  # type: ignore[override] # it never returns
            raise ZeroDivisionError("oops")

    places = layout(tmp_path, AgentSettings(node="n1"))
    look = Survey(places=places, ports=PortRange(), gpus=Broken(), owner=nobody)
    facts = asyncio.run(look.look())
    assert facts.problems == ("looking at GPUs: ZeroDivisionError: oops",)
    assert facts.hostname


def test_launches_on_a_pretended_node_see_its_adapters_addresses_and_memory(tmp_path: Path) -> None:
    text = {
        "memoryTotal": 2**41,
        "hcaPorts": [codec.to_json(HCA)],
        "interfaces": [{"name": "ib0", "addresses": ["10.9.0.1"]}],
    }
    (tmp_path / "pretended.json").write_text(json.dumps(text))

    async def main() -> None:
        checks = PretendedChecks(places=layout(tmp_path, AgentSettings(node="n1")), real=SystemChecks())
        assert {"10.9.0.1", "127.0.0.1"} <= await checks.addresses()
        assert await checks.gid("mlx5_0", 1, 3) == IPV4
        assert await checks.gid("mlx5_0", 1, 4) is None
        assert await checks.memory_total() == 2**41
        assert await checks.path_exists(str(tmp_path))
        assert await checks.port_free("127.0.0.1", 0)

    asyncio.run(main())


# ---- the probe -------------------------------------------------------------------------------------------


def probe(env: Mapping[str, str], *folders: str) -> Facts:
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-", *folders],
        input=PROBE.read_bytes(),
        capture_output=True,
        env=dict(env),
        timeout=60,
        check=True,
    )
    return codec.loads(Facts, ended.stdout, strict=True)


def test_the_probe_and_the_agent_see_the_same_machine(tmp_path: Path) -> None:
    probed = probe({"PATH": os.defpath}, str(tmp_path))
    told = asyncio.run(survey(tmp_path, pretends=False).look())
    for name in ("hostname", "boot_id", "arch", "libc", "os", "kernel", "cpus", "memory_total", "shm_total"):
        assert getattr(probed, name) == getattr(told, name), name
    assert probed.ephemeral_ports == told.ephemeral_ports
    assert {one.name for one in probed.interfaces} == {one.name for one in told.interfaces}
    assert [disk.path for disk in probed.disks] == [str(tmp_path)]


def test_the_probe_asks_nvidia_smi_and_tells_what_fails(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho '0, GPU-a, NVIDIA L40S, 46068, 0, 46000, 0:3B:00.0, 8.9, 590'\necho '1, [GPU is lost]'\n"
    )
    smi.chmod(0o755)
    facts = probe({"PATH": str(tmp_path)})
    assert [(gpu.uuid, gpu.gpu_class) for gpu in facts.gpus] == [("GPU-a", "l40s-45g")]
    assert (facts.gpu_source, facts.driver) == ("nvidia-smi", "590")
    assert "GPU is lost" in facts.problems[0]
    smi.write_text("#!/bin/sh\necho broken >&2\nexit 9\n")
    facts = probe({"PATH": str(tmp_path)})
    assert facts.problems == ("nvidia-smi ended with 9: broken",)


def test_the_probe_tells_the_disk_of_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    facts = probe({"PATH": os.defpath}, str(tmp_path / "a" / "b"))
    assert facts.disks[0].path == str(tmp_path / "a" / "b")
    assert facts.disks[0].total > 0
    assert list(tmp_path.iterdir()) == []
