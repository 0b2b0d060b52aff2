"""The page of one node: everything that it tells, in words a person can read."""

from datetime import datetime, timezone
from typing import Any

from llmgw.cli.nodes.page import page
from llmgw.cli.nodes.text import Line, as_json
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.facts import EngineFact, Facts, Gid, Gpu, GpuProcess, HcaPort, Interface
from llmgw.model.ids import ReplicaId, ShardId
from llmgw.model.report import AgentInfo, ComputesOn, NodeObservation, Reach, Report, ShardReport
from tests.core.builders import node

GIB = 1024**3
NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
SHARD = ShardId("chat-1f0c9a2b-0.1-r0")


def gpu(index: int, **changes: Any) -> Gpu:
    told: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "index": index,
        "name": "NVIDIA H100",
        "gpu_class": "h100-80g",
        "memory_total": 80 * GIB,
        "pci": f"0000:{index:02x}:00.0",
        "compute_capability": "9.0",
    }
    return Gpu(**{**told, **changes})


FACTS = Facts(
    hostname="gpu01",
    os="Debian",
    cpus=64,
    memory_total=512 * GIB,
    memory_available=400 * GIB,
    shm_total=256 * GIB,
    ephemeral_ports=(32768, 60999),
    driver="590.48.01",
    gpu_source="nvml",
    gpus=(
        gpu(
            0,
            memory_used=70 * GIB,
            nvlink_peers=("GPU-1",),
            topology=("X", "NV", "SYS"),
            ecc_aggregate=3,
            processes=(GpuProcess(pid=11, user="llmgw-engine", memory=70 * GIB, shard=SHARD),),
        ),
        gpu(1, nvlink_peers=("GPU-0",), topology=("NV", "X", "SYS"), notes=("its on-chip memory wears out",)),
        gpu(2, processes=(GpuProcess(pid=12, user="ann", command="python", memory=GIB),)),
        gpu(
            2, uuid="MIG-1", name="NVIDIA H100 MIG 1g.10gb", gpu_class="h100-mig-1g.10gb-10g", parent="GPU-2"
        ),
    ),
    hca_ports=(
        HcaPort(
            device="mlx5_bond_0",
            port=1,
            link_layer="Ethernet",
            state="ACTIVE",
            rate=200.0,
            transport="RoCE",
            netdev="bond0",
            bond=("eth0", "eth1"),
            gids=tuple(Gid(index=i, gid=f"::{i}", gid_type="RoCE v2", netdev="bond0") for i in range(6)),
        ),
        HcaPort(
            device="mlx5_1",
            port=1,
            link_layer="InfiniBand",
            state="DOWN",
            transport="InfiniBand",
            physical="Polling",
            port_guid="a0b0",
        ),
    ),
    interfaces=(Interface(name="eth0", addresses=("10.0.0.1",), speed=200_000),),
    engines=(
        EngineFact(name="vllm", version="0.33.0", digest="d", path="/e", flags=("--a", "--b")),
        EngineFact(name="llamacpp", version="", digest="", path="/opt/llama", flags_problem="it hangs"),
    ),
    listening=(18000,),
)


def shard(on: ComputesOn | None) -> ShardReport:
    return ShardReport(
        shard=SHARD,
        replica=ReplicaId("chat-1f0c9a2b-0.1"),
        rank=0,
        ranks=1,
        model="chat",
        profile="p",
        spec_digest="",
        state="ready",
        reason="",
        since=NOON,
        port=18000,
        claims=Claims(gpus=(GpuClaim(uuid="GPU-0"), GpuClaim(uuid="GPU-1", memory=12 * GIB))),
        computes_on=on,
    )


def seen(*, skew: float | None = 0.2, on: ComputesOn | None = None) -> NodeObservation:
    agent = AgentInfo(
        version="0.1.0",
        protocol="1.0",
        fleet="f",
        node="gpu01",
        boot_id="b",
        pid=7,
        started=NOON,
        user="root",
    )
    report = Report(agent=agent, at=NOON, facts=FACTS, shards=(shard(on),))
    return NodeObservation(node="gpu01", reach=Reach.OK, facts=FACTS, report=report, skew=skew)


LINE = Line(
    name="gpu01",
    pool="default",
    transport="ssh",
    address="10.0.0.1",
    reach="ok",
    agent="0.1.0",
    gpus=3,
    gpus_free=1,
    gpu_class="h100-80g",
    shards=1,
    cordoned=False,
    problems=("its clock is 61s ahead",),
)


def lines(observation: NodeObservation) -> list[str]:
    return page(node("gpu01"), observation, LINE).splitlines()


def test_the_page_tells_all_that_is_known() -> None:
    told = lines(seen(on=ComputesOn(gpus={"GPU-0": 70 * GIB})))
    wanted = [
        "  clock       right",
        "  memory      512.0 GiB, 400.0 GiB available, /dev/shm 256.0 GiB",
        "  driver      590.48.01 (by nvml)",
        "  ports       18000 to 18999; in use: 18000; the kernel gives 32768 to 60999 to outgoing connections",
        "  its clock is 61s ahead",
        "  0: NVIDIA H100 (h100-80g), 80.0 GiB, 70.0 GiB used, healthy, GPU-0",
        "     PCI 0000:00:00.0, compute capability 9.0, 3 uncorrectable memory errors in its life",
        "     NVLink to 1; SYS to 2",
        f"     claimed by {SHARD}",
        f"     held by pid 11 (shard {SHARD}): 70.0 GiB",
        "     note: its on-chip memory wears out",
        f"     claimed by {SHARD} (12.0 GiB)",
        "     held by pid 12 (user ann, python): 1.0 GiB",
        "    NVIDIA H100 MIG 1g.10gb (h100-mig-1g.10gb-10g), 80.0 GiB, healthy, MIG-1",
        "  mlx5_bond_0 port 1: RoCE, ACTIVE, 200 Gb/s, bond0 bonds eth0 and eth1",
        "     GID 3: ::3 (RoCE v2, bond0)",
        "     and 2 more GIDs: --json tells all",
        "  mlx5_1 port 1: InfiniBand, DOWN, physically Polling, GUID a0b0",
        "  eth0: 10.0.0.1, 200 Gb/s <- engines listen here",
        "  vllm 0.33.0  /e  2 flags known",
        "  llamacpp  /opt/llama  flags not known: it hangs",
        f"  {SHARD}: ready since 2030-01-01 12:00:00Z, port 18000, model chat, computes on GPU 0 with 70.0 GiB",
    ]
    assert [line for line in wanted if line not in told] == []


def test_a_clock_and_a_cpu_are_told_as_they_are() -> None:
    told = lines(seen(skew=-90.0, on=ComputesOn()))
    assert "  clock       1m 30s behind this one's" in told
    assert told[-1].endswith("model chat, computes on the CPU")
    unknown = lines(seen(skew=None))
    assert not any(line.startswith("  clock") for line in unknown)
    assert unknown[-1].endswith("model chat")


def test_json_has_the_clock_and_the_whole_of_the_facts() -> None:
    told = as_json(node("gpu01"), seen(skew=0.25), LINE)
    assert told["skew"] == 0.25
    assert len(told["facts"]["hcaPorts"][0]["gids"]) == 6
    assert told["facts"]["gpus"][0]["eccAggregate"] == 3
