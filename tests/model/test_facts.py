"""What of a node's facts is recorded, and what a pretended node shows."""

from llmgw.model.facts import Disk, EngineFact, Facts, Gpu, GpuProcess, HcaPort
from llmgw.model.struct import replace

GIB = 1024**3
GPU = Gpu(uuid="GPU-1", index=0, name="H100", gpu_class="h100-80g", memory_total=80 * GIB)
VLLM = EngineFact(name="vllm", version="0.33.0", digest="d", path="/e", flags=("--max-model-len",))


def test_only_what_stays_is_recorded() -> None:
    """The record is rewritten whenever this changes: amounts and counters would do so every minute."""
    held = GpuProcess(pid=11, user="ann", memory=GIB)
    one = Facts(
        gpus=(
            Gpu(
                uuid="GPU-1",
                index=0,
                name="H100",
                gpu_class="h100-80g",
                memory_total=80 * GIB,
                memory_used=GIB,
                memory_free=79 * GIB,
                ecc_aggregate=4,
                notes=("odd",),
                processes=(held,),
            ),
        ),
        memory_available=GIB,
        listening=(18000,),
        disks=(Disk(path="/", total=9, free=4),),
    )
    other = Facts(gpus=(GPU,), memory_available=2 * GIB, disks=(Disk(path="/", total=9, free=5),))
    assert one.stable() == other.stable()


def test_what_an_engine_understands_is_recorded_with_it() -> None:
    """Offline plans check a profile's flags against it."""
    assert Facts(engines=(VLLM,)).stable().engines == (VLLM,)


def test_a_sick_gpu_stays_sick_in_the_record() -> None:
    sick = Facts(gpus=(replace(GPU, health=("lost",)),))
    assert sick.stable().gpus[0].health == ("lost",)
    assert sick.stable() != Facts(gpus=(GPU,)).stable()


def test_a_pretended_node_on_a_gpu_machine_never_claims_a_real_one() -> None:
    real = Facts(
        gpus=(GPU,), hca_ports=(HcaPort(device="m", port=1, link_layer="Ethernet", state="UP"),), cpus=8
    )
    shown = real.pretending(Facts(cpus=64))
    assert (shown.gpus, shown.hca_ports, shown.cpus, shown.gpu_source) == ((), (), 64, "pretended")
