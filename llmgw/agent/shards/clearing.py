"""The end of a shard's processes, whatever brought it: ask, wait, kill, look whether anything is left, and whether the
GPUs have their memory back."""

import asyncio
import signal
from collections.abc import Callable

from llmgw.agent.shards.computing import IDLE_MEMORY
from llmgw.agent.shards.started import Started
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import Event, Gone, SurvivedKill
from llmgw.core.lifecycle import GPU_RETURN
from llmgw.model.facts import Gpu
from llmgw.model.launch import ENGINE, LaunchSpec

LOOK_EVERY = 0.1
GPU_EVERY = 1.0
SHIM_WITHIN = 6.0
"""Seconds that a shim may need to kill what its engine left, after the engine's own end."""
NOT_VERIFIABLE = "memory-not-verifiable"


async def clear(
    spec: LaunchSpec, around: Surroundings, started: Started, tell: Callable[[Event], None]
) -> None:
    """Tells Gone or SurvivedKill. Can be cut off anywhere and begun again."""
    await started.settle()
    await _ask_to_end(spec, around, started)
    found = await around.spawner.remaining(spec.shard)
    seen = set(found)
    left = await _kill_what_is_left(found, spec, around)
    if left:
        tell(SurvivedKill(who=f"{await around.spawner.describe(left)} of shard {spec.shard}"))
        return
    started.forget()
    returned = await _memory_returned(spec, around, seen)
    tell(Gone(note="" if returned else NOT_VERIFIABLE))


async def _ask_to_end(spec: LaunchSpec, around: Surroundings, started: Started) -> None:
    """The engine first: its sidecars may be what it needs to end well."""
    sidecars = {process.name for process in spec.processes} - {ENGINE}
    for names in ({ENGINE}, sidecars):
        running = [one for one in started.running if one.process in names]
        for one in running:
            await around.spawner.signal(one, signal.SIGTERM)
        if running and not await started.ended_within({one.process for one in running}, spec.timeouts.stop):
            for one in running:
                await around.spawner.signal(one, signal.SIGKILL)
            await started.ended_within({one.process for one in running}, spec.timeouts.kill)


async def _kill_what_is_left(
    left: tuple[int, ...], spec: LaunchSpec, around: Surroundings
) -> tuple[int, ...]:
    """Pids of ``left`` and after that live on. A shim at its own clearing up is given time first (one that is stopped never gets there);
    everything else is killed at once."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        waited = loop.time() - begun
        if not left or waited >= SHIM_WITHIN + spec.timeouts.kill:
            return left
        await around.spawner.kill_remaining(spec.shard, shims=waited >= SHIM_WITHIN)
        await asyncio.sleep(LOOK_EVERY)
        left = await around.spawner.remaining(spec.shard)


async def _memory_returned(spec: LaunchSpec, around: Surroundings, seen: set[int]) -> bool:
    claimed = {claim.uuid: claim.memory for claim in spec.claims.gpus}
    if not claimed:
        return True
    loop = asyncio.get_running_loop()
    end = loop.time() + GPU_RETURN
    while True:
        gpus = [gpu for gpu in await around.gpus.sample() if gpu.uuid in claimed]
        held = any(_still_held(gpu, spec.shard, seen, whole=claimed[gpu.uuid] is None) for gpu in gpus)
        if not held and len(gpus) == len(claimed):  # of a GPU that can't be seen nothing is known
            return True
        if loop.time() >= end:
            return False
        await asyncio.sleep(GPU_EVERY)


def _still_held(gpu: Gpu, shard: str, seen: set[int], *, whole: bool) -> bool:
    if any(process.shard == shard or process.pid in seen for process in gpu.processes):
        return True
    # Nobody is named, and yet the memory is gone: the driver is still giving it back.
    return whole and not gpu.processes and gpu.memory_used > IDLE_MEMORY
