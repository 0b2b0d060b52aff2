"""From a standing order to running processes: the checks just before exec, late values, rendezvous, exec."""

import asyncio
from collections.abc import Callable, Mapping

from llmgw.agent.seams import Order
from llmgw.agent.shards import checks, late
from llmgw.agent.shards.started import Started
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import Event, Launched, LaunchRefused, Waiting
from llmgw.model.launch import LaunchSpec, Process, WaitFor
from llmgw.model.problems import LlmgwError, StalledError
from llmgw.wire.codec import CodecError

RENDEZVOUS_EVERY = 0.2
CONNECT_WITHIN = 2.0


async def prepare(spec: LaunchSpec, around: Surroundings) -> None:
    """What the first process needs before its order, beside whatever is to be done until then. Not for one that waits for
    others, which may be for minutes. Whoever prepares has to launch or to dismiss."""
    first = spec.processes[0]
    if first.wait_for is None:
        await around.spawner.prepare(spec.shard, first.name)


async def launch(
    spec: LaunchSpec, around: Surroundings, started: Started, tell: Callable[[Event], None]
) -> None:
    """Tells Launched or LaunchRefused, exactly once."""
    try:
        await prepare(spec, around)
        told = await _launch(spec, around, started, tell)
    except (LlmgwError, CodecError) as wrong:
        told = LaunchRefused(error=str(wrong), processes=bool(started.running))
    finally:
        await around.spawner.dismiss(spec.shard)
    tell(told)


async def _launch(
    spec: LaunchSpec, around: Surroundings, started: Started, tell: Callable[[Event], None]
) -> Launched | LaunchRefused:
    used = await around.spawner.used(spec.shard)
    if used and (left := await around.spawner.remaining(spec.shard)):
        return LaunchRefused(error=f"pid {left[0]} of an earlier start is left", processes=True)
    forbidden = around.rules.start(spec, await around.gpus.sample() if spec.claims.gpus else ())
    if why := forbidden or await _mismatch(spec, around):
        return LaunchRefused(error=f"mismatch: {why}", mismatch=True)
    known = await _known(spec, around)
    for process in spec.processes:
        if nobody := await _nobody_met(process, around, tell):
            return LaunchRefused(error=nobody, processes=bool(started.running))
        # A rendezvous may have taken minutes; before the first process everything is looked at once more.
        if process.wait_for and not started.running and (why := await _mismatch(spec, around)):
            return LaunchRefused(error=f"mismatch: {why}", mismatch=True)
        tell(Waiting(reason=f"starting {process.name}"))
        await started.spawn(_order(spec, process, around, known))
    return Launched()


async def _mismatch(spec: LaunchSpec, around: Surroundings) -> str | None:
    return await checks.mismatch(
        spec, gpus=around.gpus, node=around.node, jobs=around.jobs, spawner=around.spawner
    )


async def _known(spec: LaunchSpec, around: Surroundings) -> Mapping[str, str]:
    return late.values(
        spec,
        gpus=await around.gpus.sample() if spec.claims.gpus else (),
        engine=checks.engine_of(spec, around.jobs),
        weights=checks.weights_of(spec, around.jobs),
        home=str(around.settings.work / around.home(spec.shard)),
        secrets=await around.orders.secrets(spec.shard),
        adapters=checks.adapter_paths(spec, around.jobs),
    )


def _order(spec: LaunchSpec, process: Process, around: Surroundings, known: Mapping[str, str]) -> Order:
    try:
        filled = late.fill(process, known)
    except StalledError as wrong:
        raise StalledError(f"starting process {process.name} of shard {spec.shard}: {wrong}") from wrong
    return Order(
        shard=spec.shard,
        process=process.name,
        argv=filled.argv,
        env=filled.env,
        files=filled.files,
        directory=str(around.settings.work / around.home(spec.shard)),
        log=str(around.logs.path(spec.shard, process.name)),
        status_file=around.status_file(spec.shard, process),
        user=around.settings.engine_user,
    )


async def _nobody_met(process: Process, around: Surroundings, tell: Callable[[Event], None]) -> str:
    """Why the process can't meet those that it must; empty: it can, or needs nobody."""
    wait = process.wait_for
    if wait is None:
        return ""
    tell(Waiting(reason=f"{process.name} waits for {wait.host}:{wait.port}"))
    if await _listens(wait, around):
        return ""
    return f"nothing has listened at {wait.host}:{wait.port} for {wait.timeout:.0f} s, where {process.name} must meet others"


async def _listens(wait: WaitFor, around: Surroundings) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + wait.timeout
    while True:
        if await around.probe.port_open(wait.host, wait.port, timeout=CONNECT_WITHIN):
            return True
        if loop.time() >= end:
            return False
        await asyncio.sleep(RENDEZVOUS_EVERY)
