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
from llmgw.agent.discovery.infiniband import infiniband_ports
from llmgw.agent.discovery.network import interfaces, listening
from llmgw.agent.discovery.pretended import PretendedChecks
from llmgw.agent.discovery.survey import Survey
from llmgw.agent.settings import Layout, layout
from llmgw.agent.shards.checks import SystemChecks
from llmgw.model.facts import Facts, Gid, Gpu, HcaPort
from llmgw.model.manifest import PortRange
from llmgw.model.struct import replace
from llmgw.wire import codec
from llmgw.wire.setup import AgentSettings
from tests.agent.discovery import smi
from tests.agent.discovery.test_infiniband import adapter, tree

PROBE = Path(llmgw.__file__).parent / "runtime" / "factprobe.py"
PID = os.getpid()
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


def test_a_disk_that_cannot_be_asked_is_a_problem_and_hides_no_other(tmp_path: Path) -> None:
    sick = tmp_path / ("x" * 300)  # refused as a dead mount is: it is not merely missing
    facts = host_facts([sick, tmp_path])
    assert [disk.path for disk in facts.disks] == [str(tmp_path)]
    assert facts.problems == (
        f"looking at the disk of {sick}: File name too long: is what is mounted there alive?",
    )


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
    lost = "Unable to determine the device handle for GPU1: 0000:34:00.0: GPU is lost."
    answers = {" -q -x": smi.report(smi.gpu(name="NVIDIA L40S", memory=("46068 MiB", "0 MiB", "46000 MiB")))}
    facts = probe(smi.program(tmp_path, answers, err=lost, code=2))
    assert [(gpu.uuid, gpu.gpu_class) for gpu in facts.gpus] == [("GPU-aaaa", "l40s-45g")]
    assert (facts.gpu_source, facts.driver) == ("nvidia-smi", "590.48.01")
    assert facts.problems == (f"nvidia-smi: {lost}",)
    facts = probe(smi.program(tmp_path, {" -q -x": ""}, err="broken", code=9))
    assert facts.problems == ("nvidia-smi ended with 9: broken",)
    facts = probe(smi.program(tmp_path, {" -q -x": '<?xml ?><!ENTITY a "b"></nvidia_smi_log>'}))
    assert facts.problems == ("asking for GPUs by nvidia-smi: its report defines entities",)


SICK = smi.gpu(
    uuid="GPU-bbbb",
    bus="00000000:3B:00.0",
    ecc=f"{smi.NEW_ECC}<unrepairable_memory>Yes</unrepairable_memory><tpc_repair_pending>Yes</tpc_repair_pending>",
    volatile="3",
    aggregate="9",
    rows="<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>Yes</remapped_row_failure>",
    more="<retired_pages><pending_retirement>Yes</pending_retirement></retired_pages>"
    "<gpu_recovery_action>Drain and Reset</gpu_recovery_action>",
)
SPLIT = smi.gpu(
    bus="00000000:19:00.0",
    mode=("Enabled", "Enabled"),
    mig=smi.instance(0, 2, 40448) + smi.instance(1, 9, 9984),
    processes=smi.process(PID, "11000 MiB", "2") + smi.process(PID + 1, "3 MiB", "9"),
)
LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
  MIG 3g.40gb     Device  0: (UUID: MIG-1)
  MIG 1g.10gb     Device  1: (UUID: MIG-2)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
"""


@pytest.mark.parametrize(
    "told",
    {
        "split-and-sick": (SPLIT, SICK),
        "instances-unnamed": (SPLIT.replace("GPU-aaaa", "GPU-cccc"),),
        "no-instances": (smi.gpu(mode=("Enabled", "Enabled")),),
        "lost": (smi.gpu(volatile=smi.LOST, memory=(smi.LOST,) * 3),),
        "to-be-reset": (smi.gpu(name=smi.RESET),),
        "odd-cells": (smi.gpu(memory=("81559 MiB", "[Unknown Error]", "ERR!"), rows="N/A", ecc="N/A"),),
        "held": (smi.gpu(processes=smi.process(PID, "500 MiB") + smi.process(PID, "20 MiB", kind="G")),),
        "its-own-is-the-hosts": (smi.gpu(name="NVIDIA GB10", memory=("[N/A]",) * 3),),
    }.values(),
)
def test_the_probe_and_the_agent_judge_gpus_alike(tmp_path: Path, told: tuple[str, ...]) -> None:
    """They can't share code: the probe runs by itself on machines without anything of ours."""
    answers = {" -q -x": smi.report(*told), "compute_cap": "0, GPU-aaaa, 9.0\n", " -L": LISTING}
    env = smi.program(tmp_path, answers)
    probed = probe(env)
    sample = asyncio.run(GpuDiscovery(env=env, host_memory=host_memory).sample())
    assert sample.source == "nvidia-smi"
    assert [comparable(gpu) for gpu in probed.gpus] == [comparable(gpu) for gpu in sample.gpus]
    assert (probed.driver, bool(probed.gpus)) == (sample.driver, True)


def host_memory() -> tuple[int, int]:
    return psutil.virtual_memory().total, 0


def comparable(gpu: Gpu) -> Gpu:
    """Without what the probe does not tell, what changes between two looks, and reasons in brackets."""
    health = tuple(sorted(reason.partition(" (")[0] for reason in gpu.health if "MIG" not in reason))
    mig = tuple(reason for reason in gpu.health if "MIG" in reason)
    free = None if "GB10" in gpu.name else gpu.memory_free
    return replace(gpu, health=(*health, *mig), notes=(), nvlink_peers=(), topology=(), memory_free=free)


def test_the_probe_counts_what_an_agent_left_running_as_its_own(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"], env={"LLMGW_SHARD": "chat-1-r0", "PATH": os.defpath})
    try:
        told = smi.gpu(processes=smi.process(sleeper.pid, "500 MiB") + smi.process(PID, "20 MiB"))
        [gpu] = probe(smi.program(tmp_path, {" -q -x": smi.report(told)})).gpus
    finally:
        sleeper.kill()
        sleeper.wait()
    assert {one.pid: one.shard for one in gpu.processes} == {sleeper.pid: "chat-1-r0", PID: None}


def test_the_probe_sees_listeners_and_all_addresses_of_an_interface(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        facts = probe({"PATH": os.defpath}, f"--ports={port}-{port}", str(tmp_path))
    assert facts.listening == (port,)
    told = {one.name: set(one.addresses) for one in interfaces()}
    assert {one.name: set(one.addresses) for one in facts.interfaces} == told


def test_the_probe_and_the_agent_see_the_same_adapters(tmp_path: Path) -> None:
    root = tree(tmp_path / "infiniband", adapter("mlx5_0"))
    tree(root, adapter("mlx5_1", state="1: DOWN", rate="10 Gb/sec (1X QDR)"))
    roce = {
        "link_layer": "Ethernet",
        "gids__3": IPV4,
        "gid_attrs__types__3": "RoCE v2",
        "gid_attrs__ndevs__3": "bond0",
        "gids__5": "EINVAL",
    }
    tree(root, adapter("mlx5_bond_0", 1, **roce))
    tree(tmp_path / "net", {"bond0/bonding/slaves": "eth1 eth0"})
    probed = probe({"PATH": os.defpath}, f"--sysfs={root}", str(tmp_path))
    assert probed.hca_ports == infiniband_ports(root)
    assert [(one.transport, one.bond) for one in probed.hca_ports] == [
        ("InfiniBand", ()),
        ("InfiniBand", ()),
        ("RoCE", ("eth0", "eth1")),
    ]


def test_the_probe_tells_the_disk_of_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    facts = probe({"PATH": os.defpath}, str(tmp_path / "a" / "b"))
    assert facts.disks[0].path == str(tmp_path / "a" / "b")
    assert facts.disks[0].total > 0
    assert list(tmp_path.iterdir()) == []
