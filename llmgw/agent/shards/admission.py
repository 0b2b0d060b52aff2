"""Whether a start is let in: by the machine's own rules, beside what is live, and by the disk, which must hold its order
before anything runs."""

import asyncio
from collections.abc import Mapping

from llmgw.agent.shards import claims, launching
from llmgw.agent.shards.orders import StoredOrder
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import Action, Adopted, Ordered
from llmgw.core.lifecycle import rules_of, step
from llmgw.model.claims import Claims
from llmgw.model.launch import LaunchSpec
from llmgw.model.problems import AgentError, StalledError
from llmgw.model.struct import replace
from llmgw.wire.messages import CONFLICT, NO_SPACE, POLICY


async def allow(spec: LaunchSpec, held: Mapping[str, Claims], around: Surroundings) -> None:
    """``held``: what live shards claim, by name. Raises AgentError."""
    gpus = await around.gpus.sample() if spec.claims.gpus else ()
    if forbidden := around.rules.start(spec, gpus):
        raise AgentError(f"starting shard {spec.shard}: {forbidden}", code=POLICY)
    total = await around.node.memory_total() if spec.claims.memory else 0
    total = max(total - around.rules.memory_kept(), 1) if total else 0
    if why := claims.conflict(spec.claims, held, gpus=gpus, memory_total=total):
        raise AgentError(f"starting shard {spec.shard}: {why}", code=CONFLICT)


async def write(
    order: StoredOrder, first: Ordered | Adopted, secrets: Mapping[str, str], around: Surroundings
) -> None:
    """Before anything starts, with what the ``first`` event makes of it: nothing more is written until a process runs. What a
    process needs before its order is begun beside it. Raises AgentError when the disk refuses."""
    spec = order.spec
    life, actions = step(order.life, first, around.clock.now(), rules_of(spec))
    if Action.LAUNCH in actions:
        await launching.prepare(spec, around)
    try:
        await around.orders.save_first(replace(order, life=life), secrets)
    except StalledError as wrong:
        await around.spawner.dismiss(spec.shard)
        told = f"starting shard {spec.shard}: {wrong}: nothing was started"
        raise AgentError(told, code=NO_SPACE) from wrong
    except asyncio.CancelledError:
        await around.spawner.dismiss(spec.shard)
        raise
