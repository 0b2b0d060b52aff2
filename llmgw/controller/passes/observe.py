"""Ask every node what it is and what runs there: all at once, each bounded, none able to hide the others."""

import asyncio
from collections.abc import Mapping

from llmgw.controller.passes.links import Links
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


async def observe(
    nodes: Mapping[str, DesiredNode], record: Record | None, links: Links, *, timeout: float = NODE_TIMEOUT
) -> Observed:
    """What one pass learns. Never raises for a node: its error stands in its observation."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(node: DesiredNode) -> NodeObservation:
        known = record.nodes.get(node.name) if record else None
        async with gate:
            return await observe_node(
                node, links, journal_after=known.journal_cursor if known else 0, timeout=timeout
            )

    seen = await asyncio.gather(*(one(node) for node in nodes.values()))
    return Observed(nodes={observation.node: observation for observation in seen})


async def observe_node(
    node: DesiredNode, links: Links, *, journal_after: int, timeout: float
) -> NodeObservation:
    """One node: its agent's report, else facts without an agent, else why nothing is known."""
    try:
        async with asyncio.timeout(timeout):
            try:
                report = await _report(node, links, journal_after, timeout)
            except NoAgentError as missing:
                facts = await _facts(node, links)
                return NodeObservation(node=node.name, reach=Reach.NO_AGENT, facts=facts, error=str(missing))
    except TimeoutError:
        await links.drop(node.name)
        error = (
            f"node {node.name}: no answer within {timeout:g} s: is the machine up and the agent not stuck?"
        )
    except (LlmgwError, OSError, CodecError) as failed:
        error = str(failed)
    else:
        return NodeObservation(node=node.name, reach=Reach.OK, facts=report.facts, report=report)
    return NodeObservation(node=node.name, reach=Reach.UNREACHABLE, error=error)


async def _report(node: DesiredNode, links: Links, journal_after: int, timeout: float) -> Report:
    report = await _ask(node, links, journal_after, timeout)
    if report.journal_last < journal_after:  # the agent began a new journal: its numbers mean other things
        report = await _ask(node, links, 0, timeout)
    return report


async def _ask(node: DesiredNode, links: Links, journal_after: int, timeout: float) -> Report:
    """Ask; a connection kept from an earlier pass may be dead, so a broken one is opened again once."""
    params = ReportParams(journal_after=journal_after)
    link = await links.to(node)
    try:
        return await link.request("report", params, Report, timeout=timeout)
    except RetryError:
        await links.drop(node.name)
        link = await links.to(node)
        return await link.request("report", params, Report, timeout=timeout)


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
