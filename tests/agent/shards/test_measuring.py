"""What an engine says of its memory is found by the order's own patterns, and nothing in them can do harm."""

import asyncio

import pytest

from llmgw.agent.shards.measuring import MAX_FOUND, MAX_VALUE, measured
from llmgw.engines.memory.served import MEASURE
from llmgw.model.launch import LaunchSpec, Measure
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.agent.shards.realnode import RealNode
from tests.agent.shards.rig import start, stop
from tests.agent.shards.test_real_shards import Agent, engine
from tests.controller.passes.doubles import launch

VLLM = """\
INFO 11-02 10:00:01 [gpu_model_runner.py:3338] Model loading took 14.9889 GiB memory and 3.21 seconds
(Worker_TP1 pid=7) INFO 11-02 10:00:02 [gpu_model_runner.py:3338] Model loading took 14.9901 GiB and 3.4 seconds
INFO 11-02 10:00:11 [gpu_worker.py:299] Available KV cache memory: 21.53 GiB
INFO 11-02 10:00:11 [kv_cache_utils.py:1087] GPU KV cache size: 176,368 tokens, Maximum concurrency for 32,768 tokens
"""


def order(**patterns: str) -> LaunchSpec:
    return replace(launch(), measure=Measure(key="k", about="chat", patterns=patterns, given={"budget": "7"}))


def test_vllms_own_lines_are_found() -> None:
    found = measured(order(**MEASURE), VLLM)
    assert found is not None
    assert found.values == {"kv": ("21.53",), "tokens": ("176,368",), "weights": ("14.9889", "14.9901")}
    assert (found.key, found.about, found.given) == ("k", "chat", {"budget": "7"})
    assert found.replica == launch().replica


def test_a_refused_start_tells_what_would_fit() -> None:
    said = "ValueError: To serve at least one request … the estimated maximum model length is 20512. Try increasing"
    found = measured(order(**MEASURE), said)
    assert found is not None
    assert found.values == {"longest": ("20512",)}


@pytest.mark.parametrize("pattern", ["(", "no group", "(two) (groups)", "(never said)"])
def test_a_pattern_that_is_none_finds_nothing(pattern: str) -> None:
    assert measured(order(x=pattern), "two groups") is None


def test_nothing_asked_for_is_nothing_found() -> None:
    assert measured(launch(), VLLM) is None


def test_what_is_found_is_bounded() -> None:
    found = measured(order(x="say (.*)"), "".join(f"say {n:0200}\n" for n in range(1000)))
    assert found is not None
    assert len(found.values["x"]) == MAX_FOUND
    assert all(len(value) == MAX_VALUE for value in found.values["x"])


def test_an_order_with_a_measure_survives_the_wire() -> None:
    spec = order(**MEASURE)
    assert codec.loads(LaunchSpec, codec.dumps(spec), strict=True) == spec


def test_a_real_engine_that_got_ready_is_reported_with_what_it_said(node: RealNode) -> None:
    async def story() -> None:
        patterns = {"port": r"listening on 127\.0\.0\.1 port ([0-9]+)", "never": r"(never said)"}
        launched = replace(engine(), measure=Measure(key="k", about="sim", patterns=patterns))
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launched, key="k3y"))
        ready = await agent.reaches(launched, "ready")
        assert ready.measured is not None
        assert ready.measured.values == {"port": (str(launched.probes.port),)}
        await agent.shards.stop(stop(launched, "enough"))
        await agent.reaches(launched, "stopped")
        await agent.shards.close()

    asyncio.run(story())
