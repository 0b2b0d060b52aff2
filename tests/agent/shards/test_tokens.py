"""A ready shard computes one token when it is asked, with its own key, and is told to compute on what its processes hold."""

import asyncio

import pytest

from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.problems import AgentError
from llmgw.model.struct import replace
from llmgw.wire.messages import CONFLICT, NOT_FOUND, TokenParams
from tests.agent.shards.rig import Rig, behaving, gpu, on_node, spec, start


def test_a_token_of_a_ready_shard_says_what_it_computes_on() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(claims=Claims(gpus=(GpuClaim(uuid="GPU-0"),), ports=(18000,)))
        (engine,) = launch.processes
        seeing = replace(engine, env={**engine.env, "CUDA_VISIBLE_DEVICES": "${gpu.indices}"})
        launch = replace(launch, processes=(seeing,))
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        tokened = await shards.token(TokenParams(shard=launch.shard))
        assert tokened.wrong == ""
        assert tokened.computes_on == rig.report(launch).computes_on
        assert tokened.computes_on is not None
        assert list(tokened.computes_on.gpus) == ["GPU-0"]

    on_node(story, gpus=(gpu(),))


def test_an_engine_that_can_compute_nothing_any_more_is_told() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        (process,) = rig.node.living()
        process.script = replace(process.script, answers_token=False)
        tokened = await shards.token(TokenParams(shard=launch.shard))
        assert tokened.wrong == "/v1/completions: no answer within 120 s"

    on_node(story)


def test_what_is_not_ready_serves_nothing_or_is_not_known_is_refused() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        loading, silent = spec(), spec(model="silent", port=18001, token=False)
        for launch in (loading, silent):
            await shards.start(start(launch))
        await rig.reaches(silent, "ready")
        await rig.reaches(loading, "loading")
        for launch, why, code in (
            (loading, "it is loading .*wait until it is ready", CONFLICT),
            (silent, "it serves nothing that could be asked for one", CONFLICT),
            (spec(model="other"), "there is no such shard", NOT_FOUND),
        ):
            with pytest.raises(AgentError, match=why) as refused:
                await asyncio.wait_for(shards.token(TokenParams(shard=launch.shard)), timeout=5)
            assert refused.value.code == code

    on_node(story, behave=behaving(answers_token=False))
