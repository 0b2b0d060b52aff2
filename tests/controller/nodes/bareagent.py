"""Talking to the agent of a bare machine."""

import asyncio
from collections.abc import Callable

from llmgw.model.ids import ShardId
from llmgw.model.report import Report, ShardReport
from llmgw.model.struct import replace
from llmgw.wire.messages import Accepted, ReportParams, StartParams, StopParams
from tests.agent.agents import command
from tests.agent.processes import engine_spec, free_port
from tests.controller.nodes.barehost import WORK, BareHost, link


async def report(host: BareHost, work: str = WORK) -> Report:
    connection = await link(host, work=work)
    try:
        return await connection.request("report", ReportParams(), Report, timeout=20)
    finally:
        await connection.close()


async def shard_when(host: BareHost, condition: Callable[[ShardReport], object]) -> ShardReport:
    end = asyncio.get_running_loop().time() + 30
    while True:
        shards = (await report(host)).shards
        if shards and condition(shards[0]):
            return shards[0]
        assert asyncio.get_running_loop().time() < end, f"never came true: {shards}"
        await asyncio.sleep(0.05)


async def start_engine(host: BareHost) -> ShardReport:
    """A shard run by the machine's own Python, once it is ready."""
    made = engine_spec(free_port())
    process = replace(made.processes[0], argv=("/usr/bin/python3", *made.processes[0].argv[1:]))
    connection = await link(host)
    params = StartParams(command=command("start"), spec=replace(made, processes=(process,)))
    await connection.request("start", params, Accepted, timeout=20)
    await connection.close()
    return await shard_when(host, lambda shard: shard.state == "ready")


async def stop_engine(host: BareHost, shard: str) -> None:
    connection = await link(host)
    await connection.request(
        "stop", StopParams(command=command("stop"), shard=ShardId(shard)), Accepted, timeout=20
    )
    await connection.close()
    await shard_when(host, lambda shard: shard.state == "stopped")
