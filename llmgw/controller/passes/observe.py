"""Ask every node what it is and what runs there: all at once, each bounded, none able to hide the others."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from llmgw.clock import Clock
from llmgw.controller.nodes.transport import Link
from llmgw.controller.passes.links import Links, StrangerError
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.problems import LlmgwError, NoAgentError, RetryError
from llmgw.model.record import Record
from llmgw.model.report import NodeObservation, Observed, Reach, Report
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import ReportParams

AT_ONCE = 32
"""Connections opened at the same time: a controller's file descriptors and a jump host's limits, not speed."""
NODE_TIMEOUT = 20.0
"""Seconds for one node to connect and report; a healthy one needs less than one."""
TOO_SLOW = 4.0
"""Seconds on the way there and back from which a report says nothing of the node's clock: it may be wrong by half."""


async def observe(
    nodes: Mapping[str, DesiredNode],
    record: Record | None,
    links: Links,
    *,
    clock: Clock,
    timeout: float = NODE_TIMEOUT,
) -> Observed:
    """What one pass learns. Never raises for a node: its error stands in its observation."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(node: DesiredNode) -> NodeObservation:
        known = record.nodes.get(node.name) if record else None
        async with gate:
            asked = partial(
                observe_node,
                node,
                links,
                journal_after=known.journal_cursor if known else 0,
                clock=clock,
                timeout=timeout,
            )
            return await links.lookout.ask(node.name, asked)

    seen = await asyncio.gather(*(one(node) for node in nodes.values()))
    return Observed(nodes={observation.node: observation for observation in seen})


async def observe_node(
    node: DesiredNode, links: Links, *, journal_after: int, clock: Clock, timeout: float
) -> NodeObservation:
    """One node: its agent's report, else facts without an agent, else why nothing is known."""
    asker = _Asker(node, links, clock, timeout)
    owner = None
    try:
        async with asyncio.timeout(timeout):
            try:
                report, skew = await asker.report(journal_after)
            except NoAgentError as missing:
                facts = await _facts(node, links)
                return NodeObservation(node=node.name, reach=Reach.NO_AGENT, facts=facts, error=str(missing))
    except TimeoutError:
        error = f"node {node.name}: {asker.silent_for(timeout)}"
    except StrangerError as stranger:
        owner, error = stranger.owner, str(stranger)
    except (LlmgwError, OSError, CodecError) as failed:
        error = str(failed)
    else:
        return NodeObservation(node=node.name, reach=Reach.OK, facts=report.facts, report=report, skew=skew)
    return NodeObservation(node=node.name, reach=Reach.UNREACHABLE, error=error, owner=owner)


@dataclass(slots=True)
class _Asker:
    """Asks one node for its report. ``connected``: its agent has greeted."""

    node: DesiredNode
    links: Links
    clock: Clock
    timeout: float
    connected: bool = False

    def silent_for(self, seconds: float) -> str:
        if self.connected:
            return (
                f"connected, but its agent does not answer within {seconds:g} s: it hangs, or its machine is overloaded: see "
                f"`llmgw node doctor {self.node.name}`"
            )
        return f"no connection to its agent within {seconds:g} s: is the machine up, and the network between?"

    async def report(self, journal_after: int) -> tuple[Report, float | None]:
        """With what it says of the node's clock."""
        report, skew = await self._persistently(journal_after)
        if (
            report.journal_last < journal_after
        ):  # the agent began a new journal: its numbers mean other things
            report, skew = await self._persistently(0)
        return report, skew

    async def _persistently(self, journal_after: int) -> tuple[Report, float | None]:
        """A connection kept from an earlier pass may be dead, so a broken one is opened again once."""
        link = await self._link()
        try:
            return await self._ask(link, journal_after)
        except RetryError:
            return await self._ask(await self._link(), journal_after)

    async def _link(self) -> Link:
        link = await self.links.to(self.node)
        self.connected = True
        return link

    async def _ask(self, link: Link, journal_after: int) -> tuple[Report, float | None]:
        loop = asyncio.get_running_loop()
        sent = loop.time()
        params = ReportParams(journal_after=journal_after)
        try:
            report = await link.request("report", params, Report, timeout=self.timeout)
        except (RetryError, asyncio.CancelledError):  # also when it takes longer than its node may
            await self.links.drop(self.node.name, link)
            raise
        on_its_way = max(loop.time() - sent - report.took, 0.0)
        return report, _skew(report.at, self.clock.now(), on_its_way)


def _skew(told: datetime, now: datetime, on_its_way: float) -> float | None:
    """Seconds that the node's clock is ahead, as if its answer had needed half of what was spent on the way."""
    if on_its_way > TOO_SLOW:
        return None
    return (told - now).total_seconds() + on_its_way / 2


async def _facts(node: DesiredNode, links: Links) -> Facts | None:
    """Facts of a machine without an agent; None when they can only be known after bootstrap."""
    try:
        return await links.probe(node)
    except (LlmgwError, OSError):
        return node.pretended


def unasked(nodes: Mapping[str, DesiredNode], record: Record | None) -> Observed:
    """What an offline plan knows: the facts of the record, or pretended ones."""

    def facts_of(node: DesiredNode) -> Facts | None:
        known = record.nodes.get(node.name) if record else None
        return (known.facts if known else None) or node.pretended

    return Observed(
        nodes={
            node.name: NodeObservation(node=node.name, reach=Reach.NOT_ASKED, facts=facts_of(node))
            for node in nodes.values()
        }
    )
