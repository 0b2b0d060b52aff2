"""Connections that outlive a pass: a node whose manifest says another way is reached by that one from then on."""

import asyncio
from dataclasses import replace

import pytest

from llmgw.controller.passes.links import Links
from llmgw.controller.serving.reach import KeptLinks
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import Local
from llmgw.model.problems import RetryError
from tests.controller.passes.doubles import Script, ScriptedTransport, node, transports


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
