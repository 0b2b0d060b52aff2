"""The real Doer: each job's work runs in a worker, a program of its own under a shim, so that it goes on while agents come
and go and the agent stays small. Starts workers, finds them again with the proof that engines are found by, hears how far
they are, and ends them with all that they started.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from llmgw.agent.jobs.doer import NO_SECRETS, Progress
from llmgw.agent.jobs.files import remove_tree
from llmgw.agent.jobs.orders import PROGRESS, RESULT, Result, Told, WorkOrder, files_of, read
from llmgw.agent.seams import Order, Running
from llmgw.agent.shards.belongings import SHARD_MARK
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.problems import StalledError
from llmgw.model.report import Exit
from llmgw.model.struct import Struct

PROCESS = "worker"
LOOK_EVERY = 0.5
"""Seconds between looks at a worker's progress; its end is seen at once."""
END_WITHIN = 3.0
"""Seconds for a worker that was told to end. It only ends what it started; partial files are good whenever it stops."""
KILL_WITHIN = 10.0
AFTER_KILL = 10.0
"""Seconds until a job is tried again whose worker somebody, or the kernel for want of memory, has killed."""
LOG_TAIL = 1_000
BOOT = "import sys; sys.path[:0] = sys.argv[1:]; from llmgw.agent.jobs.worker import main; main()"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Processes(Protocol):
    """What workers need of a Spawner."""

    async def spawn(self, order: Order) -> Running: ...

    async def find(
        self, shard: str, process: str, status_file: str, *, known: Running | None = None
    ) -> Running | Exit | None: ...

    def exited(self, running: Running, status_file: str) -> Awaitable[Exit]: ...

    async def signal(self, running: Running, number: int) -> None: ...

    async def remaining(self, shard: str) -> tuple[int, ...]: ...

    async def kill_remaining(self, shard: str) -> None: ...


class Workers(Struct):
    """``folder`` holds one folder a job and is ``processes``' own; ``order_of`` says what a job's worker is told;
    ``half_made`` what lies half made on the node, by job."""

    folder: Path
    processes: Processes
    is_complete: Callable[[Any], bool]
    order_of: Callable[[Any, Mapping[str, str]], WorkOrder]
    half_made: Callable[[], tuple[tuple[str, Path], ...]]
    kind: str

    def complete(self, spec: Any) -> bool:
        return self.is_complete(spec)

    async def run(self, spec: Any, progress: Progress, *, secrets: Mapping[str, str] = NO_SECRETS) -> None:
        found = await self.processes.find(spec.job, PROCESS, str(self._status(spec.job)))
        result = read(Result, self._place(spec.job) / RESULT) if isinstance(found, Exit) else None
        if result is None:
            running = found if isinstance(found, Running) else await self._begin(spec, secrets)
            result = await self._watch(spec.job, running, progress)
        _take_over(self._place(spec.job), progress)
        await self._tidy(spec.job)
        result.raise_error()
        if not self.complete(spec):
            raise StalledError(
                f"job {spec.job}: its worker ended well, but what it brought is not whole: see to the node's disk"
            )

    async def stop(self, job: str) -> None:
        found = await self.processes.find(job, PROCESS, str(self._status(job)))
        if isinstance(found, Running):
            await self.processes.signal(found, signal.SIGTERM)
            ended = asyncio.ensure_future(self.processes.exited(found, str(self._status(job))))
            await asyncio.wait({ended}, timeout=END_WITHIN)
            ended.cancel()
        await self._kill(job)
        await self._tidy(job)

    async def clean(self, going_on: frozenset[str], *, kept: frozenset[str]) -> None:
        for place in self._places():
            if place.name not in going_on:
                await self.stop(place.name)
        for job, path in self.half_made():
            if job.startswith(f"{self.kind}-") and job not in going_on | kept:
                await asyncio.to_thread(remove_tree, path)

    # ---- one worker ------------------------------------------------------------------------------

    async def _begin(self, spec: InstallSpec | FetchSpec, secrets: Mapping[str, str]) -> Running:
        """What an earlier worker left running, say because the kernel took its shim, ends first."""
        await self._kill(spec.job)
        place = self._place(spec.job)
        try:
            await asyncio.to_thread(remove_tree, place)
            place.mkdir(mode=0o700, parents=True)
        except OSError as wrong:
            raise StalledError(
                f"beginning job {spec.job}: {wrong.strerror}: {place}: see to the agent's disk"
            ) from wrong
        return await self.processes.spawn(
            Order(
                shard=spec.job,
                process=PROCESS,
                argv=(sys.executable, "-I", "-S", "-c", BOOT, *(entry for entry in sys.path if entry)),
                env={"PATH": PATH, "LANG": "C.UTF-8", SHARD_MARK: spec.job},
                directory=str(place),
                log=str(place / "log"),
                status_file=str(self._status(spec.job)),
                files=files_of(self.order_of(spec, secrets)),
            )
        )

    async def _watch(self, job: str, running: Running, progress: Progress) -> Result:
        ended = asyncio.ensure_future(self.processes.exited(running, str(self._status(job))))
        try:
            while not ended.done():
                _take_over(self._place(job), progress)
                await asyncio.wait({ended}, timeout=LOOK_EVERY)
            how = await ended
        finally:
            ended.cancel()
        result = read(Result, self._place(job) / RESULT)
        return result or _unexplained(job, how, self._place(job) / "log")

    async def _kill(self, job: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + KILL_WITHIN
        while left := await self.processes.remaining(job):
            if loop.time() > end:
                raise StalledError(
                    f"ending job {job}: pids {', '.join(map(str, left))} survived SIGKILL: they hang in the kernel, see its log"
                )
            await self.processes.kill_remaining(job)
            await asyncio.sleep(0.02)

    async def _tidy(self, job: str) -> None:
        """Nothing of a job that is over: its log went into its error."""
        await asyncio.to_thread(remove_tree, self._place(job))
        for ending in ("", ".lock", ".end", ".new"):
            status = self._status(job)
            status.with_name(status.name + ending).unlink(missing_ok=True)

    def _places(self) -> list[Path]:
        try:
            return sorted(entry for entry in self.folder.iterdir() if entry.name.startswith(f"{self.kind}-"))
        except FileNotFoundError:
            return []

    def _place(self, job: str) -> Path:
        return self.folder / job

    def _status(self, job: str) -> Path:
        return self.folder / "status" / f"{job}.{PROCESS}.json"


def _take_over(place: Path, progress: Progress) -> None:
    told = read(Told, place / PROGRESS)
    if told is not None:
        progress.bytes(told.done, told.total)
        progress.say(told.line)


def _unexplained(job: str, how: Exit, log: Path) -> Result:
    """A worker that could not tell: broken, or killed, which may not happen again."""
    why = f"signal {how.signal}" if how.signal else f"code {how.code}" if how.code is not None else how.detail
    hint = ": memory may have run out, see the kernel's log" if how.signal == signal.SIGKILL else ""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL))
            said = file.read(LOG_TAIL).decode(errors="replace").strip()
    except OSError:
        said = ""
    error = f"job {job}: its worker ended by {why}{hint}{f'; it said: {said}' if said else ''}"
    return Result(kind="stalled" if how.code is not None else "retry", error=error, after=AFTER_KILL)
