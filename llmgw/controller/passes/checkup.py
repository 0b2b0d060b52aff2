"""A node's checkup: its own doctor asked over the usual way, and what only others can see of it: how long it takes to reach,
what the rest of the fleet runs, and whether its ports answer another node."""

import asyncio
from collections.abc import Mapping, Sequence

from llmgw import __version__
from llmgw.clock import Clock
from llmgw.controller.nodes.pastagent import PastAgent
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import AT_ONCE, NODE_TIMEOUT, observe_node
from llmgw.core.adapter import OpenPath
from llmgw.core.seen.cautions import LOOPBACK
from llmgw.core.seen.condition import ENDED
from llmgw.core.show.doctor import Examined, Knock, paths_to_ask
from llmgw.model.checkup import Checkup
from llmgw.model.desired import DesiredNode
from llmgw.model.problems import AgentError, LlmgwError
from llmgw.model.record import Record
from llmgw.model.report import NodeObservation, Reach, ShardReport
from llmgw.model.struct import Struct, replace
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import METHOD_NOT_FOUND, DoctorParams, Knocked, KnockParams

DOCTOR_TIMEOUT = 60.0
GREET_TIMEOUT = 10.0
KNOCK_TIMEOUT = 120.0
"""Seconds for all paths of one engine, each with its own few: one that hangs must not end the checkup."""
MAX_KNOCKS = 16


class Examination(Struct):
    """``open_paths`` are the engines' own, ``guarded`` one that each must refuse without its key. ``past`` an agent that does not
    answer there is its program."""

    nodes: Mapping[str, DesiredNode]
    record: Record
    links: Links
    clock: Clock
    open_paths: Mapping[str, Sequence[OpenPath]]
    guarded: str
    past: PastAgent

    async def of(self, node: DesiredNode) -> Examined:
        """Never raises for a node's sake."""
        seconds = await self._greet(node)
        seen = await observe_node(
            node, self.links, journal_after=_cursor(self.record, node), clock=self.clock, timeout=NODE_TIMEOUT
        )
        found = Examined(node=node, seen=seen, tool_version=__version__, seconds=seconds)
        if seen.reach is Reach.NO_AGENT:
            checkup, silence = await self._without_agent(node)
            return replace(found, checkup=checkup, silence=silence)
        if seen.reach is not Reach.OK:
            return found
        (checkup, silence), versions = await asyncio.gather(self._checkup(node), self._versions(node))
        found = replace(found, versions=versions, checkup=checkup, silence=silence)
        return replace(found, knocks=await self._knocks(node, seen, tuple(versions)))

    async def _greet(self, node: DesiredNode) -> float | None:
        """Seconds until the agent has greeted; None when it does not, which the observation explains."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(NODE_TIMEOUT):
                await self.links.to(node)
        except (LlmgwError, OSError, TimeoutError, CodecError):
            return None
        return loop.time() - begun

    async def _checkup(self, node: DesiredNode) -> tuple[Checkup | None, str]:
        """The node's own, or why there is none."""
        try:
            link = await self.links.to(node)
            return await link.request("doctor", DoctorParams(), Checkup, timeout=DOCTOR_TIMEOUT), ""
        except AgentError as refused:
            old = refused.code == METHOD_NOT_FOUND
            return None, f"its agent can't examine its node{' yet' if old else ''}: {refused}"
        except (LlmgwError, OSError) as wrong:
            return None, f"its agent gave no checkup: {wrong}"

    async def _without_agent(self, node: DesiredNode) -> tuple[Checkup | None, str]:
        """Of a machine that never had one nothing is said: that there is none stands for itself."""
        try:
            return await self.past.doctor(node), ""
        except (LlmgwError, OSError):
            return None, ""

    async def _versions(self, node: DesiredNode) -> Mapping[str, str]:
        """Of the other agents that answer: a checkup of one node waits for none of the others."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(other: DesiredNode) -> tuple[str, str] | None:
            try:
                async with gate, asyncio.timeout(GREET_TIMEOUT):
                    return other.name, (await self.links.to(other)).hello.agent_version
            except (LlmgwError, OSError, TimeoutError, CodecError):
                return None

        others = [other for other in self.nodes.values() if other.name != node.name]
        found = await asyncio.gather(*(one(other) for other in others))
        return dict(pair for pair in found if pair is not None)

    async def _knocks(
        self, node: DesiredNode, seen: NodeObservation, others: Sequence[str]
    ) -> tuple[Knock, ...]:
        """At every engine's port, and at the ends of the band: by another node, of the same pool if there is one; by the node
        itself where it is alone, or where nobody else can reach its address."""
        by = self._neighbour(node, others)
        shards = [
            shard
            for shard in (seen.report.shards if seen.report is not None else ())
            if shard.port is not None and shard.state not in ENDED
        ]
        knocks = [self._at_shard(by, shard) for shard in shards[:MAX_KNOCKS]]
        if by != node.name:
            taken = {knock.port for knock in knocks}
            band = node.spec.ports
            knocks += [
                Knock(by=by, port=port) for port in (band.from_port, band.to_port) if port not in taken
            ]
        return tuple([await self._knock(node, knock) for knock in knocks])

    def _neighbour(self, node: DesiredNode, others: Sequence[str]) -> str:
        if node.address in LOOPBACK or not others:
            return node.name
        pool = [name for name in others if self.nodes[name].spec.pool == node.spec.pool]
        return min(pool or others)

    def _at_shard(self, by: str, shard: ShardReport) -> Knock:
        replica = self.record.replicas.get(shard.replica)
        engine = replica.spec.profile.engine.name if replica is not None else ""
        return Knock(by=by, port=shard.port or 0, shard=shard.shard, engine=engine)

    async def _knock(self, node: DesiredNode, knock: Knock) -> Knock:
        known = self.open_paths.get(knock.engine, ())
        paths = paths_to_ask(known, guarded=self.guarded) if knock.shard else ()
        params = KnockParams(host=node.address, port=knock.port, paths=paths)
        try:
            link = await self.links.to(self.nodes[knock.by])
            return replace(knock, knocked=await link.request("knock", params, Knocked, timeout=KNOCK_TIMEOUT))
        except (LlmgwError, OSError) as wrong:
            return replace(knock, error=str(wrong))


def _cursor(record: Record, node: DesiredNode) -> int:
    known = record.nodes.get(node.name)
    return known.journal_cursor if known is not None else 0
