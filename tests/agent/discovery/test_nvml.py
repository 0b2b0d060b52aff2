"""The real binding of NVML over a fake library: what drivers tell, refuse, and do when they are in trouble."""

import time
from pathlib import Path

import pytest

from llmgw.model.facts import GpuProcess
from llmgw.model.struct import replace
from tests.agent.discovery import smi
from tests.agent.discovery.nvml import HOST, Machine, build, h100

GIB = 1024**3
MIB = 1024**2
UPGRADED = (
    "asking for GPUs by nvml: the driver in the kernel and its libraries are of different versions, as after an upgrade:"
    " reboot the node"
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    return Machine.at(tmp_path, library)


def test_a_gpu_is_told_whole(machine: Machine) -> None:
    machine.tell(
        {"0": h100(reserved="500000000", ecc_uncorrected_aggregate="7", processes="4242:1073741824 4243:-")}
    )
    found = machine.sample()
    assert (found.source, found.driver, found.problems) == ("nvml", "590.48.01", ())
    [gpu] = found.gpus
    assert (gpu.uuid, gpu.index, gpu.name) == ("GPU-aaaa", 0, "NVIDIA H100 80GB HBM3")
    assert (gpu.gpu_class, gpu.pci, gpu.compute_capability) == ("h100-80g", "0000:19:00.0", "9.0")
    assert (gpu.memory_total, gpu.memory_free) == (85520809984, 85000000000)
    assert gpu.memory_used == 20809984, "what the driver keeps for itself is used by nobody"
    assert (gpu.ecc_volatile, gpu.ecc_aggregate) == (0, 7)
    assert (gpu.health, gpu.notes) == ((), ())
    assert gpu.processes == (
        GpuProcess(pid=4242, user="?", memory=GIB),
        GpuProcess(pid=4243, user="?", memory=None),
    )


def test_an_l40s_that_reports_a_little_less_is_of_class_l40s_45g(machine: Machine) -> None:
    total = int(44.99 * GIB)
    machine.tell({"0": h100(name="NVIDIA L40S", memory=f"{total} {total} 0")})
    assert machine.sample().gpus[0].gpu_class == "l40s-45g"


def test_a_process_that_computes_and_draws_or_computes_through_mps_is_told_once(machine: Machine) -> None:
    machine.tell({"0": h100(processes="11:100 12:-", graphics="11:300 12:5", mps="13:7")})
    held = {one.pid: one.memory for one in machine.sample().gpus[0].processes}
    assert held == {11: 300, 12: 5, 13: 7}


def test_processes_have_their_users_and_commands(machine: Machine) -> None:
    import os  # noqa: PLC0415 - only this test asks who it is
    import pwd  # noqa: PLC0415 - same

    machine.tell({"0": h100(processes=f"{os.getpid()}:5")})
    [process] = machine.sample().gpus[0].processes
    assert process.user == pwd.getpwuid(os.getuid()).pw_name
    assert process.command


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"ecc_uncorrected_volatile": "3"}, "3 uncorrectable memory errors since the driver was loaded"),
        ({"remapped_rows": "0 1 1 0"}, "broken memory rows wait for a reset of the GPU to be remapped"),
        ({"remapped_rows": "0 1 0 1"}, "remapping of broken memory rows failed"),
        ({"pages_pending": "1"}, "broken memory pages wait for a reset of the GPU to be retired"),
        ({"repairs": "0 1"}, "a repair of its hardware waits for a reset of the GPU"),
        ({"unrepairable": "1"}, "its memory can't be repaired any more: have it replaced"),
        ({"field230": "1"}, "the driver asks for this: reset the GPU"),
        ({"field230": "2"}, "the driver asks for this: reboot the node"),
        ({"field230": "99"}, "the driver asks for this: recovery action 99"),
        ({"memory": "!3"}, "the driver does not tell its memory (Not Supported)"),
        ({"memory": "!999"}, "the driver does not tell its memory (Unknown Error)"),
        ({"memory": "0 0 0"}, "the driver does not tell its memory"),
        ({"capability": "!16"}, "the GPU must be reset before it can be used"),
        ({"capability": "!15"}, "the GPU is lost: the driver can't reach it"),
        ({"mig_mode": "1 1"}, "MIG is on and it has no instances, so nothing can be computed on it"),
    ],
)
def test_each_reason_not_to_use_a_gpu_is_told(machine: Machine, changed: dict[str, str], reason: str) -> None:
    machine.tell({"0": h100(0, **changed), "1": h100(1)})
    sick, well = machine.sample().gpus
    assert sick.health == (reason,)
    assert well.health == ()


def test_errors_of_an_earlier_life_and_rows_that_were_remapped_are_no_reason(machine: Machine) -> None:
    machine.tell(
        {"0": h100(ecc_uncorrected_aggregate="12", remapped_rows="3 2 0 0", field230="0", repairs="0 0")}
    )
    [gpu] = machine.sample().gpus
    assert (gpu.health, gpu.ecc_aggregate) == ((), 12)


def test_on_chip_memory_that_wears_out_is_noted_while_the_gpu_still_works(machine: Machine) -> None:
    machine.tell({"0": h100(sram_exceeded="1", unrepairable="0")})
    [gpu] = machine.sample().gpus
    assert gpu.health == ()
    assert gpu.notes == (
        "its on-chip memory has had more uncorrectable errors than its maker allows: plan to replace it",
    )


def test_what_cannot_be_read_is_never_a_zero(machine: Machine) -> None:
    bare = {
        "name": "NVIDIA GeForce RTX 4090",
        "uuid": "GPU-aaaa",
        "memory": "25757220864 25000000000 757220864",
    }
    machine.tell({"0": {**bare, "ecc_uncorrected_volatile": "!999", "remapped_rows": "!4"}})
    [gpu] = machine.sample().gpus
    assert (gpu.ecc_volatile, gpu.ecc_aggregate, gpu.health) == (None, None, ())
    assert (gpu.pci, gpu.compute_capability, gpu.topology) == ("", "", ())
    assert gpu.notes == ("the driver does not tell its remapped rows: Insufficient Permissions",)


def test_a_name_that_is_no_text_hides_nothing_else(machine: Machine) -> None:
    machine.tell({"0": h100()})
    machine.file.write_bytes(machine.file.read_bytes().replace(b"NVIDIA H100", b"NVIDIA \xff\xfe"))
    [gpu] = machine.sample().gpus
    assert (gpu.name, gpu.gpu_class, gpu.health) == ("", "gpu-80g", ())
    assert "does not tell its name" in gpu.notes[0]


# ---- Several ------------------------------------------------------------------------------------------------


def test_who_reaches_whom_by_nvlink_and_how_near_the_others_are(machine: Machine) -> None:
    machine.tell(
        {
            "0": h100(0, nvlink="1", near2="30", near3="50"),
            "1": h100(1, nvlink="0", near2="30", near3="50"),
            "2": h100(2, nvlink="-", near0="30", near1="30", near3="20"),
            "3": h100(3, near0="50", near1="50"),
        }
    )
    gpus = machine.sample().gpus
    assert [gpu.nvlink_peers for gpu in gpus] == [("GPU-bbbb",), ("GPU-aaaa",), (), ()]
    assert gpus[0].topology == ("X", "NV", "PHB", "SYS")
    assert gpus[2].topology == ("PHB", "PHB", "X", "PXB")
    assert gpus[3].topology == ("SYS", "SYS", "", "X"), "what one pair does not tell leaves the others"
    assert all(not gpu.notes for gpu in gpus)


def test_mig_instances_are_devices_of_their_own_with_their_gpu_named(machine: Machine) -> None:
    part = {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "memory": f"{9984 * MIB} {9976 * MIB} {8 * MIB}"}
    machine.tell(
        {
            "0": h100(0, mig_mode="1 1", processes="7:300 8:500 9:1"),
            "0.0": {**part, "uuid": "MIG-0", "processes": "7:300"},
            "0.2": {**part, "uuid": "MIG-2", "processes": "8:500"},
            "1": h100(1, mig_mode="0 1"),
        }
    )
    whole, first, second, other = machine.sample().gpus
    assert (whole.uuid, whole.parent, whole.health) == ("GPU-aaaa", None, ())
    assert (first.uuid, first.parent, first.gpu_class) == ("MIG-0", "GPU-aaaa", "h100-mig-1g.10gb-10g")
    assert (first.index, first.pci, first.compute_capability) == (0, "0000:19:00.0", "9.0")
    assert (first.memory_total, first.health) == (9984 * MIB, ())
    assert [[one.pid for one in gpu.processes] for gpu in (whole, first, second)] == [[9], [7], [8]]
    assert (other.parent, other.notes) == (None, ("MIG will be switched with the next reset of the GPU",))


def test_a_mig_instance_without_a_uuid_cannot_be_used_and_is_counted(machine: Machine) -> None:
    instance = {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "memory": f"{10 * GIB} {10 * GIB} 0"}
    machine.tell({"0": h100(mig_mode="1 1"), "0.0": {**instance, "uuid": "!999"}})
    [gpu] = machine.sample().gpus
    assert gpu.health == ("MIG is on and the driver names none of its instances (1), so none can be used",)


def test_what_is_wrong_with_a_gpu_is_wrong_with_its_instances(machine: Machine) -> None:
    """In a container the whole GPU's memory is told to nobody, which is nothing wrong."""
    part = {"name": "MIG 1g.10gb", "uuid": "MIG-0", "memory": f"{9984 * MIB} {9976 * MIB} {8 * MIB}"}
    machine.tell({"0": h100(mig_mode="1 1", memory="!4"), "0.0": part})
    assert machine.sample().gpus[1].health == ()
    machine.tell({"0": h100(mig_mode="1 1", remapped_rows="0 0 0 1"), "0.0": part})
    assert machine.sample().gpus[1].health == ("its GPU: remapping of broken memory rows failed",)


def test_a_gpu_that_shares_the_hosts_memory_has_the_hosts_memory(machine: Machine) -> None:
    keys = {"name": "NVIDIA GB10", "uuid": "GPU-aaaa", "pci": "0000000F:01:00.0", "capability": "12 1"}
    machine.tell({"0": {**keys, "processes": f"4711:{3 * GIB}", "graphics": f"4711:{3 * GIB}"}})
    [gpu] = machine.sample().gpus
    assert (gpu.memory_total, gpu.memory_used, gpu.memory_free) == (HOST[0], 3 * GIB, HOST[1])
    assert (gpu.gpu_class, gpu.pci, gpu.health) == ("gb10-512g", "000f:01:00.0", ())
    assert gpu.notes == ("it has no memory of its own: it shares the host's",)


def test_only_gpus_known_to_share_the_hosts_memory_are_believed_to(machine: Machine) -> None:
    machine.tell({"0": {"name": "NVIDIA H100", "uuid": "GPU-aaaa"}})
    [gpu] = machine.sample().gpus
    assert gpu.memory_total == 0
    assert gpu.health == ("the driver does not tell its memory (Not Supported)",)


# ---- Trouble ------------------------------------------------------------------------------------------------


def test_a_gpu_that_was_never_seen_well_is_a_problem_and_the_others_are_told(machine: Machine) -> None:
    machine.tell({"0": h100(handle="!15"), "1": h100(1), "2": h100(2, uuid="!999")})
    found = machine.sample()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-bbbb"]
    assert found.problems == (
        "GPU 0: the GPU is lost: the driver can't reach it",
        "GPU 2 at 0000:1b:00.0: UUID: Unknown Error",
    )


@pytest.mark.parametrize("trouble", [{"handle": "!15"}, {"lost": "!15"}, {"lasts": "0"}])
def test_a_gpu_that_is_lost_stays_on_show_as_lost(machine: Machine, trouble: dict[str, str]) -> None:
    machine.tell({"0": h100(0, processes="7:300"), "1": h100(1)})
    before = machine.sample()
    machine.tell({"0": h100(0, **trouble), "1": h100(1)})
    found = machine.sample()
    lost = replace(before.gpus[0], health=("the GPU is lost: the driver can't reach it",), processes=())
    assert found.gpus == (lost, replace(before.gpus[1], topology=("", "X")))
    assert found.problems == ()
    machine.tell({"0": h100(0), "1": h100(1)})
    assert [gpu.health for gpu in machine.sample().gpus] == [(), ()]


def test_a_gpu_that_vanishes_between_calls_is_lost_and_its_neighbour_is_not(machine: Machine) -> None:
    for lasts in (1, 3, 6, 9):
        machine.tell({"0": h100(0, lasts=str(lasts)), "1": h100(1)})
        found = machine.sample()
        assert [gpu.health for gpu in found.gpus if gpu.uuid == "GPU-bbbb"] == [()]
        sick = [gpu.health for gpu in found.gpus if gpu.uuid == "GPU-aaaa"]
        assert sick[0][0] == "the GPU is lost: the driver can't reach it"


def test_a_driver_and_library_that_do_not_match_are_told(machine: Machine) -> None:
    machine.tell({"0": h100()}, init="!18")
    found = machine.sample()
    assert (found.gpus, found.source) == ((), "none")
    assert found.problems == (UPGRADED,)


def test_gpus_that_were_there_are_shown_when_their_driver_falls_silent(machine: Machine) -> None:
    """Otherwise an upgrade of the driver under running engines would look like an empty machine."""
    machine.tell({"0": h100(processes="7:300")})
    before = machine.sample()
    machine.tell({"0": h100()}, init="!18")
    found = machine.sample()
    why = f"it can't be asked any more: {UPGRADED}"
    assert found.gpus == (replace(before.gpus[0], health=(why,)),)
    assert found.problems == (UPGRADED,)
    machine.file.unlink()
    assert machine.sample().gpus[0].health == ("it can't be asked any more: its driver is no longer there",)
    machine.tell({"0": h100(processes="7:300")})
    assert machine.sample() == before


@pytest.mark.parametrize("call", ["memory", "processes", "remapped_rows", "handle"])
def test_a_call_that_hangs_ends_with_the_deadline(tmp_path: Path, library: Path, call: str) -> None:
    machine = Machine.at(tmp_path, library, deadline=1.0)
    machine.tell({"0": h100(0, **{call: "!hang"})})
    begin = time.monotonic()
    found = machine.sample()
    assert time.monotonic() - begin < 10
    assert found.gpus == ()
    assert "gave no answer within 1 s" in found.problems[0]


def test_symbols_that_an_old_driver_lacks_are_missed_by_nobody(tmp_path: Path) -> None:
    machine = Machine.at(tmp_path, build(tmp_path / "old", "-DOLD_DRIVER"))
    machine.tell({"0": h100(0, near1="20", processes="7:300"), "1": h100(1, near0="20")})
    found = machine.sample()
    assert (found.problems, [gpu.health for gpu in found.gpus]) == ((), [(), ()])
    assert [gpu.notes for gpu in found.gpus] == [(), ()]
    assert (found.gpus[0].memory_used, found.gpus[0].topology) == (520809984, ("X", "PXB"))
    assert [one.pid for one in found.gpus[0].processes] == [7]


def test_a_machine_whose_driver_is_not_loaded_has_no_gpus_and_no_problem(machine: Machine) -> None:
    found = machine.sample()
    assert (found.gpus, found.source, found.problems) == ((), "none", ())


def test_a_library_that_is_none_is_a_machine_without_gpus(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    found = Machine.at(tmp_path, tmp_path).sample()
    assert (found.gpus, found.source, found.problems) == ((), "none", ())


def test_why_nvidia_smi_was_asked_instead_is_told(machine: Machine, tmp_path: Path) -> None:
    answers = {" -q -x": smi.report(smi.gpu())}
    machine.discovery.env = {**machine.discovery.env, **smi.program(tmp_path, answers)}
    machine.tell({"0": h100()}, init="!999")
    found = machine.sample()
    assert (found.source, len(found.gpus), found.gpus[0].health) == ("nvidia-smi", 1, ())
    assert len(found.problems) == 1
    assert found.problems[0].startswith("asking for GPUs by nvml: ")
    machine.tell({"0": h100()})
    assert (machine.sample().source, machine.sample().problems) == ("nvml", ())
