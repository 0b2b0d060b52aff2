"""Configs and headers as people and tools write them: odd ones are understood, refused in words, or unknown, and never zero."""

import json
from typing import Any

import pytest

from llmgw.core.adapter import GpuKind, Known, Need
from llmgw.engines.memory.footprint import GIB
from llmgw.engines.memory.gguf import Gguf
from llmgw.engines.memory.known import weights_of
from llmgw.engines.memory.needs import Sums, need
from llmgw.engines.memory.served import Served
from llmgw.engines.memory.sglang import StaticPart
from llmgw.model.manifest import Engine, Gpus, Parallel, ProfileSpec, Source
from llmgw.model.weights import Inspection, Weights
from llmgw.wire import codec, gguf
from tests.engines.cases import CPU, LLAMA, model, profile
from tests.engines.memory import configs
from tests.engines.memory.configs import config, known
from tests.wire import headers

H100 = GpuKind(gpu_class="h100-80g", memory=80 * GIB, capability="9.0")
SHAPES = (
    (Engine(name="vllm", version="0.33.0"), Served()),
    (Engine(name="sglang", version="0.5.23"), StaticPart()),
)
ODD: tuple[Any, ...] = (
    *(None, -1, 0, 1.5, "7", True, [], {}, [1, 2], [None], {"a": 1}, "x" * 1000),
    *(2**63, 10**400, float("nan"), float("inf")),
)
DEEP = {
    **configs.GEMMA3_12B,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
    },
    "vision_config": {"num_attention_heads": 16},
}


def told(of: dict[str, Any]) -> Weights:
    weights = known(of)
    assert codec.loads(Weights, codec.dumps(weights), strict=True) == weights
    return weights


def reckoned(runs: ProfileSpec, weights: Weights, sums: Sums) -> Need:
    made = need(model(runs, Source(path="/m")), Known(weights=weights, kinds=(H100,)), sums, ports=1)
    assert made.unknown or made.refused or made.memory or all(each.memory for each in made.on)
    assert made.unknown or made.refused or made.memory or made.on
    return made


def every_shape(weights: Weights) -> None:
    for engine, sums in SHAPES:
        for gpus, tensor in ((Gpus(), 1), (Gpus(per_node=8), 8), (CPU, 1)):
            runs = profile(engine, gpus=gpus, parallel=Parallel(tensor=tensor))
            reckoned(runs, weights, sums)


def places(of: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for key, value in of.items() if isinstance(of, dict) else ():
        found += [(*before, key), *places(value, (*before, key))]
    return found


@pytest.mark.parametrize("base", [DEEP, configs.DEEPSEEK_V3, configs.LLAMA_8B, configs.JAMBA])
def test_no_value_anywhere_in_a_config_breaks_a_plan_or_makes_it_free(base: dict[str, Any]) -> None:
    for place in places(base):
        for value in ODD:
            changed = json.loads(json.dumps(base))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            every_shape(told(changed))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "can't be read: Expecting value"),
        ("null", "no JSON object"),
        ("[" * 100_000, "recursion"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "can't be read"),
        ('{"num_hidden_layers": 99999999999}', "its num_hidden_layers is larger than any model's"),
    ],
)
def test_a_config_that_is_none_is_told(text: str, why: str) -> None:
    seen = Inspection(path="/m", format="safetensors", files=1, size=GIB, config=text)
    assert why in weights_of("d", "x", seen).problem


@pytest.mark.parametrize(
    "of",
    [
        {},
        {"text_config": {"text_config": {}}},
        {**configs.GEMMA3_12B, "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34}},
        {**configs.LLAMA_8B, "num_attention_heads": None},
    ],
)
def test_a_config_that_leaves_out_what_a_token_takes_is_unknown(of: dict[str, Any]) -> None:
    assert "tells no layers and heads in a known way" in known(of).unknown


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["linear_attention", "full_attention"]},
        {"layer_types": ["conv", "full_attention"]},
        {"attn_type_list": [0, 0, 0, 1]},
        {"hybrid_override_pattern": "M-M*-"},
        {"ssm_state_size": 128},
        {"linear_attn_config": {"num_heads": 32}},
        {"mb_per_layer": 2},
    ],
)
def test_whatever_carries_a_state_along_is_unknown(fields: dict[str, Any]) -> None:
    assert "carry a state along" in known({**configs.LLAMA_8B, **fields}).unknown


def test_a_list_of_plain_attention_carries_none() -> None:
    assert known({**configs.LLAMA_8B, "attn_type_list": [1] * 32}).unknown == ""


def test_keys_that_are_null_fall_back_as_in_the_models_own_code() -> None:
    weights = known({**configs.LLAMA_8B, "num_key_value_heads": None, "head_dim": None})
    assert (weights.kv_heads, weights.cache[0].key) == (32, 128)


# ---- GGUF ----------------------------------------------------------------------------------------------


SETTINGS = gguf.read(headers.llama()).settings
PARTS = {"blk.0": GIB, "blk.1": GIB, "token_embd": GIB, "output": GIB}


def header(*, parts: dict[str, int] | None = None, files: int = 1, **more: Any) -> Weights:
    settings = {**SETTINGS, **{name.replace("__", "."): value for name, value in more.items()}}
    seen = Inspection(
        path="/m/x.gguf",
        format="gguf",
        files=files,
        size=4 * GIB,
        parts=PARTS if parts is None else parts,
        tensors={"F16": 4 * GIB},
        metadata=settings,
    )
    seen = codec.loads(Inspection, codec.dumps(seen), strict=True)
    return weights_of("d" * 64, "x", seen)


NAMES = (
    *SETTINGS,
    *("llama.attention.key_length", "llama.attention.value_length", "llama.attention.sliding_window"),
    *("llama.vocab_size", "llama.expert_count", "llama.ssm.state_size", "split.count"),
)


@pytest.mark.parametrize("name", NAMES)
def test_no_value_anywhere_in_a_header_breaks_a_plan_or_makes_it_free(name: str) -> None:
    for value in (*ODD[:12], 2**64 - 1, -(2**63), [0, 0], [1, 2, 3], ["a", "b"], {"length": -1}):
        weights = header(**{name.replace(".", "__"): value})
        for gpus in (Gpus(), Gpus(per_node=2), CPU):
            reckoned(profile(LLAMA, gpus=gpus), weights, Gguf())


def test_a_number_of_layers_that_no_model_has_is_refused_before_anything_is_counted() -> None:
    assert "names 2147483648 layers, which no model has" in header(llama__block_count=2**31).problem


@pytest.mark.parametrize("parts", [{}, {"output": GIB}, {"token_embd": GIB, "output": GIB}])
def test_a_file_without_the_layers_tensors_is_no_model(parts: dict[str, int]) -> None:
    assert "holds no tensors of its 2 layers" in header(parts=parts).problem


def test_one_part_of_several_is_no_whole_model() -> None:
    problem = header(split__count=3).problem
    assert "is a part of a model in 3 files, 1 of which are there" in problem
    assert header(split__count=3, files=3).problem == ""
    assert header(split__count=1).problem == ""


def test_heads_may_differ_from_layer_to_layer() -> None:
    weights = header(llama__attention__head_count_kv=[2, 0])
    assert [(group.layers, group.heads) for group in weights.cache] == [(1, 2)]
    several = header(llama__attention__head_count_kv=[2, 4], llama__attention__head_count=[4, 8])
    assert [(group.layers, group.heads) for group in several.cache] == [(1, 2), (1, 4)]


def test_missing_keys_are_unknown_or_fall_back() -> None:
    assert (
        "tells no heads"
        in header(llama__attention__head_count=None, llama__attention__head_count_kv=None).unknown
    )
    bare = header(llama__attention__head_count_kv=None, llama__context_length=None)
    assert bare.cache[0].heads == 4
    made = reckoned(profile(LLAMA, gpus=CPU), bare, Gguf())
    assert "its header does not say how many tokens it takes: write maxModelLen" in made.unknown


def test_an_encoder_decoder_of_another_kind_is_unknown() -> None:
    whisper = config("WhisperForConditionalGeneration", is_encoder_decoder=True, d_model=1280)
    assert "has an encoder and a decoder" in known(whisper).unknown
