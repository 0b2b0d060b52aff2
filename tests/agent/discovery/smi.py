"""Reports of a pretended nvidia-smi: small, with the elements that matter, by schema."""

from pathlib import Path

LOST, RESET = "[GPU is lost]", "[GPU requires reset]"

NEW_ECC = """
<volatile><sram_correctable>4</sram_correctable><sram_uncorrectable_parity>{volatile}</sram_uncorrectable_parity>
<sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_correctable>9</dram_correctable>
<dram_uncorrectable>0</dram_uncorrectable></volatile>
<aggregate><sram_uncorrectable_parity>0</sram_uncorrectable_parity><dram_uncorrectable>{aggregate}</dram_uncorrectable>
<sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate>"""

ECC = """
<volatile><sram_correctable>4</sram_correctable><sram_uncorrectable>{volatile}</sram_uncorrectable>
<dram_correctable>9</dram_correctable><dram_uncorrectable>0</dram_uncorrectable></volatile>
<aggregate><sram_uncorrectable>0</sram_uncorrectable><dram_uncorrectable>{aggregate}</dram_uncorrectable></aggregate>"""

OLD_ECC = """
<volatile><single_bit><total>4</total></single_bit><double_bit><device_memory>9</device_memory>
<total>{volatile}</total></double_bit></volatile>
<aggregate><single_bit><total>4</total></single_bit><double_bit><total>{aggregate}</total></double_bit></aggregate>"""


def gpu(  # noqa: PLR0917 - each is what one test is about
    uuid: str = "GPU-aaaa",
    bus: str = "00000000:19:00.0",
    name: str = "NVIDIA H100 80GB HBM3",
    memory: tuple[str, str, str] = ("81559 MiB", "479 MiB", "81022 MiB"),
    ecc: str = ECC,
    volatile: str = "0",
    aggregate: str = "0",
    rows: str = "<remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>",
    mig: str = "None",
    mode: tuple[str, str] = ("Disabled", "Disabled"),
    processes: str = "",
    more: str = "",
) -> str:
    total, used, free = memory
    return f"""
<gpu id="{bus}">
  <product_name>{name}</product_name>
  <mig_mode><current_mig>{mode[0]}</current_mig><pending_mig>{mode[1]}</pending_mig></mig_mode>
  <mig_devices>{mig}</mig_devices>
  <serial>[N/A]</serial>
  <uuid>{uuid}</uuid>
  <fb_memory_usage><total>{total}</total><reserved>0 MiB</reserved><used>{used}</used><free>{free}</free></fb_memory_usage>
  <clocks><app>Requested functionality has been deprecated</app></clocks>
  <ecc_errors>{ecc.format(volatile=volatile, aggregate=aggregate)}</ecc_errors>
  <remapped_rows>{rows}</remapped_rows>
  <processes>{processes}</processes>
  {more}
</gpu>"""


def process(pid: int, memory: str, instance: str = "N/A", kind: str = "C") -> str:
    return (
        f"<process_info><gpu_instance_id>{instance}</gpu_instance_id><compute_instance_id>"
        f"{'0' if instance != 'N/A' else 'N/A'}</compute_instance_id><pid>{pid}</pid><type>{kind}</type>"
        f"<process_name>python</process_name><used_memory>{memory}</used_memory></process_info>"
    )


def instance(number: int, gpu_instance: int, mib: int) -> str:
    return (
        f"<mig_device><index>{number}</index><gpu_instance_id>{gpu_instance}</gpu_instance_id>"
        "<compute_instance_id>0</compute_instance_id><ecc_error_count><volatile_count>"
        "<sram_uncorrectable>0</sram_uncorrectable></volatile_count></ecc_error_count><fb_memory_usage>"
        f"<total>{mib} MiB</total><used>12 MiB</used><free>{mib - 12} MiB</free></fb_memory_usage></mig_device>"
    )


def report(*gpus: str, schema: int = 12, driver: str = "590.48.01") -> str:
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{schema}.dtd">
<nvidia_smi_log>
  <driver_version>{driver}</driver_version>
  <attached_gpus>{len(gpus)}</attached_gpus>{"".join(gpus)}
</nvidia_smi_log>
"""


def program(folder: Path, answers: dict[str, str], *, code: int = 0, err: str = "") -> dict[str, str]:
    """An ``nvidia-smi`` that answers by its first argument that is named; others it does not know. The environment to
    find it in."""
    cases = []
    for number, (argument, answer) in enumerate(answers.items()):
        (folder / f"answer-{number}").write_text(answer)
        cases.append(f"*'{argument}'*) cat {folder}/answer-{number}; printf '%s' '{err}' >&2; exit {code};;")
    script = folder / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\ncase " $*" in\n{chr(10).join(cases)}\n*) echo "not a valid field" >&2; exit 2;;\nesac\n'
    )
    script.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}
