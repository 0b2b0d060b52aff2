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


async def launch(
    spec: LaunchSpec, around: Surroundings, started: Started, tell: Callable[[Event], None]
) -> None:
    """Tells Launched or LaunchRefused, exactly once."""
    try:
        used = await around.spawner.used(spec.shard)
        if used and (left := await around.spawner.remaining(spec.shard)):
            error = f"pid {left[0]} of an earlier start is left"
            tell(LaunchRefused(error=error, processes=True))
            return
        forbidden = around.rules.start(spec, await around.gpus.sample() if spec.claims.gpus else ())
        why = forbidden or await _mismatch(spec, around)
        if why:
            tell(LaunchRefused(error=f"mismatch: {why}", mismatch=True))
            return
        known = await _known(spec, around)
        for process in spec.processes:
            if not await _rendezvous(process, around, started, tell):
                return
            # A rendezvous may have taken minutes; before the first process everything is looked at once more.
            if process.wait_for and not started.running:
                why = await _mismatch(spec, around)
                if why:
                    tell(LaunchRefused(error=f"mismatch: {why}", mismatch=True))
                    return
            tell(Waiting(reason=f"starting {process.name}"))
            await started.spawn(_order(spec, process, around, known))
    except (LlmgwError, CodecError) as wrong:
        tell(LaunchRefused(error=str(wrong), processes=bool(started.running)))
        return
    tell(Launched())


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


async def _rendezvous(
    process: Process, around: Surroundings, started: Started, tell: Callable[[Event], None]
) -> bool:
    wait = process.wait_for
    if wait is None:
        return True
    tell(Waiting(reason=f"{process.name} waits for {wait.host}:{wait.port}"))
    if await _listens(wait, around):
        return True
    error = f"nothing has listened at {wait.host}:{wait.port} for {wait.timeout:.0f} s, where {process.name} must meet others"
    tell(LaunchRefused(error=error, processes=bool(started.running)))
    return False


async def _listens(wait: WaitFor, around: Surroundings) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + wait.timeout
    while True:
        if await around.probe.port_open(wait.host, wait.port, timeout=CONNECT_WITHIN):
            return True
        if loop.time() >= end:
            return False
        await asyncio.sleep(RENDEZVOUS_EVERY)
