"""Errors that the driver has told the kernel of, on the GPUs that they are about."""

import asyncio
from datetime import datetime, timedelta, timezone
from pathlib import Path

from llmgw.agent.discovery.xids import DriverErrors
from llmgw.agent.shards.kernellog import KernelLog
from llmgw.clock import FakeClock
from llmgw.model.facts import Gpu

NOW = datetime(2026, 3, 1, 10, tzinfo=timezone.utc)
UPTIME = 200_000.0
DAY = 86_400


def gpu(index: int, pci: str = "", parent: str | None = None) -> Gpu:
    return Gpu(
        uuid=f"GPU-{index}",
        index=index,
        name="H100",
        gpu_class="h100-80g",
        memory_total=1,
        pci=pci,
        parent=parent,
    )


def said(folder: Path, *lines: tuple[float, str]) -> DriverErrors:
    """``lines``: seconds ago, and what the kernel said then."""
    log = folder / "kmsg"
    log.write_text(
        "".join(f"4,{n},{int((UPTIME - ago) * 1e6)},-;{text}\n" for n, (ago, text) in enumerate(lines))
    )
    return DriverErrors(KernelLog(log), FakeClock(NOW), uptime=lambda: UPTIME)


def test_an_error_is_told_of_its_gpu_with_when_and_how_often(tmp_path: Path) -> None:
    errors = said(
        tmp_path,
        (900, "NVRM: Xid (PCI:0000:19:00): 31, pid=77, name=python, MMU Fault"),
        (600, "NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus."),
        (300, "NVRM: Xid (PCI:0000:19:00): 31, pid=78, name=python, MMU Fault"),
        (100, "NVRM: Xid (PCI:0000:3b:00): 94, Contained memory error"),
    )
    first, second, third = errors.on((gpu(0, "0000:19:00.0"), gpu(1, "0000:3b:00.0"), gpu(2, "0000:5e:00.0")))
    assert [(xid.number, xid.count, NOW - xid.at) for xid in first.xids] == [
        (79, 1, timedelta(seconds=600)),
        (31, 2, timedelta(seconds=300)),
    ]
    assert "fallen off the bus" in first.xids[0].text
    assert [xid.number for xid in second.xids] == [94]
    assert third.xids == ()


def test_what_is_older_than_a_day_is_history(tmp_path: Path) -> None:
    errors = said(tmp_path, (DAY + 10, "NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus."))
    assert errors.on((gpu(0, "0000:19:00.0"),))[0].xids == ()


def test_a_gpu_is_known_by_what_the_driver_called_it_and_its_instances_share_nothing(tmp_path: Path) -> None:
    errors = said(
        tmp_path,
        (500, "NVRM: GPU at PCI:0000:19:00: GPU-0"),
        (400, "NVRM: Xid (PCI:0000:19:00): 48, DBE"),
    )
    whole, part = errors.on((gpu(0), gpu(1, "0000:19:00.0", parent="GPU-0")))
    assert [xid.number for xid in whole.xids] == [48]
    assert part.xids == ()


def test_a_machine_without_such_a_log_tells_of_none() -> None:
    errors = DriverErrors(KernelLog(Path("/nowhere/kmsg")), FakeClock(NOW))
    gpus = (gpu(0, "0000:19:00.0"),)
    assert asyncio.run(asyncio.to_thread(errors.on, gpus)) == gpus
