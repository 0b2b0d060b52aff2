"""Jobs: work of the node with an end. One job a target however many ask; an order outlives the agent; what is complete
says so by itself, so that a repeat is free.

The doers (install, fetch) know how; this module knows when, how long, how often and what is told.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from llmgw.agent.jobs.doer import NO_SECRETS, Doer, Progress, Targets
from llmgw.agent.jobs.secrets import JobSecrets
from llmgw.agent.journal import Journal
from llmgw.agent.seams import Disk
from llmgw.clock import Clock
from llmgw.model.ids import JobId
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.problems import AgentError, LlmgwError, RetryError, StalledError
from llmgw.model.report import JobReport, JobState
from llmgw.model.struct import replace
from llmgw.wire import codec
from llmgw.wire.messages import INVALID_PARAMS, NO_SPACE, NOT_FOUND

JobSpec: TypeAlias = InstallSpec | FetchSpec

FOLDER = "jobs"
ASIDE = f"{FOLDER}/unreadable"
"""Orders that can't be read: nobody works on them again, a person may still look."""
AT_ONCE = 2
"""More downloads at once only share one line, and one slow engine install must not block the weights."""
KEPT = 200
ATTEMPTS = 4
TICK = 1.0
_JOB = re.compile(r"^(install|fetch)-[0-9a-f]{8,64}$")
_DIGEST = re.compile(r"^[0-9a-f]{8,64}$")
"""Both become names of files and folders."""
ENDED = frozenset({JobState.DONE.value, JobState.FAILED.value, JobState.CANCELLED.value})
LEAST_LEFT = 60.0
"""Seconds that a job gets after an agent's restart, however long it has worked already: it may only have to tell its end."""


@dataclass(slots=True, kw_only=True)
class _Job:
    kind: str
    spec: JobSpec
    report: JobReport
    boot_id: str = ""  # of the machine when its order was written last
    progress: Progress = field(default_factory=Progress)
    task: "asyncio.Task[None] | None" = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Jobs:
    """All jobs of the node. ``changed`` hears of every change of a report, ``learn`` of every secret; ``boot_id`` tells whether
    the machine was off since an order was written."""

    def __init__(  # noqa: PLR0913 - one part each
        self,
        *,
        clock: Clock,
        disk: Disk,
        journal: Journal,
        install: Doer,
        fetch: Doer,
        targets: Targets,
        changed: Callable[[JobReport], None],
        learn: Callable[[str], None] = lambda _: None,
        boot_id: str = "",
    ) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self._disk = disk
        self._journal = journal
        self._doers: Mapping[str, Doer] = {"install": install, "fetch": fetch}
        self.targets = targets
        self._changed = changed
        self._secrets = JobSecrets(disk, learn=learn)
        self._jobs: dict[str, _Job] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._closed = False
        self._ordering = asyncio.Lock()

    # ---- what the protocol asks ------------------------------------------------------------------

    async def install(self, spec: InstallSpec) -> JobReport:
        async with self._ordering:
            return await self._order("install", spec)

    async def fetch(self, spec: FetchSpec, *, secrets: Mapping[str, str] = NO_SECRETS) -> JobReport:
        async with self._ordering:
            return await self._order("fetch", spec, secrets)

    async def cancel(self, job: str) -> JobReport:
        """Ends a job. One that was done stays so; one that has failed is forgotten, since whoever cancels it does not want it
        any more."""
        async with self._ordering:
            found = self._jobs.get(job)
            if found is None:
                raise AgentError(f"cancelling job {job}: this node knows no such job", code=NOT_FOUND)
            if found.task is not None and found.report.state not in ENDED:
                found.task.cancel()
                await asyncio.wait([found.task])
                if not found.ended.is_set():  # cancelled before its first step, so it never saw its end
                    await self._end(found, JobState.CANCELLED, await self._stopped(found, ""))
            if found.report.state == JobState.FAILED.value:
                await self._disk.remove(f"{FOLDER}/{job}.json")
                del self._jobs[job]
            return found.report

    def reports(self) -> tuple[JobReport, ...]:
        """Not of what was done and is gone again: it would look as if it were there."""
        there = {engine.digest for engine in self.targets.engines()}
        there |= {weights.digest for weights in self.targets.weights()}
        reports = (self._jobs[name].report for name in sorted(self._jobs))
        return tuple(it for it in reports if it.state != JobState.DONE.value or it.target in there)

    # ---- what collecting asks ----------------------------------------------------------------------

    def at_work(self) -> Mapping[str, JobId]:
        """Jobs that have not ended, by the digest that they are to complete."""
        return {job.spec.digest: job.spec.job for job in self._jobs.values() if job.report.state not in ENDED}

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """No job is ordered meanwhile."""
        async with self._ordering:
            yield

    # ---- JobGate: what shards ask ----------------------------------------------------------------

    async def wait(self, jobs: tuple[JobId, ...]) -> None:
        """Returns when all are done."""
        for name in jobs:
            job = self._jobs.get(name)
            if job is None:
                raise StalledError(f"waiting for job {name}: nobody ordered it on this node: plan again")
            await job.ended.wait()
            if job.report.state != JobState.DONE.value:
                raise StalledError(
                    f"job {name} ({job.report.description}) {job.report.state}: {job.report.error}"
                )

    def state(self, job: JobId) -> JobReport | None:
        found = self._jobs.get(job)
        return found.report if found else None

    def engine_path(self, digest: str) -> str | None:
        return next((engine.path for engine in self.targets.engines() if engine.digest == digest), None)

    def engine_flags(self, digest: str) -> tuple[str, ...] | None:
        return next((engine.flags for engine in self.targets.engines() if engine.digest == digest), None)

    def weights_path(self, digest: str) -> str | None:
        return next((found.path for found in self.targets.weights() if found.digest == digest), None)

    # ---- life ------------------------------------------------------------------------------------

    async def adopt(self) -> tuple[str, ...]:
        """Takes up what an earlier agent was told to do; returns what stays wrong. An order that can't be read is told once: what
        it was to bring is not there, and whoever needs that orders it again."""
        problems: list[str] = []
        for name, data in sorted((await self._disk.read_all(FOLDER)).items()):
            try:
                job = _read(data)
            except (codec.CodecError, ValueError, KeyError, TypeError, RecursionError) as wrong:
                problems += await self._put_aside(name, wrong)
                continue
            self._jobs[job.spec.job] = job
        going_on = [job for job in self._jobs.values() if job.report.state not in ENDED]
        failed = [job for job in self._jobs.values() if job.report.state == JobState.FAILED.value]
        for kind, doer in self._doers.items():
            mine = frozenset(job.spec.job for job in going_on if job.kind == kind)
            kept = frozenset(job.spec.job for job in failed if job.kind == kind)
            try:
                await doer.clean(mine, kept=kept)
            except StalledError as wrong:
                problems.append(str(wrong))
        await self._secrets.keep_only(frozenset(job.spec.job for job in going_on))
        for job in self._jobs.values():
            if job.report.state in ENDED:
                job.ended.set()
        # What worked already goes first: its work goes on whether or not it has one of the places.
        for job in sorted(going_on, key=lambda job: job.report.state != JobState.RUNNING.value):
            self._resume(job)
        return tuple(problems)

    def _resume(self, job: _Job) -> None:
        rebooted = job.boot_id != self._boot_id
        if rebooted:  # nothing has worked on it while the machine was off, however long that was
            job.report = replace(job.report, state=JobState.QUEUED.value, started=None)
        why = "the machine was rebooted" if rebooted else "the agent was restarted"
        self._journal.append("job", job.spec.job, f"resumed after {why}")
        self._begin(job)

    async def _put_aside(self, name: str, wrong: Exception) -> tuple[str, ...]:
        told = f"the order of job {name.removesuffix('.json')} can't be read: {wrong}"
        try:
            await self._disk.move(f"{FOLDER}/{name}", f"{ASIDE}/{name}")
        except StalledError as refused:
            return (f"{told}; {refused}",)
        self._journal.append("problem", name.removesuffix(".json"), f"{told}: kept in {ASIDE}/{name}")
        return ()

    async def close(self) -> None:
        """Stops working without ending the orders: the next agent resumes them."""
        self._closed = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- inside ----------------------------------------------------------------------------------

    async def _order(self, kind: str, spec: JobSpec, secrets: Mapping[str, str] = NO_SECRETS) -> JobReport:
        found = self._jobs.get(spec.job)
        if found is not None and found.report.state not in ENDED:
            return found.report
        if not _JOB.match(spec.job) or not _DIGEST.match(spec.digest):
            raise AgentError(
                f"ordering job {spec.job!r:.80}: a job is called {kind}-<8 hex digits>, its target by 64 hex digits",
                code=INVALID_PARAMS,
            )
        job = _Job(kind=kind, spec=spec, report=self._first_report(kind, spec))
        try:
            complete = self._doers[kind].complete(spec)
        except StalledError as wrong:
            raise AgentError(str(wrong), code=INVALID_PARAMS) from wrong
        if complete:
            job.report = replace(job.report, state=JobState.DONE.value, ended=self._clock.now())
            job.ended.set()
            self._jobs[spec.job] = job
            if found is None or found.report.state != JobState.DONE.value:
                # Shards wait for it again after a reboot, perhaps before its disk is mounted.
                with suppress(StalledError):
                    await self._save(job)
                await self._drop_oldest()
            return job.report
        self._jobs[spec.job] = job
        try:
            await self._secrets.keep(spec.job, secrets)
            await self._save(job)
            await self._disk.remove(f"{ASIDE}/{spec.job}.json")
        except StalledError as wrong:
            del self._jobs[spec.job]
            job.ended.set()
            raise AgentError(f"job {spec.job} was not begun: {wrong}", code=NO_SPACE) from wrong
        self._begin(job)
        await self._drop_oldest()
        return job.report

    def _first_report(self, kind: str, spec: JobSpec) -> JobReport:
        told = f"{spec.engine} {spec.version}" if isinstance(spec, InstallSpec) else spec.description
        return JobReport(
            job=spec.job,
            kind=kind,
            target=spec.digest,
            description=told,
            state=JobState.QUEUED.value,
            total_bytes=spec.size if isinstance(spec, FetchSpec) else None,
        )

    def _begin(self, job: _Job) -> None:
        job.task = asyncio.ensure_future(self._work(job))

    async def _work(self, job: _Job) -> None:
        state, error = JobState.FAILED, ""
        ticker: asyncio.Task[None] | None = None
        try:
            async with self._slots:
                left = self._time_left(job)
                started = job.report.started or self._clock.now()
                self._tell(job, state=JobState.RUNNING.value, started=started)
                ticker = asyncio.ensure_future(self._tick(job))
                await self._save_running(job)
                await asyncio.wait_for(self._attempts(job), timeout=left)
            state = JobState.DONE
        except asyncio.CancelledError:
            if self._closed:
                raise  # the order stands; the next agent goes on
            state = JobState.CANCELLED
        except asyncio.TimeoutError:
            error = f"not done within {job.spec.timeout:.0f} s; the last thing it said: {job.progress.line}"
        except LlmgwError as wrong:
            error = str(wrong)
        except Exception as wrong:  # noqa: BLE001 - one broken job must not take the agent along
            error = f"{type(wrong).__name__}: {wrong}"
        finally:
            if ticker is not None:
                ticker.cancel()
                with suppress(asyncio.CancelledError):
                    await ticker
        if state is not JobState.DONE:
            error = await self._stopped(job, error)
        await self._end(job, state, error)

    async def _stopped(self, job: _Job, error: str) -> str:
        """Nothing works on it any more; why that could not be brought about, beside what went wrong before."""
        try:
            await self._doers[job.kind].stop(job.spec.job)
        except StalledError as wrong:
            return f"{error}; {wrong}" if error else str(wrong)
        return error

    def _time_left(self, job: _Job) -> float:
        """An agent's restart gives no job more time."""
        if job.report.started is None:
            return job.spec.timeout
        worked = (self._clock.now() - job.report.started).total_seconds()
        return max(job.spec.timeout - worked, min(LEAST_LEFT, job.spec.timeout))

    async def _save_running(self, job: _Job) -> None:
        """For the next agent, which goes on without it too."""
        with suppress(StalledError):
            await self._save(job)

    async def _attempts(self, job: _Job) -> None:
        """A doer that says that trying again may help is tried again a few times; each goes on from the last."""
        for left in reversed(range(ATTEMPTS)):
            try:
                await self._doers[job.kind].run(
                    job.spec, job.progress, secrets=await self._secrets.of(job.spec.job)
                )
            except RetryError as wrong:  # noqa: PERF203 - each attempt fails for itself
                if not left:
                    raise
                job.progress.say(f"{wrong}; trying again in {wrong.after.total_seconds():.0f} s")
                await asyncio.sleep(wrong.after.total_seconds())
            else:
                return

    async def _tick(self, job: _Job) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._tell(job)

    def _tell(self, job: _Job, **changes: Any) -> None:
        """A new report of the job, and told only if it says something new."""
        told = replace(
            job.report,
            done_bytes=job.progress.done,
            total_bytes=job.progress.total if job.progress.total is not None else job.report.total_bytes,
            last_line=job.progress.line,
            **changes,
        )
        if told != job.report:
            job.report = told
            self._changed(told)

    async def _end(self, job: _Job, state: JobState, error: str) -> None:
        self._tell(job, state=state.value, ended=self._clock.now(), error=error)
        told = f"{job.report.description}: {state.value}"
        self._journal.append("job", job.spec.job, f"{told}: {error}" if error else told)
        try:
            await self._secrets.drop(job.spec.job)
            await self._save(job)
        except StalledError as wrong:
            # The order on disk still says running: the next agent looks again, finds the target complete or repeats.
            self._journal.append("problem", job.spec.job, str(wrong))
        finally:
            job.ended.set()

    async def _save(self, job: _Job) -> None:
        data = {
            "kind": job.kind,
            "spec": codec.to_json(job.spec),
            "report": codec.to_json(job.report),
            "bootId": self._boot_id,
        }
        await self._disk.write(f"{FOLDER}/{job.spec.job}.json", json.dumps(data, indent=2).encode())

    async def _drop_oldest(self) -> None:
        ended = [job for job in self._jobs.values() if job.report.state in ENDED]
        surplus = len(self._jobs) - KEPT
        for job in ended[: max(0, surplus)]:
            del self._jobs[job.spec.job]
            with suppress(StalledError):
                await self._disk.remove(f"{FOLDER}/{job.spec.job}.json")


def _read(data: bytes) -> _Job:
    parsed = json.loads(data)
    kind = parsed["kind"]
    spec: JobSpec
    if kind == "install":
        spec = codec.from_json(InstallSpec, parsed["spec"], strict=False)
    else:
        spec = codec.from_json(FetchSpec, parsed["spec"], strict=False)
    report = codec.from_json(JobReport, parsed["report"], strict=False)
    return _Job(kind=kind, spec=spec, report=report, boot_id=str(parsed.get("bootId", "")))
