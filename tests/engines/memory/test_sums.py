"""The sum for each engine: by the tables, by what was measured, and what it refuses."""

from typing import Any

import pytest

from llmgw.core.adapter import GpuKind, Known, Need
from llmgw.engines.memory.footprint import GIB
from llmgw.engines.memory.gguf import Gguf
from llmgw.engines.memory.known import weights_of
from llmgw.engines.memory.measured import measurement_key
from llmgw.engines.memory.needs import need
from llmgw.engines.memory.served import Served
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import Adapter, Engine, Gpus, Parallel, ProfileSpec, Size, Source
from llmgw.model.struct import replace
from llmgw.model.weights import Inspection, Measured, Weights
from llmgw.wire import gguf
from tests.engines.cases import CPU, LLAMA, model, profile
from tests.engines.memory import configs
from tests.engines.memory.configs import known
from tests.wire import headers

L40S = GpuKind(gpu_class="l40s-45g", memory=int(44.99 * GIB), capability="8.9")
H100 = GpuKind(gpu_class="h100-80g", memory=int(79.65 * GIB), capability="9.0")
A100 = GpuKind(gpu_class="a100-80g", memory=int(79.25 * GIB), capability="8.0")
SMALL = GpuKind(gpu_class="rtx-a10g-22g", memory=int(22.04 * GIB), capability="8.6")
VLLM = Engine(name="vllm", version="0.33.0")


def on_vllm(*, tensor: int = 1, gpus: int | None = None, **fields: Any) -> ProfileSpec:
    return profile(VLLM, gpus=Gpus(per_node=gpus or tensor), parallel=Parallel(tensor=tensor), **fields)


def reckon(
    runs: ProfileSpec,
    weights: Weights | None,
    *kinds: GpuKind,
    measured: dict[str, Measured] | None = None,
    **spec: Any,
) -> Need:
    of = model(runs, Source(path="/models/x"), **spec)
    return need(of, Known(weights=weights, kinds=kinds, measured=measured or {}), Served(), ports=1)


def test_the_sum_is_said_as_a_person_would_make_it() -> None:
    made = reckon(on_vllm(max_model_len=32768), known(configs.LLAMA_8B, size=int(14.96 * GIB)), L40S)
    (each,) = made.on
    assert each.sum == (
        "20.6 GiB on one l40s-45g: weights 15.3, kv 4.0 (32,768 tokens), activations 1.2 (2,048 at once), overhead 0.1; "
        "it may use 40.5 of 45.0, enough for 6.0 such requests at once"
    )
    assert each.fits
    assert each.takes == -(-L40S.memory * 9 // 10)


def test_two_gpus_each_take_half_of_the_weights_and_of_the_heads() -> None:
    runs = on_vllm(tensor=2, max_model_len=32768)
    (each,) = reckon(runs, known(configs.LLAMA_8B, size=int(14.96 * GIB)), L40S).on
    assert each.sum.startswith("11.4 GiB on each of 2 x l40s-45g: weights 7.6, kv 2.0 (32,768 tokens)")


@pytest.mark.parametrize(("kind", "activations"), [(H100, 4.8), (A100, 1.2), (L40S, 1.2)])
def test_activations_go_by_the_batch_that_vllm_chooses_for_the_gpu(kind: GpuKind, activations: float) -> None:
    made = Served().footprint(model(on_vllm(max_model_len=4096)), known(configs.LLAMA_8B), kind)
    (line,) = [line for line in made.lines if line.name == "activations"]
    assert line.size == int(activations * GIB)
    asked = model(on_vllm(max_model_len=4096, args=("--max_num_batched_tokens=4096",)))
    (line,) = [
        line
        for line in Served().footprint(asked, known(configs.LLAMA_8B), kind).lines
        if line.name == "activations"
    ]
    assert line.size == int(2.4 * GIB)


def test_what_was_measured_replaces_the_tables() -> None:
    """Published: Qwen2.5-7B-AWQ at 0.60 of a 22 GiB card: weights 5.43, 6.60 GiB left for the cache."""
    runs = on_vllm(max_model_len=8192, gpu_memory_utilization=0.6)
    weights = known(configs.QWEN25_7B_AWQ, size=int(5.2 * GIB), kind="I32")
    of = model(runs, Source(path="/models/x"))
    budget = Served().takes(of, SMALL.memory)
    assert f"{budget / GIB:.2f}" == "13.22"
    key = measurement_key(of, weights.digest, SMALL)
    said = Measured(
        key=key, about="x", values={"weights": ("5.43",), "kv": ("6.60",)}, given={"budget": str(budget)}
    )
    (each,) = reckon(runs, weights, SMALL, measured={key: said}).on
    assert each.sum.startswith(
        "7.1 GiB on one rtx-a10g-22g: weights 5.4 (measured), kv 0.4 (8,192 tokens), activations and overhead 1.2 (measured)"
    )
    (tables,) = reckon(runs, weights, SMALL).on
    assert abs(tables.memory - each.memory) < 0.5 * GIB  # the tables are not far off


def test_a_measurement_of_another_gpu_or_way_of_running_does_not_count() -> None:
    weights = known(configs.QWEN25_7B_AWQ)
    of = model(on_vllm(max_model_len=8192))
    keys = {
        measurement_key(of, weights.digest, SMALL),
        measurement_key(of, weights.digest, L40S),
        measurement_key(of, "other", SMALL),
        measurement_key(model(on_vllm(args=("--enforce-eager",))), weights.digest, SMALL),
        measurement_key(model(on_vllm(tensor=2)), weights.digest, SMALL),
    }
    assert len(keys) == 5
    longer = model(on_vllm(max_model_len=100, gpu_memory_utilization=0.5))
    assert (
        measurement_key(longer, weights.digest, SMALL) in keys
    )  # neither length nor share change what is taken besides


def test_other_files_at_the_same_place_are_not_what_was_measured_there() -> None:
    weights = known(configs.QWEN25_7B_AWQ, size=int(5.2 * GIB), kind="I32")
    of = model(on_vllm(max_model_len=8192), Source(path="/models/x"))
    key = measurement_key(of, weights.digest, SMALL, size=weights.size)
    budget = Served().takes(of, SMALL.memory)
    values = {"weights": ("5.43",), "kv": ("6.60",)}
    said = Measured(key=key, about="x", values=values, given={"budget": str(budget)}, serial=7)
    (same,) = reckon(of.profile, weights, SMALL, measured={key: said}).on
    assert "weights 5.4 (measured at serial 7)" in same.sum
    (other,) = reckon(of.profile, replace(weights, size=int(4 * GIB)), SMALL, measured={key: said}).on
    assert "measured" not in other.sum


def test_of_several_ranks_in_one_output_the_tightest_counts() -> None:
    runs = on_vllm(tensor=2, max_model_len=8192)
    weights = known(configs.LLAMA_8B)
    key = measurement_key(model(runs, Source(path="/models/x")), weights.digest, L40S)
    budget = 40 * GIB
    values = {"weights": ("7.5", "7.6"), "kv": ("30.1", "29.9")}
    said = Measured(key=key, about="x", values=values, given={"budget": str(budget)})
    (each,) = reckon(runs, weights, L40S, measured={key: said}).on
    assert "weights 7.6 (measured)" in each.sum
    assert "activations and overhead 2.5 (measured)" in each.sum


def test_what_does_not_fit_says_so_in_numbers() -> None:
    (each,) = reckon(on_vllm(max_model_len=131072), known(configs.LLAMA_70B, size=int(131.4 * GIB)), H100).on
    assert not each.fits
    assert each.memory > each.room
    assert "it may use 71.7 of 79.6" in each.sum


def test_a_share_is_all_that_may_be_used() -> None:
    runs = profile(VLLM, gpus=Gpus(share=Size(12 * GIB)), max_model_len=4096)
    (each,) = reckon(runs, known(configs.LLAMA_8B, size=15 * GIB), L40S).on
    assert (each.room, each.fits) == (12 * GIB, False)


def test_quantizing_while_loading_halves_what_is_not_a_table_of_tokens() -> None:
    plain = Served().footprint(model(on_vllm(max_model_len=8)), known(configs.LLAMA_8B, size=15 * GIB), L40S)
    fp8 = Served().footprint(
        model(on_vllm(max_model_len=8, quantization="fp8")), known(configs.LLAMA_8B, size=15 * GIB), L40S
    )
    edges = 2 * 128256 * 4096 * 2
    assert abs(plain.lines[0].size - fp8.lines[0].size - 1.02 * (15 * GIB - edges) / 2) < 2


def test_files_in_32_bits_are_loaded_in_16() -> None:
    half = known({**configs.LLAMA_8B, "torch_dtype": "float32"}, size=30 * GIB, kind="F32")
    made = Served().footprint(model(on_vllm(max_model_len=8)), half, L40S)
    assert abs(made.lines[0].size - 1.02 * 15 * GIB) < 2


def test_a_stage_holds_its_layers_and_one_table() -> None:
    runs = profile(VLLM, gpus=Gpus(per_node=1), nodes=2, parallel=Parallel(pipeline=2), max_model_len=8)
    weights = known(configs.LLAMA_8B, size=15 * GIB)
    edge = 128256 * 4096 * 2
    made = Served().footprint(model(runs), weights, L40S)
    assert abs(made.lines[0].size - 1.02 * ((15 * GIB - 2 * edge) / 2 + edge)) < 2


def test_experts_are_divided_by_data_parallel_where_that_is_asked_for() -> None:
    def loaded(*args: str) -> int:
        runs = profile(VLLM, gpus=Gpus(per_node=8), parallel=Parallel(data=8), args=args, max_model_len=8)
        return Served().footprint(model(runs), known(configs.DEEPSEEK_V3, size=642 * GIB), H100).lines[0].size

    assert loaded() > 600 * GIB
    assert 0.1 * loaded() < loaded("--enable-expert-parallel") < 0.25 * loaded()


def test_what_is_left_in_host_memory_is_not_counted() -> None:
    def loaded(*args: str) -> int:
        of = model(on_vllm(max_model_len=8, args=args))
        return Served().footprint(of, known(configs.LLAMA_8B, size=15 * GIB), L40S).lines[0].size

    assert loaded() - loaded("--cpu-offload-gb", "2.5") == int(2.5 * GIB)
    assert loaded("--cpu_offload_gb=nonsense") == loaded()


def test_adapters_are_set_aside_for() -> None:
    adapters = tuple(Adapter(name=str(n), source=Source(path="/a"), rank=16) for n in range(3))
    of = model(on_vllm(max_model_len=8), adapters=adapters, max_loaded_adapters=2)
    made = Served().footprint(of, known(configs.LLAMA_8B), L40S)
    thin = 4 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert made.lines[-1].size == 2 * 16 * 32 * thin * 2


# ---- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "tensor", "why"),
    [
        (
            configs.QWEN25_7B,
            8,
            "28 attention heads of Qwen2ForCausalLM can't be divided by parallel.tensor 8: 4 would do",
        ),
        (configs.LLAMA_8B, 3, "32 attention heads"),
        ({**configs.LLAMA_8B, "num_attention_heads": 48, "num_key_value_heads": 6}, 4, "6 KV heads of"),
        (
            {**configs.LLAMA_8B, "num_attention_heads": 96, "num_key_value_heads": 3, "vocab_size": 64},
            32,
            "3 KV heads",
        ),
        ({**configs.BERT, "num_attention_heads": 256, "vocab_size": 100}, 256, "128 tokens of vocabulary"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_would(
    config: dict[str, Any], tensor: int, why: str
) -> None:
    assert why in reckon(on_vllm(tensor=tensor), known(config), H100).refused


def test_the_encoder_of_pictures_must_be_divided_too_unless_each_rank_has_it_whole() -> None:
    pictured = known({**configs.MISTRAL_SMALL_32, "vision_config": {"num_attention_heads": 15}})
    assert "15 attention heads of the picture encoder" in reckon(on_vllm(tensor=2), pictured, H100).refused
    whole = on_vllm(tensor=2, args=("--mm-encoder-tp-mode", "data"))
    assert reckon(whole, pictured, H100).refused == ""


@pytest.mark.parametrize(
    ("config", "tensor"), [(configs.LLAMA_8B, 16), (configs.DEEPSEEK_V3, 8), (configs.QWEN25_7B, 4)]
)
def test_what_divides_or_repeats_is_not_refused(config: dict[str, Any], tensor: int) -> None:
    assert reckon(on_vllm(tensor=tensor), known(config), H100).refused == ""


@pytest.mark.parametrize(
    ("runs", "kind", "why"),
    [
        (on_vllm(quantization="fp8"), A100, "fp8 needs compute capability 8.9, it has 8.0"),
        (on_vllm(quantization="fp8"), L40S, ""),
        (
            on_vllm(quantization="modelopt_fp4"),
            H100,
            "modelopt-fp4 needs compute capability 10.0, it has 9.0",
        ),
        (
            on_vllm(quantization="awq"),
            replace(SMALL, capability="7.0"),
            "awq needs compute capability 7.5, it has 7.0",
        ),
        (on_vllm(args=("--kv-cache-dtype", "fp8")), A100, "a cache in fp8 needs compute capability 8.9"),
        (on_vllm(dtype="bfloat16"), replace(SMALL, capability="7.5"), "write float16"),
        (on_vllm(quantization="fp8"), replace(SMALL, capability=""), ""),
    ],
)
def test_what_the_gpu_cannot_compute_with_is_refused_there(
    runs: ProfileSpec, kind: GpuKind, why: str
) -> None:
    (each,) = reckon(runs, known(configs.LLAMA_8B), kind).on
    assert why in each.refused
    assert bool(why) == bool(each.refused)


STATED: list[dict[str, Any]] = [{}, {"memory": Size(20 * GIB)}, {"gpus": Gpus(share=Size(20 * GIB))}]


@pytest.mark.parametrize("stated", STATED, ids=["nothing", "memory", "share"])
def test_no_stated_size_makes_a_gpu_compute_what_it_cannot(stated: dict[str, Any]) -> None:
    runs = profile(VLLM, quantization="fp8", **stated)
    made = reckon(runs, None, A100, H100)
    (unable,) = made.on
    assert unable.kind == A100
    assert unable.refused == "fp8 needs compute capability 8.9, it has 8.0"
    assert bool(made.unknown) == (not stated), "what is not known stays so, whatever is refused"
    files = known(
        {**configs.LLAMA_8B, "num_hidden_layers": None, "quantization_config": {"quant_method": "fp8"}}
    )
    assert files.unknown
    assert [each.kind for each in reckon(profile(VLLM, **stated), files, A100, H100).on] == [A100]


@pytest.mark.parametrize(
    ("of", "context"),
    [
        (configs.LLAMA_8B, 131_072),
        ({**configs.LLAMA_8B, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131_072),
        ({**configs.LLAMA_8B, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 262_144),
        (
            {
                **configs.QWEN3_32B,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32_768,
                },
            },
            131_072,
        ),
        ({**configs.LLAMA_8B, "rope_scaling": {"type": "linear", "factor": float("inf")}}, 131_072),
    ],
)
def test_positions_are_stretched_as_the_engines_do_it(of: dict[str, Any], context: int) -> None:
    assert known(of).context == context


def test_a_request_longer_than_the_model_takes_is_refused_unless_people_insist() -> None:
    def refused(**fields: Any) -> str:
        return reckon(on_vllm(max_model_len=200_000, **fields), known(configs.LLAMA_8B), H100).refused

    assert refused().startswith(
        "maxModelLen 200000 is more than the 131072 tokens that LlamaForCausalLM takes: write at most 131072"
    )
    assert refused(env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}) == ""
    assert refused(args=("--hf-overrides", "{}")) == ""


def test_files_that_are_fp8_already_need_the_same_gpu() -> None:
    (each,) = reckon(on_vllm(tensor=8), known(configs.DEEPSEEK_V3), A100).on
    assert "fp8 needs compute capability 8.9" in each.refused


# ---- not known -----------------------------------------------------------------------------------------


def test_unknown_is_a_reason_to_refuse_and_never_zero() -> None:
    for weights in (
        None,
        known(configs.JAMBA),
        Weights(digest="d", description="x", problem="no config.json"),
    ):
        made = reckon(on_vllm(), weights, L40S)
        assert made.unknown
        assert made.on == ()


def test_memory_in_the_profile_stands_for_what_is_not_known() -> None:
    made = reckon(on_vllm(tensor=2, memory=Size(60 * GIB)), known(configs.JAMBA), H100)
    assert (made.unknown, made.gpu_memory, made.memory) == ("", 30 * GIB, 60 * GIB)
    assert "30.0 GiB on each GPU, because memory says so" in made.sum


def test_a_model_that_names_no_length_needs_one() -> None:
    endless = {key: value for key, value in configs.LLAMA_8B.items() if key != "max_position_embeddings"}
    assert "write maxModelLen" in reckon(on_vllm(), known(endless), L40S).unknown
    assert reckon(on_vllm(max_model_len=4096), known(endless), L40S).unknown == ""


# ---- llama.cpp -----------------------------------------------------------------------------------------


def tiny(**more: Any) -> Weights:
    head = gguf.read(headers.llama(more=more))
    seen = Inspection(
        path="/m/x.gguf", format="gguf", files=1, tensors=head.types, parts=head.parts, metadata=head.settings
    )
    return weights_of("d" * 64, "x.gguf", seen)


def on_llama(runs: ProfileSpec, weights: Weights, *kinds: GpuKind) -> tuple[DesiredModel, Need]:
    of = model(runs, Source(path="/m/x.gguf"))
    return of, need(of, Known(weights=weights, kinds=kinds), Gguf(), ports=1)


def test_on_the_cpu_everything_lies_in_host_memory() -> None:
    weights = tiny()
    _, made = on_llama(profile(LLAMA, gpus=CPU, max_model_len=2048), weights)
    cache = 2 * 2048 * 2 * 64 * 2
    compute = 512 * ((512 + 128 + 3 * 256) * 4 + 2048 * 4)
    assert made.memory == weights.size + cache + compute + int(0.1 * GIB)
    assert made.sum.startswith("no GPU, 0.1 GiB of host memory: weights ")


def test_a_stated_size_is_what_is_set_aside_on_the_cpu() -> None:
    _, made = on_llama(profile(LLAMA, gpus=CPU, max_model_len=2048, memory=Size(GIB)), tiny())
    assert made.memory == GIB


def test_layers_lie_on_gpus_and_the_table_of_tokens_does_not() -> None:
    weights = tiny()
    runs = profile(LLAMA, gpus=Gpus(per_node=2), max_model_len=2048, args=("-np", "4"))
    _, made = on_llama(runs, weights, L40S)
    (each,) = made.on
    of_weights = weights.layer_sizes[0] + 128 * 512 * 2 + 512
    cache = 2 * 4 * 2048 * 2 * 64 * 2 // 2
    compute = 512 * ((512 + 128 + 3 * 256) * 4 + 4 * 2048 * 4)
    assert each.memory == of_weights + cache + compute + int(0.4 * GIB)
    assert each.takes == each.memory
    assert "kv 0.00 (2,048 tokens x 4 slots)" in each.sum


def test_fewer_layers_on_gpus_take_less_and_a_smaller_cache_type_too() -> None:
    def total(*args: str) -> int:
        _, made = on_llama(profile(LLAMA, gpus=Gpus(), max_model_len=2048, args=args), tiny(), L40S)
        return made.on[0].memory

    assert total("-ngl", "1") < total()
    assert total("-ctk", "q8_0", "-ctv", "q8_0") < total()


def test_a_windowed_gguf_keeps_less_unless_told_to_keep_all() -> None:
    weights = tiny(**{"general.architecture": "gemma2", "gemma2.attention.sliding_window": 256} | gemma())

    def kv(*args: str) -> int:
        of = model(profile(LLAMA, gpus=CPU, max_model_len=8192, args=args))
        return next(line.size for line in Gguf().host(of, weights).lines if line.name == "kv")

    assert kv() < kv("--swa-full")
    assert kv("--swa-full") == 2 * 8192 * 2 * 64 * 2


def gemma() -> dict[str, Any]:
    settings = gguf.read(headers.llama()).settings
    return {
        name.replace("llama.", "gemma2."): value
        for name, value in settings.items()
        if name.startswith("llama.") and isinstance(value, int)
    }


def test_a_state_beside_the_cache_is_unknown() -> None:
    assert "carry a state along (ssm.state_size)" in tiny(**{"llama.ssm.state_size": 16}).unknown


def test_a_header_without_architecture_is_no_model() -> None:
    seen = Inspection(path="/m/x.gguf", format="gguf", parts={"a": 1}, metadata={})
    assert "names no architecture" in weights_of("d", "x", seen).problem


def test_llama_cpp_reads_gguf_only() -> None:
    _, made = on_llama(profile(LLAMA, gpus=CPU), known(configs.LLAMA_8B))
    assert "is no GGUF file" in made.refused
