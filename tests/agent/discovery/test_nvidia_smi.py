"""What nvidia-smi tells, in the words of its schemas and with all their odd values."""

import asyncio
from pathlib import Path

import pytest

from llmgw.agent.discovery import health
from llmgw.agent.discovery.commands import AskError
from llmgw.agent.discovery.gpus import GpuDiscovery, GpuSample
from llmgw.agent.discovery.nvidia_smi import Beside, read
from llmgw.agent.discovery.readings import Held, Reading
from tests.agent.discovery import smi

MIB = 1024**2
TABLE = "0, GPU-aaaa, 9.0\n1, GPU-bbbb, 8.9\n"
L40S = smi.gpu("GPU-bbbb", "00000000:3B:00.0", "NVIDIA L40S", ("46068 MiB", "0 MiB", "45596 MiB"))


def one(*, schema: int = 12, **changed: object) -> Reading:
    gpu = smi.gpu(**changed)  # type: ignore[arg-type] # each test changes one
    [reading] = read(smi.report(gpu, schema=schema), Beside(table=TABLE)).gpus
    return reading


def discover(env: dict[str, str], times: int = 1) -> GpuSample:
    discovery = GpuDiscovery(env=env, deadline=10.0, host_memory=lambda: (2**37, 2**36))

    async def main() -> GpuSample:
        found = GpuSample()
        for _ in range(times):
            found = await discovery.sample()
        return found

    return asyncio.run(main())


def test_without_nvml_nvidia_smi_tells_the_gpus(tmp_path: Path) -> None:
    running = smi.process(4711, "412 MiB") + smi.process(4712, "N/A") + smi.process(4711, "12 MiB", kind="G")
    matrix = "\t\x1b[4mGPU0\tGPU1\tmlx5_0\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\tPIX\t0-19\nGPU1\tNV18\t X \tSYS\t0-19\n"
    answers = {
        " -q -x": smi.report(smi.gpu(processes=running), L40S),
        "compute_cap": TABLE,
        " topo -m": matrix,
    }
    found = discover(smi.program(tmp_path, answers))
    assert (found.source, found.driver, found.problems) == ("nvidia-smi", "590.48.01", ())
    first, second = found.gpus
    assert [gpu.gpu_class for gpu in found.gpus] == ["h100-80g", "l40s-45g"]
    assert (first.memory_total, first.memory_used, first.memory_free) == (81559 * MIB, 479 * MIB, 81022 * MIB)
    assert (first.pci, first.compute_capability, second.compute_capability) == ("0000:19:00.0", "9.0", "8.9")
    assert [(held.pid, held.memory) for held in first.processes] == [(4711, 412 * MIB), (4712, None)]
    assert (first.nvlink_peers, first.topology[:2], second.topology[:2]) == (
        ("GPU-bbbb",),
        ("X", "NV18"),
        ("NV18", "X"),
    )
    assert (first.ecc_volatile, first.health, first.notes) == (0, (), ())


@pytest.mark.parametrize(
    ("schema", "ecc"), [(11, smi.OLD_ECC), (11, smi.ECC), (12, smi.ECC), (13, smi.NEW_ECC)]
)
def test_uncorrected_errors_are_counted_in_every_schema(schema: int, ecc: str) -> None:
    found = one(schema=schema, ecc=ecc, volatile="3", aggregate="5")
    assert (found.ecc_volatile, found.ecc_aggregate) == (3, 5)
    silent = one(schema=schema, ecc=ecc.replace(">0<", ">N/A<"), volatile="N/A", aggregate="[N/A]")
    assert (silent.ecc_volatile, silent.ecc_aggregate) == (None, None)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"volatile": "3"}, "3 uncorrectable memory errors since the driver was loaded"),
        (
            {"rows": "<remapped_row_pending>Yes</remapped_row_pending>"},
            "broken memory rows wait for a reset of the GPU to be remapped",
        ),
        (
            {"rows": "<remapped_row_failure>Yes</remapped_row_failure>"},
            "remapping of broken memory rows failed",
        ),
        (
            {"more": "<retired_pages><pending_blacklist>Yes</pending_blacklist></retired_pages>"},
            "broken memory pages wait for a reset of the GPU to be retired",
        ),
        (
            {"more": "<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>"},
            "the driver asks for this: reset the GPU",
        ),
        (
            {"more": "<gpu_recovery_action>Drain and Reset</gpu_recovery_action>"},
            "the driver asks for this: drain and reset",
        ),
        ({"memory": ("[N/A]",) * 3}, "the driver does not tell its memory (N/A)"),
        ({"memory": ("Not Supported",) * 3}, "the driver does not tell its memory (Not Supported)"),
        ({"memory": ("",) * 3}, "the driver does not tell its memory (N/A)"),
        (
            {"ecc": f"{smi.ECC}<unrepairable_memory>Yes</unrepairable_memory>"},
            "its memory can't be repaired any more: have it replaced",
        ),
        (
            {"memory": ("81559 MiB", "[Unknown Error]", "ERR!")},
            "the driver does not tell how much of its memory is used",
        ),
        ({"name": smi.RESET}, "the GPU must be reset before it can be used"),
        ({"volatile": smi.LOST, "memory": (smi.LOST,) * 3}, "the GPU is lost: the driver can't reach it"),
        (
            {"mode": ("Enabled", "Enabled")},
            "MIG is on and it has no instances, so nothing can be computed on it",
        ),
    ],
)
def test_each_reason_not_to_use_a_gpu_is_told(tmp_path: Path, changed: dict[str, str], reason: str) -> None:
    answers = {" -q -x": smi.report(smi.gpu(**changed), L40S)}  # type: ignore[arg-type] # one at a time
    sick, well = discover(smi.program(tmp_path, answers)).gpus
    assert sick.health[0] == reason
    assert well.health == ()


@pytest.mark.parametrize("rows", ["N/A", "", "[N/A]", "<remapped_row_pending>N/A</remapped_row_pending>"])
def test_rows_that_are_not_told_are_not_in_order(rows: str) -> None:
    found = one(rows=rows, mode=("[N/A]", "[N/A]"))
    assert (found.remap_pending, found.remap_failed, found.mig) == (None, None, False)


def test_recovery_action_none_is_an_answer_and_means_none() -> None:
    assert one(more="<gpu_recovery_action>None</gpu_recovery_action>").action == ""
    assert one(more="<gpu_recovery_action>N/A</gpu_recovery_action>").action == ""


def test_on_chip_memory_that_wears_out_is_noted_while_the_gpu_still_works() -> None:
    worn = smi.NEW_ECC.replace("<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes")
    [gpu] = read(smi.report(smi.gpu(ecc=worn)), Beside()).gpus
    assert health.reasons(gpu) == ()
    assert health.notes(gpu) == (
        "its on-chip memory has had more uncorrectable errors than its maker allows: plan to replace it",
    )


def test_unknown_errors_in_other_cells_are_noted(tmp_path: Path) -> None:
    answers = {" -q -x": smi.report(smi.gpu(more="<fan_speed>[Unknown Error]</fan_speed>"))}
    [gpu] = discover(smi.program(tmp_path, answers)).gpus
    assert (gpu.health, gpu.notes) == ((), ("the driver does not tell its whole state: Unknown Error",))


def test_a_driver_too_old_for_the_table_leaves_the_capability_open(tmp_path: Path) -> None:
    [gpu] = discover(smi.program(tmp_path, {" -q -x": smi.report(smi.gpu(), schema=11)})).gpus
    assert (gpu.compute_capability, gpu.index, gpu.health) == ("", 0, ())


def test_a_gpu_that_shares_the_hosts_memory_has_the_hosts_memory(tmp_path: Path) -> None:
    running = smi.process(5, "3072 MiB") + smi.process(5, "3072 MiB", kind="G")
    gpu = smi.gpu("GPU-aaaa", "0000000F:01:00.0", "NVIDIA GB10", ("Not Supported",) * 3, processes=running)
    [found] = discover(smi.program(tmp_path, {" -q -x": smi.report(gpu, schema=13)})).gpus
    assert (found.memory_total, found.memory_used, found.memory_free) == (2**37, 3072 * MIB, 2**36)
    assert (found.gpu_class, found.pci, found.health) == ("gb10-128g", "000f:01:00.0", ())


def test_mig_instances_get_their_names_from_the_listing(tmp_path: Path) -> None:
    mig = smi.instance(0, 2, 40448) + smi.instance(1, 9, 9984)
    running = smi.process(7, "300 MiB", "2") + smi.process(8, "5 MiB", "9") + smi.process(9, "1 MiB")
    listing = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-0)\n"
        "  MIG 1g.10gb     Device  1: (UUID: MIG-1)\n"
    )
    gpu = smi.gpu(mig=mig, mode=("Enabled", "Enabled"), processes=running, rows="N/A")
    answers = {" -q -x": smi.report(gpu), "compute_cap": TABLE, " -L": listing}
    whole, first, second = discover(smi.program(tmp_path, answers)).gpus
    assert (whole.parent, whole.health) == (None, ())
    assert (first.uuid, first.parent, first.gpu_class) == ("MIG-0", "GPU-aaaa", "h100-mig-3g.40gb-40g")
    assert (second.uuid, second.memory_total, second.index) == ("MIG-1", 9984 * MIB, 0)
    assert (first.compute_capability, first.pci, first.health) == ("9.0", "0000:19:00.0", ())
    assert [[held.pid for held in one.processes] for one in (whole, first, second)] == [[9], [7], [8]]


def test_mig_instances_without_a_name_are_a_problem(tmp_path: Path) -> None:
    gpu = smi.gpu(mig=smi.instance(0, 2, 40448), mode=("Enabled", "Disabled"))
    found = discover(smi.program(tmp_path, {" -q -x": smi.report(gpu)}))
    assert found.problems == ("MIG instance 0 of GPU 0: nvidia-smi tells no UUID of it",)
    assert found.gpus[0].health == (
        "MIG is on and the driver names none of its instances (1), so none can be used",
    )
    assert found.gpus[0].notes == ("MIG will be switched with the next reset of the GPU",)


# ---- Trouble ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("err", "problem"),
    [
        (
            "Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error",
            "GPU at 0000:cb:00.0: Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error",
        ),
        (
            "Unable to determine the device handle for GPU1: 0000:34:00.0: GPU is lost.",
            "GPU at 0000:34:00.0: Unable to determine the device handle for GPU1: 0000:34:00.0: GPU is lost.",
        ),
        (
            "WARNING: infoROM is corrupted at gpu 0000:CB:00.0",
            "nvidia-smi: WARNING: infoROM is corrupted at gpu 0000:CB:00.0",
        ),
    ],
)
def test_what_it_says_beside_its_report_is_told_and_the_other_gpus_are(
    tmp_path: Path, err: str, problem: str
) -> None:
    answers = {" -q -x": smi.report(L40S)}
    found = discover(smi.program(tmp_path, answers, code=14, err=err))
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-bbbb"]
    assert found.problems == (problem,)


def test_a_gpu_that_is_lost_stays_on_show_as_lost(tmp_path: Path) -> None:
    env = smi.program(tmp_path, {" -q -x": smi.report(smi.gpu(), L40S), "compute_cap": TABLE})
    discovery = GpuDiscovery(env=env)
    assert len(asyncio.run(discovery.sample()).gpus) == 2
    err = "Unable to determine the device handle for GPU0000:19:00.0: Unknown Error"
    smi.program(tmp_path, {" -q -x": smi.report(L40S), "compute_cap": "1, GPU-bbbb, 8.9\n"}, code=14, err=err)
    lost, well = asyncio.run(discovery.sample()).gpus
    assert (lost.uuid, lost.health) == ("GPU-aaaa", (err,))
    assert (well.uuid, well.index, well.health) == ("GPU-bbbb", 1, ())


def test_a_row_without_a_uuid_is_a_problem(tmp_path: Path) -> None:
    answers = {" -q -x": smi.report(smi.gpu(uuid=smi.LOST), L40S)}
    found = discover(smi.program(tmp_path, answers))
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-bbbb"]
    assert found.problems == ("GPU 0 at 0000:19:00.0: the GPU is lost: the driver can't reach it",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "report has no end",
        ),
        ("<?xml?><nvidia_smi_log><gpu></nvidia_smi_log>", "no XML"),
        (
            '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>',
            "defines entities",
        ),
    ],
)
def test_what_is_no_report_is_a_problem(tmp_path: Path, text: str, why: str) -> None:
    found = discover(smi.program(tmp_path, {" -q -x": text}))
    assert (found.gpus, found.source) == ((), "none")
    assert why in found.problems[0]


def test_a_report_that_is_cut_off_is_no_report() -> None:
    with pytest.raises(AskError):
        read(smi.report(smi.gpu())[:-30], Beside())


def test_a_report_of_no_gpus_has_none() -> None:
    assert read(smi.report(), Beside()).gpus == ()


def test_one_that_computes_and_draws_is_told_once() -> None:
    found = one(processes=smi.process(5, "7 MiB") + smi.process(5, "9 MiB", kind="G"))
    assert found.processes == (Held(pid=5, memory=9 * MIB),)
