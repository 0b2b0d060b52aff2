"""Where a sum can't be made, the engine's own words of one run stand for it."""

from collections.abc import Mapping
from typing import Any

import pytest

from llmgw.agent.shards.measuring import measured
from llmgw.core.adapter import GpuKind, Known, Need
from llmgw.engines.memory import gguf, served, sglang
from llmgw.engines.memory.footprint import GIB
from llmgw.engines.memory.gguf import Gguf
from llmgw.engines.memory.measured import CPU as NO_GPU
from llmgw.engines.memory.measured import measurement_key
from llmgw.engines.memory.needs import Sums, need
from llmgw.engines.memory.served import Served
from llmgw.engines.memory.sglang import StaticPart
from llmgw.engines.weights import weights_digest
from llmgw.model.launch import Measure
from llmgw.model.manifest import Engine, Gpus, Parallel, ProfileSpec, Size, Source
from llmgw.model.struct import replace
from llmgw.model.weights import Measured, Weights
from tests.controller.passes.doubles import launch
from tests.engines.cases import CPU, LLAMA, model, profile
from tests.engines.memory import configs
from tests.engines.memory.configs import config, known

L40S = GpuKind(gpu_class="l40s-45g", memory=int(44.99 * GIB), capability="8.9")
H100 = GpuKind(gpu_class="h100-80g", memory=int(79.65 * GIB), capability="9.0")
SOURCE = Source(path="/models/x")
VLLM = Engine(name="vllm", version="0.33.0")
SGLANG = Engine(name="sglang", version="0.5.23")

SAID_VLLM = """\
INFO [gpu_model_runner.py:3338] Model loading took 12.0000 GiB memory and 3.21 seconds
INFO [gpu_worker.py:299] Available KV cache memory: 24.00 GiB
INFO [kv_cache_utils.py:1087] GPU KV cache size: 65,536 tokens, Maximum concurrency for 8,192 tokens per request: 8.00x
"""
SAID_VLLM_APART = """\
INFO [gpu_model_runner.py:3338] Model loading took 12.0000 GiB memory and 3.21 seconds
INFO [gpu_worker.py:299] Available KV cache memory: 24.00 GiB
INFO [kv_cache_utils.py:1087] GPU KV cache size: 65,536 tokens
INFO [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: 8.00x
"""
SAID_VLLM_REFUSING = """\
INFO [gpu_model_runner.py:3338] Model loading took 12.0000 GiB memory and 3.21 seconds
INFO [gpu_worker.py:299] Available KV cache memory: 24.00 GiB
ValueError: To serve at least one request ... the estimated maximum model length is 6144. Try increasing
"""
SAID_SGLANG = """\
[TP0] Load weight end. elapsed=36.9 s, type=JambaForCausalLM, avail mem=7.95 GB, mem usage=14.76 GB
[TP0] Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.24GB, ssm_state size: 6.00GB
[TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 131072, K size: 8.00 GB, V size: 8.00 GB
"""
SAID_LLAMA = """\
0.01 I load_tensors:        CUDA0 model buffer size =  1024.00 MiB
0.01 I llama_context: n_ctx                 = 8192
0.01 I llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
0.01 I llama_memory_recurrent:      CUDA0 RS buffer size =    96.00 MiB
0.01 I sched_reserve:      CUDA0 compute buffer size =   256.00 MiB
"""


def told(
    runs: ProfileSpec,
    output: str,
    patterns: Mapping[str, str],
    kind: GpuKind = L40S,
    *,
    given: Mapping[str, str] | None = None,
    digest: str = "d" * 64,
) -> dict[str, Measured]:
    """What the agent would have found in an engine's output, as the record keeps it."""
    key = measurement_key(model(runs, SOURCE), digest, kind)
    spec = replace(launch(), measure=Measure(key=key, about="x", patterns=patterns, given=given or {}))
    found = measured(spec, output)
    assert found is not None
    return {key: found}


def reckon(
    runs: ProfileSpec,
    weights: Weights | None,
    *kinds: GpuKind,
    said: Mapping[str, Measured] | None = None,
    sums: Sums | None = None,
) -> Need:
    seen = Known(weights=weights, kinds=kinds, measured=said or {})
    return need(model(runs, SOURCE), seen, sums or Served(), ports=1)


def on_vllm(**fields: Any) -> ProfileSpec:
    fields.setdefault("max_model_len", 8192)
    return profile(VLLM, gpus=Gpus(), **fields)


def by_vllm(output: str, runs: ProfileSpec | None = None, *, digest: str = "d" * 64) -> dict[str, Measured]:
    return told(runs or on_vllm(), output, served.MEASURE, given={"budget": str(40 * GIB)}, digest=digest)


# ---- vLLM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [SAID_VLLM, SAID_VLLM_APART])
@pytest.mark.parametrize(
    "of",
    [
        configs.JAMBA,
        config("WhisperForConditionalGeneration", is_encoder_decoder=True, d_model=1280, vocab_size=51866),
        config("NobodyKnowsForCausalLM", vocab_size=1000),
    ],
)
def test_a_model_that_ran_needs_no_memory_any_more(of: dict[str, Any], output: str) -> None:
    assert reckon(on_vllm(), known(of), L40S).unknown
    made = reckon(on_vllm(), known(of), L40S, said=by_vllm(output))
    (each,) = made.on
    assert (made.unknown, made.reckoned, each.fits) == ("", True, True)
    assert each.sum == (
        "19.0 GiB on one l40s-45g: weights 12.0 (measured), kv 3.0 (8,192 tokens, measured), "
        "activations and overhead 4.0 (measured); it may use 40.5 of 45.0, enough for 8.2 such requests at once"
    )


def test_a_longer_request_takes_more_in_proportion_and_a_shorter_one_no_less() -> None:
    def kv(length: int) -> str:
        said = by_vllm(SAID_VLLM)
        return reckon(on_vllm(max_model_len=length), known(configs.JAMBA), L40S, said=said).on[0].sum

    assert "kv 6.0 (16,384 tokens, measured at 8,192)" in kv(16_384)
    assert "kv 3.0 (1,024 tokens, measured at 8,192)" in kv(1024)


def test_what_was_measured_counts_before_what_is_stated() -> None:
    said = by_vllm(SAID_VLLM)
    (each,) = reckon(on_vllm(memory=Size(60 * GIB)), known(configs.JAMBA), L40S, said=said).on
    assert each.memory == 19 * GIB


def test_a_refused_start_has_told_what_a_shorter_request_takes() -> None:
    said = by_vllm(SAID_VLLM_REFUSING)
    again = reckon(on_vllm(), known(configs.JAMBA), L40S, said=said)
    assert "kv 32.0 (8,192 tokens, measured at 6,144)" in again.on[0].sum
    assert not again.on[0].fits
    shorter = reckon(on_vllm(max_model_len=6144), known(configs.JAMBA), L40S, said=said)
    assert "kv 24.0 (6,144 tokens, measured)" in shorter.on[0].sum
    assert shorter.on[0].fits


def test_an_output_that_says_too_little_teaches_nothing() -> None:
    silent = "Model loading took 12.0 GiB\nAvailable KV cache memory: 24.00 GiB\n"
    assert reckon(on_vllm(), known(configs.JAMBA), L40S, said=by_vllm(silent)).unknown


def test_another_kind_of_gpu_is_unknown_until_it_ran_there_or_is_stated() -> None:
    said = by_vllm(SAID_VLLM)
    alone, other = reckon(on_vllm(), known(configs.JAMBA), L40S, H100, said=said).on
    assert alone.fits
    assert not other.fits
    assert other.unknown.startswith(
        "it has not run on h100-80g yet, and what a token takes of it is not known"
    )
    _, stated = reckon(on_vllm(memory=Size(60 * GIB)), known(configs.JAMBA), L40S, H100, said=said).on
    assert stated.fits
    assert stated.sum.startswith("60.0 GiB on each h100-80g, because memory says so and ")


@pytest.mark.parametrize("weights", [None, Weights(digest="d", description="x", problem="no config.json")])
def test_weights_that_nobody_can_read_are_known_by_what_they_took(weights: Weights | None) -> None:
    said = by_vllm(SAID_VLLM, digest=weights_digest(SOURCE))
    (each,) = reckon(on_vllm(), weights, L40S, said=said).on
    assert each.memory == 19 * GIB


def test_a_share_is_still_all_that_may_be_used() -> None:
    runs = profile(VLLM, gpus=Gpus(share=Size(12 * GIB)), max_model_len=8192)
    said = by_vllm(SAID_VLLM, runs)
    (each,) = reckon(runs, known(configs.JAMBA), L40S, said=said).on
    assert (each.room, each.fits) == (12 * GIB, False)


def test_on_the_cpu_vllm_is_told_its_cache_so_no_token_need_be_known() -> None:
    made = reckon(profile(VLLM, gpus=CPU), known(configs.JAMBA, size=10 * GIB))
    assert made.unknown == ""
    assert made.sum.startswith(
        "no GPU, 15.2 GiB of host memory: weights 10.2, kv 4.0 (VLLM_CPU_KVCACHE_SPACE)"
    )


# ---- SGLang --------------------------------------------------------------------------------------------


def test_sglangs_pools_tell_what_a_request_takes() -> None:
    runs = profile(SGLANG, gpus=Gpus(), max_model_len=16_384)
    said = told(runs, SAID_SGLANG, sglang.MEASURE)
    (each,) = reckon(runs, known(configs.JAMBA), L40S, said=said, sums=StaticPart()).on
    assert each.sum.startswith(
        "24.0 GiB on one l40s-45g: weights 14.8 (measured), kv 2.0 (16,384 tokens, measured), state 0.5 (measured), "
    )
    assert each.fits


def test_sglang_with_one_pool_for_both_and_no_state() -> None:
    runs = profile(SGLANG, gpus=Gpus(), max_model_len=16_384)
    output = "Load weight end. mem usage=10.00 GB\nKV Cache is allocated. #tokens: 16384, KV size: 4.00 GB\n"
    said = told(runs, output, sglang.MEASURE)
    (each,) = reckon(runs, known(configs.JAMBA), L40S, said=said, sums=StaticPart()).on
    assert "weights 10.0 (measured), kv 4.0 (16,384 tokens, measured), activations" in each.sum


@pytest.mark.parametrize("left_out", ["Load weight", "Cache is allocated"])
def test_sglang_that_says_too_little_teaches_nothing(left_out: str) -> None:
    runs = profile(SGLANG, gpus=Gpus(), max_model_len=16_384)
    output = "\n".join(line for line in SAID_SGLANG.splitlines() if left_out not in line)
    said = told(runs, output, sglang.MEASURE)
    assert reckon(runs, known(configs.JAMBA), L40S, said=said, sums=StaticPart()).unknown


# ---- llama.cpp -----------------------------------------------------------------------------------------

MAMBA = Weights(digest="d" * 64, description="x", format="gguf", size=GIB, unknown="a state", layers=4)


def on_llama(**fields: Any) -> ProfileSpec:
    fields.setdefault("max_model_len", 8192)
    fields.setdefault("gpus", Gpus())
    return profile(LLAMA, **fields)


def test_llama_cpps_buffers_are_what_it_takes() -> None:
    said = told(on_llama(), SAID_LLAMA, gguf.MEASURE)
    (each,) = reckon(on_llama(), MAMBA, L40S, said=said, sums=Gguf()).on
    assert each.memory == (1024 + 512 + 96 + 256) * 1024**2 + int(0.4 * GIB)
    longer = reckon(on_llama(max_model_len=16_384), MAMBA, L40S, said=said, sums=Gguf()).on[0]
    assert longer.memory - each.memory == 512 * 1024**2  # the cache doubles, the state does not
    assert "kv 1.0 (16,384 tokens, measured), state 0.09 (measured)" in longer.sum


def test_layers_with_and_without_a_window_have_a_buffer_each() -> None:
    two = SAID_LLAMA + "0.01 I llama_kv_cache:      CUDA0 KV buffer size =   64.00 MiB\n"
    said = told(on_llama(), two, gguf.MEASURE)
    (each,) = reckon(on_llama(), MAMBA, L40S, said=said, sums=Gguf()).on
    assert each.memory == (1024 + 512 + 64 + 96 + 256) * 1024**2 + int(0.4 * GIB)


def test_of_several_gpus_the_fullest_counts() -> None:
    runs = on_llama(gpus=Gpus(per_node=2), parallel=Parallel())
    both = SAID_LLAMA + SAID_LLAMA.replace("CUDA0", "CUDA1").replace("1024.00", "1100.00")
    said = told(runs, both, gguf.MEASURE)
    (each,) = reckon(runs, MAMBA, L40S, said=said, sums=Gguf()).on
    assert each.memory == (1100 + 512 + 96 + 256) * 1024**2 + int(0.4 * GIB)


def test_on_the_cpu_its_buffers_are_in_host_memory() -> None:
    runs = on_llama(gpus=CPU)
    assert reckon(runs, MAMBA, sums=Gguf()).unknown
    said = told(runs, SAID_LLAMA.replace("CUDA0", "CPU"), gguf.MEASURE_HOST, NO_GPU)
    made = reckon(runs, MAMBA, said=said, sums=Gguf())
    assert made.unknown == ""
    assert made.memory == (1024 + 512 + 96 + 256) * 1024**2 + int(0.1 * GIB)


def test_llama_cpp_that_logs_less_teaches_nothing() -> None:
    said = told(on_llama(), "llama_context: n_ctx   = 8192\n", gguf.MEASURE)
    assert reckon(on_llama(), MAMBA, L40S, said=said, sums=Gguf()).unknown
