"""The fake transport breaks where a real one breaks, and carries the real agent's answers in between."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from llmgw.controller.nodes.memory import Cut, MemoryNode, MemoryTransport, Service
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import ShardId
from llmgw.model.manifest import NodeSpec
from llmgw.model.problems import (
    AgentError,
    NoAgentError,
    RetryError,
    StalledError,
    UnknownOutcomeError,
    Where,
)
from llmgw.model.report import Report
from llmgw.wire.messages import (
    FENCED,
    Accepted,
    LogLine,
    LogsParams,
    ReportParams,
    StartParams,
    StopParams,
    WatchEvent,
    WatchParams,
)
from tests.agent.agents import FLEET, Node, command, launch_spec

NODE = DesiredNode(
    name="n1", labels={}, spec=NodeSpec(transport="local"), address="127.0.0.1", where=Where(file="x")
)
START = StartParams(command=command("start"), spec=launch_spec())


class World:
    def __init__(self, **changes: Any) -> None:
        self.node = Node()
        self.machine = MemoryNode(start=self._start, **changes)
        self.points: list[str] = []
        self.transport = MemoryTransport(nodes={"n1": self.machine}, checkpoint=self._pass)

    async def _start(self, fleet: str) -> Service:
        return await self.node.agent()

    async def _pass(self, point: str) -> None:
        self.points.append(point)


def run(main: Callable[[World], Coroutine[Any, Any, None]], **changes: Any) -> None:
    async def whole() -> None:
        await asyncio.wait_for(main(World(**changes)), timeout=20)

    asyncio.run(whole())


def test_from_no_agent_over_bootstrap_to_a_command() -> None:
    async def main(world: World) -> None:
        with pytest.raises(NoAgentError):
            await world.transport.connect(NODE, fleet=FLEET)
        await world.transport.bootstrap(NODE, fleet=FLEET)
        link = await world.transport.connect(NODE, fleet=FLEET)
        accepted = await link.request("start", START, Accepted, timeout=5)
        assert accepted.shard is not None
        report = await link.request("report", ReportParams(), Report, timeout=5)
        assert report.shards == (accepted.shard,)
        assert world.points[-4:] == ["send:start", "answered:start", "send:report", "answered:report"]

    run(main)


def test_refusals_are_the_real_agents() -> None:
    async def main(world: World) -> None:
        await world.transport.bootstrap(NODE, fleet=FLEET)
        link = await world.transport.connect(NODE, fleet=FLEET)
        await link.request("start", START, Accepted, timeout=5)
        late = StopParams(command=command("late", serial=0), shard=ShardId("s"))
        with pytest.raises(AgentError) as caught:
            await link.request("stop", late, Accepted, timeout=5)
        assert caught.value.code == FENCED
        with pytest.raises(StalledError):
            await world.transport.connect(NODE, fleet="other")

    run(main)


@pytest.mark.parametrize("cut", list(Cut))
def test_a_cut_line_leaves_the_outcome_unknown_and_asking_again_settles_it(cut: Cut) -> None:
    async def main(world: World) -> None:
        await world.transport.bootstrap(NODE, fleet=FLEET)
        link = await world.transport.connect(NODE, fleet=FLEET)
        world.machine.cuts = [cut]
        with pytest.raises(UnknownOutcomeError):
            await link.request("start", START, Accepted, timeout=5)
        started = "start chat-1f0c9a2b-0.1-r0"
        assert world.node.shards.calls.count(started) == (1 if cut is Cut.AFTER else 0)
        with pytest.raises(RetryError, match="lost before it was sent"):
            await link.request("start", START, Accepted, timeout=5)
        again = await world.transport.connect(NODE, fleet=FLEET)
        assert (await again.request("start", START, Accepted, timeout=5)).shard is not None
        assert world.node.shards.calls.count(started) == 1

    run(main)


def test_a_machine_that_is_down_does_not_answer_and_its_lines_are_gone_when_it_is_back() -> None:
    async def main(world: World) -> None:
        await world.transport.bootstrap(NODE, fleet=FLEET)
        link = await world.transport.connect(NODE, fleet=FLEET)
        world.machine.go_down()
        for asking in (
            world.transport.connect(NODE, fleet=FLEET),
            world.transport.probe(NODE),
            world.transport.bootstrap(NODE, fleet=FLEET),
        ):
            with pytest.raises(RetryError):
                await asking
        world.machine.come_back()
        with pytest.raises(RetryError):
            await link.request("report", ReportParams(), Report, timeout=5)
        await world.transport.connect(NODE, fleet=FLEET)

    run(main)


def test_a_command_under_way_when_the_line_breaks_is_carried_out_all_the_same() -> None:
    async def main(world: World) -> None:
        await world.transport.bootstrap(NODE, fleet=FLEET)
        gate, arrived = asyncio.Event(), asyncio.Event()

        async def wait(point: str) -> None:
            if point == "agent:admitted:start":
                arrived.set()
                await gate.wait()

        world.machine.replace_agent(await world.node.agent(checkpoint=wait))
        link = await world.transport.connect(NODE, fleet=FLEET)
        asking = asyncio.ensure_future(link.request("start", START, Accepted, timeout=5))
        await arrived.wait()
        world.machine.break_lines()
        with pytest.raises(UnknownOutcomeError):
            await asking
        gate.set()
        again = await world.transport.connect(NODE, fleet=FLEET)
        assert (await again.request("start", START, Accepted, timeout=5)).shard is not None
        assert world.node.shards.calls.count("start chat-1f0c9a2b-0.1-r0") == 1

    run(main)


def test_a_slow_agent_is_an_unknown_outcome() -> None:
    async def main(world: World) -> None:
        await world.transport.bootstrap(NODE, fleet=FLEET)
        link = await world.transport.connect(NODE, fleet=FLEET)
        world.machine.delay = 5
        with pytest.raises(UnknownOutcomeError, match="no answer within"):
            await link.request("report", ReportParams(), Report, timeout=0.01)

    run(main)


def test_streams_carry_lines_and_break_with_the_line() -> None:
    async def main(world: World) -> None:
        world.node.shards.lines = ("one", "two")
        await world.transport.bootstrap(NODE, fleet=FLEET)
        link = await world.transport.connect(NODE, fleet=FLEET)
        logs = link.stream("logs", LogsParams(shard=ShardId("s")), LogLine)
        assert [line.text async for line in logs] == ["one", "two"]
        events = link.stream("watch", WatchParams(), WatchEvent)
        await anext(events)
        watching = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        world.machine.replace_agent(None)
        with pytest.raises(RetryError):
            await watching

    run(main)
