"""A shard waits for the jobs that bring its engine and weights."""

import asyncio
from collections.abc import Callable, Iterator

from llmgw.agent.shards.checks import adapter_path, engine_of, weights_of
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import Event, JobsDone, JobsFailed, JobsWaiting
from llmgw.model.ids import JobId
from llmgw.model.launch import LaunchSpec
from llmgw.model.problems import LlmgwError, RetryError
from llmgw.model.report import JobReport, JobState, ShardState

LOOK_EVERY = 2.0
MIB = 1024**2
BRINGS = 8
"""Digits of a digest that end the name of the job that brings it."""


async def await_jobs(spec: LaunchSpec, around: Surroundings, tell: Callable[[Event], None]) -> None:
    """Tells JobsDone or JobsFailed, and meanwhile what it waits for."""
    needs = to_wait_for(spec, around)
    if not needs:
        tell(JobsDone())
        return
    waiting = asyncio.ensure_future(around.jobs.wait(needs))
    try:
        while not waiting.done():
            if report := _first_open(needs, around):
                state = ShardState.INSTALLING if report.kind == "install" else ShardState.FETCHING
                tell(JobsWaiting(state=state, reason=progress(report)))
            await asyncio.wait({waiting}, timeout=LOOK_EVERY)
        await waiting
    except RetryError as wrong:
        tell(JobsFailed(error=str(wrong), retry=True))
    except LlmgwError as wrong:
        tell(JobsFailed(error=str(wrong)))
    else:
        tell(JobsDone())
    finally:
        waiting.cancel()


def to_wait_for(spec: LaunchSpec, around: Surroundings) -> tuple[JobId, ...]:
    """Jobs, perhaps done by now. One that nobody remembers any more is no obstacle when what it was to bring is there: old ones are dropped, and their
    files may break."""
    here = {digest[:BRINGS] for digest in _here(spec, around)}
    return tuple(
        job for job in spec.needs if around.jobs.state(job) is not None or job.rpartition("-")[2] not in here
    )


def _here(spec: LaunchSpec, around: Surroundings) -> Iterator[str]:
    """Digests of what lies on the node already."""
    if spec.engine and engine_of(spec, around.jobs) is not None:
        yield spec.engine
    if spec.weights and weights_of(spec, around.jobs) is not None:
        yield spec.weights
    for adapter in spec.lora.adapters if spec.lora is not None else ():
        if adapter_path(adapter, around.jobs) is not None:
            yield adapter.digest


def _first_open(needs: tuple[JobId, ...], around: Surroundings) -> JobReport | None:
    found = (around.jobs.state(job) for job in needs)
    return next(
        (report for report in found if report is not None and report.state != JobState.DONE.value), None
    )


def progress(report: JobReport) -> str:
    """What is done, and how much of it."""
    done = report.done_bytes // MIB
    if report.total_bytes:
        return f"{report.description}: {done} of {report.total_bytes // MIB} MiB"
    return f"{report.description}: {done} MiB" if done else report.description
