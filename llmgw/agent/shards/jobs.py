"""A shard waits for the jobs that bring its engine and weights."""

import asyncio
from collections.abc import Callable

from llmgw.agent.shards.checks import adapter_path, engine_of, weights_of
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import Event, JobsDone, JobsFailed, JobsWaiting
from llmgw.model.ids import JobId
from llmgw.model.launch import LaunchSpec
from llmgw.model.problems import LlmgwError, RetryError
from llmgw.model.report import JobReport, JobState, ShardState

LOOK_EVERY = 2.0
MIB = 1024**2


async def await_jobs(spec: LaunchSpec, around: Surroundings, tell: Callable[[Event], None]) -> None:
    """Tells JobsDone or JobsFailed, and meanwhile what it waits for."""
    needs = () if _all_here(spec, around) else spec.needs
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


def _all_here(spec: LaunchSpec, around: Surroundings) -> bool:
    """What the jobs were to bring is there; after an agent's restart nobody may remember the jobs themselves."""
    known = all(around.jobs.state(job) is None for job in spec.needs)
    engine = not spec.engine or engine_of(spec, around.jobs) is not None
    weights = not spec.weights or weights_of(spec, around.jobs) is not None
    adapters = spec.lora.adapters if spec.lora is not None and spec.lora.calls is None else ()
    loras = all(adapter_path(adapter, around.jobs) is not None for adapter in adapters)
    return known and engine and weights and loras and bool(spec.engine or spec.weights)


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
