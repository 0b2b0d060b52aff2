"""Connections that outlive a pass: a node whose manifest says another way is reached by that one from then on."""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any, TypeVar

import pytest

from llmgw.controller.nodes.transport import Link
from llmgw.controller.passes.links import Links
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.reach import KeptLinks
from llmgw.controller.serving.streams import Streams
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import Local
from llmgw.model.problems import RetryError
from llmgw.model.struct import replace
from tests.controller.passes.doubles import Script, ScriptedLink, ScriptedTransport, node, transports

T = TypeVar("T")


def moved(there: DesiredNode) -> DesiredNode:
    return replace(there, spec=replace(there.spec, local=Local(work_dir="/elsewhere")))


def test_another_way_in_the_manifest_is_another_connection_and_other_changes_are_not() -> None:
    async def main() -> None:
        transport = ScriptedTransport(Script("gpu01"))
        links = Links(transports(transport))
        first = await links.to(node("gpu01"))
        cordoned = replace(node("gpu01"), spec=replace(node("gpu01").spec, cordon=True))
        assert await links.to(cordoned) is first
        second = await links.to(moved(cordoned))
        assert second is not first
        assert [link.closed for link in transport.links] == [True, False]
        await links.close()
        assert transport.links[1].closed

    asyncio.run(main())


def test_a_late_failure_of_a_dead_connection_leaves_the_one_that_took_its_place_alone() -> None:
    """Of two that shared one, the first to notice opened another, and the second closed that under a command in flight."""

    async def main() -> None:
        transport = ScriptedTransport(Script("gpu01"))
        links = Links(transports(transport))
        dead = await links.to(node("gpu01"))
        await links.drop("gpu01", dead)
        fresh = await links.to(node("gpu01"))
        await links.drop("gpu01", dead)
        assert await links.to(node("gpu01")) is fresh
        assert [link.closed for link in transport.links] == [True, False]
        await links.drop("gpu01")
        assert await links.to(node("gpu01")) is not fresh
        await links.close()

    asyncio.run(main())


def test_a_node_known_to_be_out_of_reach_is_not_waited_for_until_somebody_finds_it_or_it_moves() -> None:
    async def main() -> None:
        transport = ScriptedTransport(Script("gpu01"))
        links = KeptLinks(transports(transport))
        there = node("gpu01")
        links.lost(there, RetryError("it does not answer"))
        with pytest.raises(RetryError, match="it does not answer"):
            await links.to(there)
        assert transport.links == []
        assert await links.to(moved(there)) is transport.links[0]
        assert await links.again(there) is transport.links[1]
        links.found("gpu01")
        assert await links.to(there) is transport.links[1]
        await links.close()

    asyncio.run(main())


class _Breaking(ScriptedTransport):
    """Streams begin, and break when they are told to."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self.broken = asyncio.Event()

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        await super().connect(node, fleet=fleet)
        self.links[-1] = _BreakingLink(self.scripts[node.name], self.broken)
        return self.links[-1]


class _BreakingLink(ScriptedLink):
    def __init__(self, script: Script, broken: asyncio.Event) -> None:
        super().__init__(script)
        self._broken = broken

    async def stream(self, method: str, params: Any, item: type[T]) -> AsyncIterator[T]:
        yield item()
        await self._broken.wait()
        raise RetryError("the line was lost")


def test_a_stream_that_breaks_late_leaves_the_connection_that_passes_have_opened_since_alone() -> None:
    async def main() -> None:
        transport, hints = _Breaking(Script("gpu01")), Hints()
        links = KeptLinks(transports(transport))
        streams = Streams(links, hints, rng=Random(1))
        await streams.follow({"gpu01": node("gpu01")})
        async with asyncio.timeout(30):
            await hints.wait()
            assert "is watched" in hints.take().text
            await links.drop("gpu01", transport.links[0])
            await links.to(node("gpu01"))
            transport.broken.set()
            await hints.wait()
            assert "stream of node gpu01 ended" in hints.take().text
        assert [link.closed for link in transport.links] == [True, False]
        await streams.close()
        await links.close()

    asyncio.run(main())
