"""Errors (Xid) that the driver has told the kernel of, laid on the GPUs that they are about."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from llmgw.agent.shards.kernellog import KernelLog, Line, buses
from llmgw.clock import Clock
from llmgw.model.facts import Gpu, Xid
from llmgw.model.struct import replace

LOOK_BACK = timedelta(days=1)
"""An error that did not come again for so long is history: the journal of the machine tells it."""
MOST = 16
"""Numbers that are told of one GPU, the newest ones."""


class DriverErrors:
    """Reads a log of its own: another reader's place in it is none of this one's business. ``uptime``: seconds since boot."""

    def __init__(self, log: KernelLog, clock: Clock, *, uptime: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._uptime = uptime

    def on(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        if not gpus:
            return gpus
        return with_xids(gpus, self._log.lines(), uptime=self._uptime(), now=self._clock.now())


def with_xids(
    gpus: tuple[Gpu, ...], lines: Sequence[Line], *, uptime: float, now: datetime
) -> tuple[Gpu, ...]:
    """``uptime``: seconds since boot, now. Of a GPU that is split into instances the whole has them."""
    named = buses(lines)
    recent = [line for line in lines if line.xid and uptime - line.at <= LOOK_BACK.total_seconds()]
    if not recent:
        return gpus
    return tuple(
        gpu
        if gpu.parent is not None
        else replace(gpu, xids=_of(gpu.pci or named.get(gpu.uuid, ""), recent, uptime=uptime, now=now))
        for gpu in gpus
    )


def _of(pci: str, lines: Iterable[Line], *, uptime: float, now: datetime) -> tuple[Xid, ...]:
    """The last of each number, oldest first."""
    found: dict[int, Xid] = {}
    for line in lines:
        if line.xid is None or line.xid_of != pci:
            continue
        before = found.pop(line.xid, None)
        found[line.xid] = Xid(
            number=line.xid,
            at=(now - timedelta(seconds=uptime - line.at)).replace(microsecond=0),
            text=line.text,
            count=before.count + 1 if before is not None else 1,
        )
    return tuple(list(found.values())[-MOST:])
