"""The sum against llama.cpp's own words: a real model, loaded for real, which tells the bytes of its buffers."""

import asyncio
import re
from pathlib import Path

import pytest

from llmgw.agent.inspecting import Inspector
from llmgw.engines.memory.footprint import Footprint
from llmgw.engines.memory.gguf import MEASURE, Gguf
from llmgw.engines.memory.known import weights_of
from tests.engines import wheels
from tests.engines.cases import CPU, LLAMA, model, placed, profile
from tests.runtime.engineprocess import EngineProcess
from tests.runtime.test_llamaserver import command_of, port_of, start

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
MIB = 1024**2
PLAIN: tuple[str, ...] = ()
SLOTS = ("-np", "4", "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on")


def summed(weights: Path, args: tuple[str, ...]) -> dict[str, float]:
    """MiB by addend."""
    seen = asyncio.run(Inspector().inspect(str(weights)))
    of = model(profile(LLAMA, gpus=CPU, max_model_len=2048, args=args))
    made: Footprint = Gguf().host(of, weights_of("d", "SmolLM2", seen))
    return {line.name: line.size / MIB for line in made.lines}


def said(engine: EngineProcess, name: str) -> float:
    """What llama.cpp says of a buffer on the CPU, by the pattern that GPUs' are found with."""
    pattern = MEASURE[name].replace("CUDA[0-9]+", "CPU(?:_Mapped)?")
    return float(engine.wait_for(pattern)[1])


@pytest.mark.parametrize("args", [PLAIN, SLOTS])
def test_weights_and_cache_are_what_llama_cpp_sets_aside_to_the_hundredth(
    tmp_path: Path, args: tuple[str, ...]
) -> None:
    of = placed(model(profile(LLAMA, gpus=CPU, max_model_len=2048, args=(*args, "-lv", "4"))))
    with start(tmp_path, *command_of(of, wheels.weights())) as engine:
        port_of(engine)
        reckoned = summed(wheels.weights(), args)
        assert said(engine, "gpu-model-mib") == pytest.approx(reckoned["weights"], abs=0.01)
        assert said(engine, "gpu-kv-mib") == pytest.approx(reckoned["kv"], abs=0.01)
        # Older versions keep the logits of a whole batch, this one of what is answered: the sum is for both.
        assert said(engine, "gpu-compute-mib") < reckoned["compute"]


def test_the_lines_that_are_measured_are_the_engines_own() -> None:
    line = "0.01.192.298 I llama_kv_cache:      CUDA0 KV buffer size =    45.00 MiB"
    found = re.search(MEASURE["gpu-kv-mib"], line)
    assert found is not None
    assert found[1] == "45.00"
