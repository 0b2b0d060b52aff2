"""Asks the engines on the nodes, by their own help, whether they know every flag that profiles could come to. Starts no engine
and changes nothing.
"""

import asyncio
from collections.abc import Sequence

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import AT_ONCE, NODE_TIMEOUT, observe_node
from llmgw.core.adapter import EngineAdapter, NodeContext
from llmgw.core.enginecheck.result import Checked, Need, Token
from llmgw.core.enginecheck.verdict import engine_on, judge
from llmgw.core.moves.flags import engine_name
from llmgw.core.place.candidates import breaks_rules_of
from llmgw.engines.widest import AS_ASKED, launches, shapes
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.facts import EngineFact
from llmgw.model.problems import AgentError, LlmgwError, StalledError
from llmgw.model.report import NodeObservation, Reach, ShardReport, ShardState
from llmgw.model.struct import Struct, replace
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import METHOD_NOT_FOUND, Helped, HelpParams, Tokened, TokenParams

ASK_AGAIN = 1.0
GRACE = 60.0
"""Seconds beyond the time that a program has: others may be asked before it."""
DEVICES_TIMEOUT = 240.0
TOKEN_TIMEOUT = 150.0


class EngineCheck(Struct):
    """``token``: also have a ready replica of each profile compute one token. ``ask_again``: seconds between two looks whether
    a help has been read."""

    fleet: Fleet
    desired: Desired
    links: Links
    token: bool = False
    ask_again: float = ASK_AGAIN

    async def of(self, profiles: Sequence[str], nodes: Sequence[str]) -> tuple[Checked, ...]:
        """Each profile on each of the nodes where one of its models may run. Never raises for a node's sake."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def on(node: DesiredNode) -> list[Checked]:
            async with gate:
                return await self._on(node, profiles)

        found = await asyncio.gather(*(on(self.desired.nodes[name]) for name in nodes))
        return tuple(sorted((each for part in found for each in part), key=lambda it: (it.profile, it.node)))

    async def _on(self, node: DesiredNode, profiles: Sequence[str]) -> list[Checked]:
        wanted = {name: self._models(name, node) for name in profiles}
        wanted = {name: models for name, models in wanted.items() if models}
        if not wanted:
            return []
        seen = await observe_node(
            node, self.links, journal_after=0, clock=self.fleet.clock, timeout=NODE_TIMEOUT
        )
        return [await self._check(node, seen, name, models) for name, models in wanted.items()]

    def _models(self, profile: str, node: DesiredNode) -> list[DesiredModel]:
        """Those with the profile that may run there."""
        every = self.desired.models.values()
        return [
            model
            for model in every
            if model.profile_name == profile and not breaks_rules_of(node, model.spec.placement)
        ]

    async def _check(
        self, node: DesiredNode, seen: NodeObservation, profile: str, models: list[DesiredModel]
    ) -> Checked:
        first = models[0]
        adapter = self.fleet.adapters[first.profile.engine.name]
        context = NodeContext(name=node.name, spec=node.spec, facts=seen.facts)
        checked = Checked(profile=profile, node=node.name, engine=engine_name(first))
        if seen.reach is not Reach.OK:
            return replace(checked, failed=seen.error or "nobody could ask it")
        install = adapter.install(first, context, self.desired.fleet.pip)
        digest = install.digest if install is not None else None
        path = None if digest is not None else first.profile.engine.path
        engine = engine_on(seen.facts, digest=digest, path=path)
        if engine is not None or path is not None:
            helped, failed = await self._asked(node, adapter, first, digest=digest, path=path)
            engine, checked = helped.engine or engine, replace(checked, devices=helped.devices, failed=failed)
        checked = _judged(checked, adapter, models, context, engine, self.desired)
        if self.token:
            checked = replace(checked, token=await self._token(node, seen, profile))
        return checked

    async def _asked(
        self,
        node: DesiredNode,
        adapter: EngineAdapter,
        model: DesiredModel,
        *,
        digest: str | None,
        path: str | None,
    ) -> tuple[Helped, str]:
        """What the engine there says, or why it says nothing."""
        spec = adapter.help(model)
        if spec is None:
            return Helped(), ""
        params = HelpParams(name=model.profile.engine.name, spec=spec, digest=digest, path=path, devices=True)
        try:
            async with asyncio.timeout(spec.timeout + GRACE):
                link = await self.links.to(node)
                while True:
                    helped = await link.request("help", params, Helped, timeout=DEVICES_TIMEOUT)
                    if helped.engine is not None:
                        return helped, ""
                    await asyncio.sleep(self.ask_again)
        except TimeoutError:
            return Helped(), f"its help was not read within {spec.timeout + GRACE:.0f} s: try again"
        except AgentError as wrong:
            old = wrong.code == METHOD_NOT_FOUND
            return Helped(), "its agent can't ask engines yet: upgrade it" if old else str(wrong)
        except (LlmgwError, OSError, CodecError) as wrong:
            return Helped(), str(wrong)

    async def _token(self, node: DesiredNode, seen: NodeObservation, profile: str) -> Token:
        shard = _ready(seen, profile)
        if shard is None:
            return Token(untold="no replica of it is ready there: apply starts them")
        try:
            link = await self.links.to(node)
            params = TokenParams(shard=shard.shard)
            tokened = await link.request("token", params, Tokened, timeout=TOKEN_TIMEOUT)
        except (LlmgwError, OSError, CodecError) as wrong:
            return Token(shard=shard.shard, untold=str(wrong))
        return Token(
            shard=shard.shard,
            wrong=tokened.wrong,
            took=tokened.took,
            on=tokened.computes_on,
            claims_gpus=bool(shard.claims.gpus),
        )


def chosen(desired: Desired, profile: str | None) -> tuple[str, ...]:
    """The profiles to check, by name. StalledError when no model uses the one that is asked for."""
    used = sorted({model.profile_name for model in desired.models.values()})
    if profile is None:
        return tuple(used)
    if profile not in used:
        raise StalledError(
            f"no model uses a profile {profile}, so no command line comes of it; used are: {', '.join(used) or 'none'}"
        )
    return (profile,)


def _ready(seen: NodeObservation, profile: str) -> ShardReport | None:
    shards = seen.report.shards if seen.report is not None else ()
    ready = (shard for shard in shards if shard.state == ShardState.READY.value and not shard.rank)
    return next((shard for shard in ready if shard.profile == profile), None)


def _judged(
    checked: Checked,
    adapter: EngineAdapter,
    models: Sequence[DesiredModel],
    context: NodeContext,
    engine: EngineFact | None,
    desired: Desired,
) -> Checked:
    """Every shape of every model against what the engine knows. A flag counts for the first that needs it; those that models
    need as they are come before those that they would need."""
    spec = adapter.help(models[0])
    needs: dict[str, Need] = {}
    every = [(model, shape) for model in models for shape in shapes(model, adapter)]
    every.sort(key=lambda pair: pair[1].what != AS_ASKED)
    for model, shape in every:
        there = launches(shape, adapter, context, desired.fleet.pip)
        verdict = judge(spec, there, engine=engine, name=checked.engine, node=checked.node)
        checked = replace(checked, untold=verdict.untold, elsewhere=verdict.elsewhere)
        for unknown in verdict.unknown:
            needs.setdefault(unknown.flag, Need(unknown=unknown, model=model.name, only_with=shape.what))
    known = len(engine.flags) if engine is not None and engine.flags is not None else 0
    return replace(checked, needs=tuple(needs.values()), known=known, asked=len(every))
