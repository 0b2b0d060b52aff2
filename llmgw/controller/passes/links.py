"""The open connections of one command, by node: opened when first needed, shared, closed together."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from llmgw.controller.nodes.transport import Link, Transport
from llmgw.controller.passes.lookout import Lookout
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import FleetId
from llmgw.model.problems import LlmgwError, StalledError


class StrangerError(StalledError):
    """An agent that another fleet owns, which is left alone."""

    def __init__(self, message: str, *, owner: FleetId | None) -> None:
        super().__init__(message)
        self.owner = owner


class Links:
    """At most one connection a node. ``fleet`` None: not named yet, so that looking claims no node."""

    def __init__(self, transports: Mapping[str, Transport]) -> None:
        self.transports = transports
        self._open: dict[str, Link] = {}
        self._ways: dict[str, object] = {}
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.lookout = Lookout()
        self.fleet: FleetId | None = None
        self.whoever = False  # take an agent as it is, whichever fleet it belongs to: only to look

    async def to(self, node: DesiredNode) -> Link:
        """The connection to a node, opened if there is none, or if its manifest says another way by now. Raises what
        Transport.connect raises."""
        async with self._opening[node.name]:
            if self._ways.get(node.name) != way_of(node):
                await self.drop(node.name)
            link = self._open.get(node.name)
            if link is None:
                link = await self._transport(node).connect(node, fleet=self.fleet)
                if problem := self._stranger(node, link):
                    await link.close()
                    raise StrangerError(problem, owner=link.hello.fleet)
                self._open[node.name], self._ways[node.name] = link, way_of(node)
            return link

    def _stranger(self, node: DesiredNode, link: Link) -> str:
        owner = link.hello.fleet
        if owner is None or owner == self.fleet or self.whoever:
            return ""
        if self.fleet is None:
            return (
                f"node {node.name}: its agent belongs to fleet {owner}, and there is no record here: if a controller keeps it "
                "in another repository, name that (repo in llmgw.yaml); if it was lost, `llmgw recover` rebuilds it; else give "
                "the node a work directory of its own"
            )
        return (
            f"node {node.name}: its agent belongs to fleet {owner}, not to {self.fleet}: remove the node from one of "
            "the two fleets, or give it a work directory of its own"
        )

    async def drop(self, node: str, broken: Link | None = None) -> None:
        """Forget a connection; the next ``to`` opens another. Who has seen one break names it: several share it, and by the time
        that the last of them hears of it the others may be at work on the next one."""
        link = self._open.get(node)
        if link is not None and (broken is None or link is broken):
            del self._open[node]
            await _close(link)

    async def probe(self, node: DesiredNode) -> Facts:
        return await self._transport(node).probe(node)

    async def bootstrap(self, node: DesiredNode, *, fleet: FleetId) -> None:
        """Install, start or upgrade the node's agent; the next ``to`` reaches it."""
        await self.drop(node.name)
        await self._transport(node).bootstrap(node, fleet=fleet)

    async def close(self) -> None:
        await self.lookout.close()
        links, self._open = tuple(self._open.values()), {}
        await asyncio.gather(*(_close(link) for link in links))

    def _transport(self, node: DesiredNode) -> Transport:
        transport = self.transports.get(node.spec.transport)
        if transport is None:
            raise StalledError(
                f"node {node.name}: transport {node.spec.transport} is not supported here: "
                f"use one of {', '.join(sorted(self.transports))}"
            )
        return transport


def way_of(node: DesiredNode) -> object:
    """What decides where a connection to the node leads; the same for two manifests that differ in other things."""
    return node.spec.transport, node.spec.ssh, node.spec.local, node.spec.dirs.work


async def _close(link: Link) -> None:
    """A connection that can't even be closed is as gone as it can be."""
    try:
        await link.close()
    except (LlmgwError, OSError):
        return
