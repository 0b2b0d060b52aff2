"""The engines that exist, planned with weights that are known: what people read."""

from typing import Any

import pytest

from llmgw.core.planner import plan
from llmgw.core.show import render
from llmgw.engines.memory.known import weights_of
from llmgw.engines.registry import ADAPTERS
from llmgw.engines.weights import weights_digest
from llmgw.model.desired import DesiredModel
from llmgw.model.facts import Gpu
from llmgw.model.manifest import GIB, Engine, Gpus, Parallel, ProfileSpec, Size, Source
from llmgw.model.plan import Change, Plan, StepKind
from llmgw.model.report import Observed
from llmgw.model.struct import replace
from llmgw.model.weights import Inspection, Measured, Weights
from llmgw.wire import gguf
from tests.core.builders import NOW, NodeState, desired, empty_record, facts, model, node, observed, stranger
from tests.core.fleets import OPTIONS
from tests.engines.memory import configs
from tests.engines.memory.configs import known
from tests.wire import headers

SOURCE = Source(path="/models/chat")
DIGEST = weights_digest(SOURCE)
VLLM = Engine(name="vllm", version="0.33.0")
SGLANG = Engine(name="sglang", version="0.5.23")


def l40s(name: str, count: int = 2, **more: Any) -> NodeState:
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{name}-{index}",
            index=index,
            name="NVIDIA L40S",
            gpu_class="l40s-45g",
            memory_total=48_305_799_168,
            compute_capability="8.9",
            **(more if index == 1 else {}),
        )
        for index in range(count)
    )
    return NodeState(name, replace(facts(name), gpus=gpus))


def runs(engine: Engine = VLLM, *, tensor: int = 2, **fields: Any) -> ProfileSpec:
    fields.setdefault("max_model_len", 32_768)
    return ProfileSpec(engine=engine, gpus=Gpus(per_node=tensor), parallel=Parallel(tensor=tensor), **fields)


def planned(
    of: ProfileSpec,
    *boxes: NodeState,
    weights: Weights | None,
    measured: dict[str, Measured] | None = None,
    source: Source = SOURCE,
) -> Plan:
    wanted: DesiredModel = model("chat", of, source=source)
    told: dict[str, Weights] = {}
    if weights is not None:
        told[weights_digest(source)] = replace(weights, digest=weights_digest(source))
    seen = Observed(nodes=observed(*boxes).nodes, weights=told)
    record = replace(empty_record(), measured=measured or {})
    return plan(
        desired([node(box.name) for box in boxes], [wanted]), record, seen, ADAPTERS, now=NOW, options=OPTIONS
    )


def change(made: Plan) -> Change:
    (found,) = [each for each in made.changes if each.model]
    return found


def llama(size: float = 29.5) -> Weights:
    return known(configs.LLAMA_8B, size=int(size * GIB))


def test_the_sum_and_the_node_that_is_taken_read_as_a_person_would_say_it() -> None:
    busy = l40s("gpu03", memory_used=32 * GIB, processes=(stranger(int(31.9 * GIB)),))
    text = render.plan_text(planned(runs(), busy, l40s("gpu04"), weights=llama()))
    assert (
        "because  needs 18.8 GiB on each of 2 x l40s-45g: weights 15.0, kv 2.0 (32,768 tokens), activations 1.2 "
        "(2,048 at once), overhead 0.6; it may use 40.5 of 45.0, enough for 11.8 such requests at once"
        in text
    )
    assert (
        "not on   gpu03: not enough GPU; needs 18.8 GiB on each of 2 x l40s-45g: weights 15.0, kv 2.0 (32,768 tokens), "
        "activations 1.2 (2,048 at once), overhead 0.6; it may use 40.5 of 45.0, enough for 11.8 such requests at once; "
        "1 of 2 GPUs free; GPU 1 has 13.1 GiB free, pid 4711 of user ann holds 31.9 GiB" in text
    )


def test_a_model_too_large_is_refused_with_what_would_fit() -> None:
    made = planned(runs(tensor=1, max_model_len=131_072), l40s("gpu01", 4), weights=llama(29.5))
    blocked = change(made)
    assert blocked.keyword == "no-room"
    assert blocked.reason.endswith(
        "it would fit with maxModelLen: 73984, or with quantization: fp8, or with gpus.perNode: 2 and parallel.tensor: 2"
    )
    assert not any(step.kind is StepKind.START for step in made.steps)


def test_heads_that_do_not_divide_are_refused_for_every_node_at_once() -> None:
    made = planned(runs(tensor=8), l40s("gpu01", 8), weights=known(configs.QWEN25_7B))
    assert change(made).keyword == "wrong-shape"
    assert change(made).reason.startswith(
        "28 attention heads of Qwen2ForCausalLM can't be divided by parallel.tensor 8: 4 would do"
    )


def test_what_was_measured_is_used_and_said() -> None:
    first = planned(runs(), l40s("gpu01"), weights=llama())
    (start,) = [step.launch for step in first.steps if step.launch is not None]
    assert start.measure is not None
    assert start.measure.about == "chat on vllm 0.33.0, l40s-45g"
    said = Measured(
        key=start.measure.key,
        about=start.measure.about,
        values={"weights": ("14.9", "14.9"), "kv": ("24.0", "23.5")},
        given=start.measure.given,
    )
    longer = planned(runs(max_model_len=65_536), l40s("gpu01"), weights=llama(), measured={said.key: said})
    assert (
        "weights 14.9 (measured), kv 4.0 (65,536 tokens), activations and overhead 2.1 (measured)"
        in render.plan_text(longer)
    )


def test_what_vllm_has_refused_is_not_tried_again() -> None:
    first = planned(runs(tensor=1), l40s("gpu01", 1), weights=llama(15))
    (start,) = [step.launch for step in first.steps if step.launch is not None]
    assert start.measure is not None
    said = Measured(
        key=start.measure.key, about="", values={"longest": ("20512",)}, given=start.measure.given
    )
    again = planned(runs(tensor=1), l40s("gpu01", 1), weights=llama(15), measured={said.key: said})
    placement = change(again).placement
    assert placement is not None
    assert "at most 20,512 tokens fit, not 32,768: write maxModelLen: 20512" in placement.rejections[0].reason
    shorter = planned(
        runs(tensor=1, max_model_len=20_512), l40s("gpu01", 1), weights=llama(15), measured={said.key: said}
    )
    assert any(step.kind is StepKind.START for step in shorter.steps)


def test_sglang_leaves_free_what_it_computes_in() -> None:
    text = render.plan_text(planned(runs(SGLANG), l40s("gpu01"), weights=llama()))
    assert (
        "needs 23.9 GiB on each of 2 x l40s-45g: weights 15.0, kv 2.0 (32,768 tokens), activations and overhead 6.8 (left free)"
        in text
    )
    fraction = render.plan_text(
        planned(runs(SGLANG, gpu_memory_utilization=0.5), l40s("gpu01"), weights=llama())
    )
    assert (
        "needs 17.0 GiB on each of 2 x l40s-45g: weights 15.0, kv 2.0 (32,768 tokens); it may use 22.5 of 45.0"
        in fraction
    )


@pytest.mark.parametrize("config", [configs.JAMBA])
def test_an_architecture_nobody_reckons_needs_a_word(config: dict[str, Any]) -> None:
    blocked = change(planned(runs(tensor=1), l40s("gpu01"), weights=known(config, size=GIB)))
    assert blocked.keyword == "unknown-size"
    assert "carry a state along (mamba_d_state); its weights are 1.0 GiB: write memory:" in blocked.reason
    assert "write memory: in the profile" in blocked.reason
    stated = planned(runs(tensor=1, memory=Size(20 * GIB)), l40s("gpu01"), weights=known(config, size=GIB))
    assert any(step.kind is StepKind.START for step in stated.steps)
    large = planned(runs(tensor=1, memory=Size(60 * GIB)), l40s("gpu01"), weights=known(config, size=GIB))
    assert change(large).keyword == "no-room"


def test_llama_cpp_on_the_cpu_sets_aside_what_its_file_says() -> None:
    head = gguf.read(headers.llama(vocab=500))
    seen = Inspection(
        path="/m/x.gguf", format="gguf", tensors=head.types, parts=head.parts, metadata=head.settings
    )
    source = Source(path="/m/x.gguf")
    weights = weights_of(weights_digest(source), "x.gguf", seen)
    of = ProfileSpec(
        engine=Engine(name="llamacpp", version="2026.10.11549"), gpus=Gpus(per_node=0), max_model_len=2048
    )
    made = planned(of, l40s("gpu01"), weights=weights, source=source)
    placement = change(made).placement
    assert placement is not None
    assert placement.ranks[0].memory > weights.size
    assert any(
        reason.startswith("needs no GPU, 0.1 GiB of host memory: weights ") for reason in placement.reasons
    )
    unknown = planned(of, l40s("gpu01"), weights=None, source=source)
    assert change(unknown).keyword == "unknown-size"


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_a_quantization_beyond_the_gpu_is_refused_though_only_its_size_is_stated(engine: Engine) -> None:
    asked = runs(engine, quantization="nvfp4", memory=Size(20 * GIB))
    blocked = change(planned(asked, l40s("gpu01"), weights=None))
    assert blocked.keyword == "no-room"
    assert blocked.placement is not None
    (turned_down,) = blocked.placement.rejections
    assert turned_down.reason == "l40s-45g can't run it: nvfp4 needs compute capability 10.0, it has 8.9"
