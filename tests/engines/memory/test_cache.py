"""What a token takes, by architecture; the numbers that engines themselves have published."""

import json
from typing import Any

import pytest

from llmgw.engines.memory.footprint import GIB, Split, cache_bytes, token_bytes
from llmgw.engines.memory.known import weights_of
from llmgw.model.weights import CacheGroup, Inspection
from tests.engines.memory import configs
from tests.engines.memory.configs import known

ALONE = Split()


@pytest.mark.parametrize(
    ("config", "tokens", "told"),
    [
        (configs.QWEN3_32B, 40_960, "10.00"),
        (configs.QWEN25_7B, 32_768, "1.75"),
        (configs.QWEN25_32B_AWQ, 4_096, "1.00"),
        (configs.QWEN25_15B, 4_096, "0.11"),
    ],
)
def test_a_request_takes_what_vllm_says_it_does(config: dict[str, Any], tokens: int, told: str) -> None:
    size = cache_bytes(known(config).cache, ALONE, element=2, tokens=tokens, batch=8192)
    assert f"{size / GIB:.2f}" == told


@pytest.mark.parametrize(
    ("config", "bytes_a_token"),
    [(configs.QWEN3_32B, 262_144), (configs.QWEN25_7B, 57_344), (configs.MISTRAL_SMALL_32, 163_840)],
)
def test_a_token_takes_exactly_so_many_bytes(config: dict[str, Any], bytes_a_token: int) -> None:
    assert token_bytes(known(config).cache, ALONE, element=2) == bytes_a_token


def test_a_pool_holds_as_many_tokens_as_were_measured() -> None:
    """28.20 GiB of cache held 184,832 tokens of Mistral-Small-3.2-24B."""
    each = token_bytes(known(configs.MISTRAL_SMALL_32).cache, ALONE, element=2)
    assert abs(28.20 * GIB / each - 184_832) < 64


def test_a_latent_is_kept_whole_by_every_rank() -> None:
    weights = known(configs.DEEPSEEK_V3)
    alone = token_bytes(weights.cache, ALONE, element=2)
    assert alone == 61 * (512 + 64) * 2
    assert token_bytes(weights.cache, Split(tensor=8), element=2) == alone


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_heads_are_divided_until_each_rank_has_one(tensor: int, heads: int) -> None:
    weights = known(configs.QWEN3_32B)
    assert token_bytes(weights.cache, Split(tensor=tensor), element=2) == 64 * heads * 256 * 2


def test_a_stage_keeps_only_its_own_layers_and_the_largest_counts() -> None:
    group = CacheGroup(layers=61, heads=1, key=576, value=0, latent=True)
    assert token_bytes([group], Split(pipeline=4), element=1) == 16 * 576


def test_most_layers_of_gemma_keep_a_window_only() -> None:
    weights = known(configs.GEMMA3_12B)
    assert {(group.layers, group.window) for group in weights.cache} == {(8, None), (40, 1024)}
    long = cache_bytes(weights.cache, ALONE, element=2, tokens=131_072, batch=2048)
    each = 8 * 512 * 2
    assert long == 8 * each * 131_072 + 40 * each * ((1023 + 2048 + 15) // 16 + 1) * 16


def test_a_window_longer_than_the_request_keeps_the_request() -> None:
    group = CacheGroup(layers=1, heads=1, key=64, value=64, window=4096)
    assert cache_bytes([group], ALONE, element=2, tokens=1000, batch=8192) == 1000 * 256


def test_windows_are_told_by_the_list_of_layers() -> None:
    kinds = ["sliding_attention", "full_attention"] * 12
    config = {**configs.LLAMA_8B, "num_hidden_layers": 24, "layer_types": kinds, "sliding_window": 128}
    assert {(group.layers, group.window) for group in known(config).cache} == {(12, None), (12, 128)}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (configs.JAMBA, "carry a state along (mamba_d_state)"),
        ({**configs.LLAMA_8B, "layer_types": ["linear_attention", "full_attention"]}, "(linear_attention)"),
        ({**configs.LLAMA_8B, "is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"architectures": ["Odd"], "hidden_size": 8}, "tells no layers and heads"),
    ],
)
def test_what_keeps_something_else_is_named_as_unknown(config: dict[str, Any], why: str) -> None:
    weights = known(config)
    assert why in weights.unknown
    assert not weights.cache
    assert weights.size


def test_an_encoder_keeps_nothing_between_tokens() -> None:
    weights = known(configs.BERT)
    assert (weights.unknown, weights.cache) == ("", ())


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "gptq_marlin"}, "gptq-marlin"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        (None, ""),
    ],
)
def test_quantization_is_called_by_what_the_weights_are(quantization: object, name: str) -> None:
    assert known({**configs.LLAMA_8B, "quantization_config": quantization}).quantization == name


@pytest.mark.parametrize("text", ["", "[]", "{", '{"num_hidden_layers": "many"}' + "x", "[" * 100_000])
def test_a_config_that_cannot_be_read_says_so(text: str) -> None:
    seen = Inspection(path="/models/x", format="safetensors", size=1, config=text)
    assert "config.json of /models/x can't be read" in weights_of("d", "x", seen).problem


def test_weights_without_config_or_tensors_are_no_model() -> None:
    assert (
        "no config.json" in weights_of("d", "x", Inspection(path="/m", format="safetensors", size=1)).problem
    )
    nothing = Inspection(path="/m", format="other", config=json.dumps(configs.LLAMA_8B))
    assert "no weights at /m" in weights_of("d", "x", nothing).problem
