"""Classes of GPUs: what people call them, and what stays so whatever a driver counts."""

import asyncio

import pytest

from llmgw.agent.discovery.classes import MAX_KNOWN, Classes, gpu_class
from tests.agent.agents import MemoryDisk

MIB = 1024**2
L40S = "NVIDIA L40S"


@pytest.mark.parametrize(
    ("name", "mib", "known"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80g"),
        ("NVIDIA L40S", 46068, "l40s-45g"),
        ("NVIDIA H200", 143771, "h200-140g"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40g"),
        ("Tesla T4", 15360, "t4-15g"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24g"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada-48g"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, "h100-mig-1g.10gb-10g"),
        ("", 0, "gpu-0g"),
    ],
)
def test_a_class_is_what_people_call_it_and_what_it_really_has(name: str, mib: int, known: str) -> None:
    assert gpu_class(name, mib * MIB) == known


def class_with(classes: Classes, mib: int, uuid: str = "GPU-a") -> str:
    return classes.of(uuid, L40S, mib * MIB)


def test_a_class_sticks_while_the_driver_only_counts_some_mib_differently() -> None:
    classes = Classes()
    assert class_with(classes, 45_600) == "l40s-45g"
    assert class_with(classes, 45_500) == "l40s-45g"  # 44.4 GiB would round to 44
    assert class_with(classes, 0) == "l40s-45g"  # not told now
    assert class_with(classes, 40_000) == "l40s-39g"


def test_memory_that_was_never_told_is_nothing_to_hold_on_to() -> None:
    classes = Classes()
    assert class_with(classes, 0) == "l40s-0g"
    assert class_with(classes, 600) == "l40s-1g"


def test_classes_outlive_the_agent() -> None:
    disk = MemoryDisk()

    async def main() -> None:
        first = Classes(disk)
        await first.load()
        assert class_with(first, 45_600) == "l40s-45g"
        await first.keep()
        second = Classes(disk)
        await second.load()
        assert class_with(second, 45_500) == "l40s-45g", "the driver of the next boot counts less"
        await second.keep()
        assert disk.writes == ["state/gpu-classes.json"], "nothing new, nothing written"

    asyncio.run(main())


def test_classes_that_cannot_be_read_or_kept_are_made_anew() -> None:
    disk = MemoryDisk()
    disk.files["state/gpu-classes.json"] = b"{"

    async def main() -> None:
        classes = Classes(disk)
        await classes.load()
        assert class_with(classes, 45_500) == "l40s-44g"
        disk.refuses = "no space"
        await classes.keep()
        assert class_with(classes, 45_500) == "l40s-44g"

    asyncio.run(main())


def test_instances_that_come_and_go_do_not_fill_the_disk() -> None:
    disk = MemoryDisk()

    async def main() -> None:
        classes = Classes(disk)
        await classes.load()
        for number in range(MAX_KNOWN + 10):
            class_with(classes, 9_984, f"MIG-{number}")
        await classes.keep()
        assert b'MIG-9"' not in disk.files["state/gpu-classes.json"]
        assert f"MIG-{MAX_KNOWN + 9}".encode() in disk.files["state/gpu-classes.json"]

    asyncio.run(main())
