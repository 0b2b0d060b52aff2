"""Whether a start is let in: by the machine's own rules, beside what is live, and by the disk, which must hold its order
before anything runs."""

from collections.abc import Mapping

from llmgw.agent.shards import claims
from llmgw.agent.shards.orders import StoredOrder
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.model.claims import Claims
from llmgw.model.launch import LaunchSpec
from llmgw.model.problems import AgentError, StalledError
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


async def write(order: StoredOrder, secrets: Mapping[str, str], around: Surroundings) -> None:
    """Before anything starts. Raises AgentError when the disk refuses."""
    shard = order.spec.shard
    try:
        await around.orders.save_secrets(shard, secrets)
        await around.orders.save(order)
    except StalledError as wrong:
        raise AgentError(f"starting shard {shard}: {wrong}: nothing was started", code=NO_SPACE) from wrong
