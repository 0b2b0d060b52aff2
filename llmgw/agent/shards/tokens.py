"""One token of a ready shard, and what its processes compute on right after it. What an engine says of itself proves neither:
llama.cpp tells of layers on GPUs where there is no GPU."""

import asyncio

from llmgw.agent.shards.readiness import TOKEN_WITHIN, wrong_with
from llmgw.agent.shards.supervisor import Shard
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.model.problems import AgentError
from llmgw.model.report import ShardState
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import CONFLICT, Tokened


async def one_token(shard: Shard, around: Surroundings) -> Tokened:
    """Raises AgentError when the shard is in no state to be asked."""
    spec = shard.spec
    probe, port = spec.probes.token, spec.probes.port
    if shard.life.state is not ShardState.READY:
        raise _refused(shard, f"it is {shard.life.state.value} ({shard.life.reason}): wait until it is ready")
    if probe is None or port is None:
        raise _refused(
            shard, "it serves nothing that could be asked for one: ask rank 0 of a model with a task"
        )
    try:
        key = (await around.orders.secrets(spec.shard)).get("key")
    except CodecError as wrong:
        raise _refused(shard, str(wrong)) from wrong
    loop = asyncio.get_running_loop()
    begun = loop.time()
    answer = await around.probe.ask(spec.probes.host, port, probe, key=key, timeout=TOKEN_WITHIN)
    took = loop.time() - begun
    await shard.sampled(await around.gpus.sample())
    problem = shard.masked(wrong_with(probe, answer) or "")
    return Tokened(wrong=problem, took=took, computes_on=shard.report().computes_on)


def _refused(shard: Shard, why: str) -> AgentError:
    return AgentError(f"asking shard {shard.spec.shard} for a token: {why}", code=CONFLICT)
