"""The real Examiner: looks at this machine and puts every check together."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from llmgw.agent.doctor import looking
from llmgw.agent.doctor.checks import Seen, checks
from llmgw.agent.doctor.knocking import knock
from llmgw.agent.seams import Rules
from llmgw.agent.settings import Layout
from llmgw.model.checkup import Checkup
from llmgw.model.facts import Facts
from llmgw.model.report import Report
from llmgw.model.struct import Struct, replace
from llmgw.wire.messages import Knocked, KnockParams
from llmgw.wire.setup import AgentSettings

ENDED = frozenset({"stopped", "failed"})


class NodeExaminer(Struct):
    """``strays`` tells the shards, not among those given, of which processes live."""

    places: Layout
    settings: AgentSettings
    rules: Rules
    policy: Path
    strays: Callable[[frozenset[str]], Awaitable[tuple[str, ...]]]

    async def examine(self, report: Report) -> Checkup:
        ordered = frozenset(str(shard.shard) for shard in report.shards if shard.state not in ENDED)
        return await self._checkup(report.facts, ordered, report=report)

    async def without_agent(self, facts: Facts, *, ordered: frozenset[str], silence: str) -> Checkup:
        """As far as one comes when no agent answers. ``ordered``: shards that have orders on disk."""
        return await self._checkup(facts, ordered, silence=silence)

    async def knock(self, params: KnockParams) -> Knocked:
        return await knock(params)

    async def _checkup(
        self, facts: Facts, ordered: frozenset[str], *, report: Report | None = None, silence: str = ""
    ) -> Checkup:
        looks = await asyncio.to_thread(looking.look, self.places, engine_user=self.settings.engine_user)
        seen = Seen(
            node=self.settings.node,
            work=str(self.places.work),
            settings=self.settings,
            facts=replace(facts, policy=self.rules.facts()),
            looks=looks,
            policy=str(self.policy),
            report=report,
            silence=silence,
            strays=await self.strays(ordered),
        )
        return Checkup(checks=checks(seen))
