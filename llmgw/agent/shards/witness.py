"""What others saw of a death: the control group that counts kills for lack of memory, and the kernel's log. Nothing
here fails or waits: what can't be seen is not told."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from llmgw.agent.seams import Running
from llmgw.agent.shards.autopsy import NOTHING_SEEN, Evidence
from llmgw.agent.shards.kernellog import KernelLog, Line, buses
from llmgw.model.report import Exit
from llmgw.model.struct import Struct

log = logging.getLogger(__name__)

LOOK_BACK = 600.0
"""Seconds before a death in which a GPU's error may have been its cause: a collective that hangs ends minutes later."""
NEARBY = 30.0
"""Seconds before a death in which the kernel's killing somebody else may have been its cause."""
SLACK = 10.0
"""Seconds that the kernel log's clock may be off ours after months."""
KILL_LINE_WITHIN = 0.03
"""Seconds until the kernel has written whom it has killed; the death itself may be seen before."""
MAX_XIDS = 3
MAX_EVENTS = 4096
ROOT_PIDS = "pid:[4026531836]"
"""The first pid namespace, in which the kernel's log counts; see proc_ns.h."""


class Death(Struct):
    """A process that has ended. ``gpus``: UUIDs that its shard had claimed."""

    running: Running
    exit: Exit
    now: datetime
    cgroup: Path | None = None
    gpus: tuple[str, ...] = ()

    @property
    def killed(self) -> bool:
        """The way that the kernel ends a process for lack of memory."""
        return self.exit.signal == signal.SIGKILL

    @property
    def pids(self) -> frozenset[int]:
        both = (self.running.engine, self.running.shim)
        return frozenset(process.pid for process in both if process is not None)


class Witness:
    """``bus`` tells the PCI address of a GPU; ``pids_count``: whether the kernel's pids are those that we know;
    ``uptime``: seconds since boot."""

    def __init__(
        self,
        log: KernelLog,
        *,
        bus: Callable[[str], str] = lambda _: "",
        pids_count: bool | None = None,
        uptime: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._uptime = uptime
        self._bus = bus
        self._pids_count = in_first_namespace() if pids_count is None else pids_count

    async def evidence(self, death: Death) -> Evidence:
        """Takes milliseconds, but for the first look at a long log."""
        try:
            return await self._look(death)
        except Exception as wrong:  # noqa: BLE001 - a death must be told, explained or not
            log.debug("looking for the cause of a death: %s: %s", type(wrong).__name__, wrong)
            return NOTHING_SEEN

    async def _look(self, death: Death) -> Evidence:
        lines = await asyncio.to_thread(self._log.lines)
        counted = _counted_kills(death.cgroup)
        own = self._own_kill(death, lines)
        if death.killed and own is None and not counted:
            await asyncio.sleep(KILL_LINE_WITHIN)
            lines = await asyncio.to_thread(self._log.lines)
            own = self._own_kill(death, lines)
        said = [*self._kills(death, lines, own, counted=counted), *self._xids(death, lines)]
        return Evidence(out_of_memory=own is not None or counted > 0, said=tuple(said))

    def close(self) -> None:
        self._log.close()

    def _died(self, death: Death) -> float:
        """In seconds since boot."""
        return self._uptime() - (death.now - death.exit.at).total_seconds()

    def _recent(self, death: Death, lines: Iterable[Line], seconds: float) -> list[Line]:
        """Said in the last seconds before the death, and in the process's own life: pids come again."""
        died = self._died(death)
        lived = max(0.0, (death.exit.at - death.running.started).total_seconds())
        begin, end = died - min(seconds, lived) - SLACK, died + SLACK
        return [line for line in lines if begin <= line.at <= end]

    # ---- Lack of memory -----------------------------------------------------------------------------------

    def _own_kill(self, death: Death, lines: Sequence[Line]) -> Line | None:
        """The line that names one of its processes, or one in its control group."""
        if not self._pids_count:
            return None
        recent = self._recent(death, lines, LOOK_BACK)
        ours = set(death.pids) | {
            victim[1] for line in recent if (victim := line.victim) and _inside(victim[0], death)
        }
        return next((line for line in reversed(recent) if (told := line.killed) and told[0] in ours), None)

    def _kills(self, death: Death, lines: Sequence[Line], own: Line | None, *, counted: int) -> Iterator[str]:
        if own is not None:
            engine = death.running.engine
            itself = own.killed is not None and engine is not None and own.killed[0] == engine.pid
            who = "it" if itself else "one of its processes"
            yield f"the kernel has killed {who} for lack of memory: {own.text}"
            return
        if counted:
            yield f"the kernel has killed {counted} of its processes for lack of memory (memory.events)"
            return
        for line in reversed(self._recent(death, lines, NEARBY)):
            if told := line.killed:
                who = f"a process ({told[1]})" if not self._pids_count else f"pid {told[0]} ({told[1]})"
                yield f"shortly before, the kernel killed {who} for lack of memory"
                return

    # ---- GPUs -----------------------------------------------------------------------------------------------

    def _xids(self, death: Death, lines: Sequence[Line]) -> Iterator[str]:
        """The first ones: what comes after the first error of a GPU mostly follows from it."""
        named = buses(lines)
        places = {self._bus(uuid) or named.get(uuid, "") for uuid in death.gpus} - {""}
        found = [line for line in self._recent(death, lines, LOOK_BACK) if line.xid_of in places]
        for line in list({line.text: line for line in found}.values())[:MAX_XIDS]:
            ago = max(0, round(self._died(death) - line.at))
            yield f"an error of its GPU about {ago} s before: {line.text}"
        if len(found) > MAX_XIDS:
            yield f"{len(found)} such errors in all"


def in_first_namespace(proc: Path = Path("/proc")) -> bool:
    try:
        return os.readlink(proc / "self" / "ns" / "pid") == ROOT_PIDS  # noqa: PTH115 - no path, but a name
    except OSError:
        return False


def _inside(group: str, death: Death) -> bool:
    if death.cgroup is None:
        return False
    place = f"/{death.cgroup.parent.name}/{death.cgroup.name}"
    return group.endswith(place) or f"{place}/" in group


def _counted_kills(group: Path | None) -> int:
    """Kills in the control group and below it since it was made, where its memory is counted at all."""
    if group is None:
        return 0
    try:
        with (group / "memory.events").open() as file:
            rows = [line.split() for line in file.read(MAX_EVENTS).splitlines()]
    except OSError:
        return 0
    counts = (row[1] for row in rows if len(row) == 2 and row[0] == "oom_kill")
    return sum(int(count) for count in counts if count.isdigit())
