"""Whether an engine that does not answer still works. A long prompt or a compilation may keep it from answering for
minutes, and nothing healthy is ever killed; one that answers nothing and does nothing is dead."""

import asyncio

from llmgw.agent.shards.surroundings import Surroundings
from llmgw.model.launch import LaunchSpec
from llmgw.model.struct import Struct

BUSY_SHARE = 0.1
"""Of one core, over the time looked at: below that a process only turns over, above it computes."""
BUSY_AT_MOST = 300.0
"""Seconds that CPU time alone is believed: a collective that hangs spins for ever."""


class Look(Struct):
    """``at`` in the loop's time."""

    at: float
    cpu: float
    in_flight: float | None


async def look(spec: LaunchSpec, around: Surroundings, key: str | None) -> Look:
    """Where it is at. Costs a search of /proc, and is only done for one that does not answer."""
    probes, in_flight = spec.probes, None
    if probes.in_flight is not None and probes.port is not None:
        in_flight = await around.probe.in_flight(
            probes.host, probes.port, probes.in_flight, key=key, timeout=spec.timeouts.health_request
        )
    cpu = await around.spawner.cpu_seconds(spec.shard)
    return Look(at=asyncio.get_running_loop().time(), cpu=cpu, in_flight=in_flight)


def between(first: Look, before: Look, now: Look) -> str:
    """What it has done since ``before``, for people; empty: nothing. ``first``: when it first did not answer."""
    if now.in_flight is not None and before.in_flight is not None and now.in_flight != before.in_flight:
        return f"its requests move: {before.in_flight:.0f} were in flight, {now.in_flight:.0f} are"
    seconds = now.at - before.at
    used = now.cpu - before.cpu
    if used >= BUSY_SHARE * seconds and now.at - first.at < BUSY_AT_MOST:
        return f"it computes: {used:.1f} s of CPU time in {seconds:.0f} s"
    return ""


def idle(first: Look, before: Look, now: Look) -> str:
    """Why that is no progress, for people."""
    seconds, used = now.at - before.at, now.cpu - before.cpu
    if used >= BUSY_SHARE * seconds:
        return f"it has only spun since, for {now.at - first.at:.0f} s"
    return f"it used {used:.1f} s of CPU time in {seconds:.0f} s"
