"""The tables of the sum, held to what others have measured and published: vLLM on H100, for 8,192 tokens at once."""

from typing import Any

import pytest

from llmgw.core.adapter import GpuKind
from llmgw.engines.memory.footprint import GIB, Footprint
from llmgw.engines.memory.served import Served
from llmgw.model.manifest import Engine, Gpus, Parallel
from tests.engines.cases import model, profile
from tests.engines.memory import configs
from tests.engines.memory.configs import config, known

H100 = GpuKind(gpu_class="h100-80g", memory=int(79.65 * GIB), capability="9.0")
CARD_OF_22 = GpuKind(gpu_class="rtx-a10g-22g", memory=int(22.04 * GIB), capability="8.6")
VLLM = Engine(name="vllm", version="0.33.0")
SIZES = {"num_hidden_layers": 40, "num_attention_heads": 32, "hidden_size": 4096}


def reckoned(of: dict[str, Any], kind: GpuKind = H100, *, tensor: int = 1) -> Footprint:
    runs = profile(VLLM, gpus=Gpus(per_node=tensor), parallel=Parallel(tensor=tensor), max_model_len=4096)
    return Served().footprint(model(runs), known(of), kind)


def line(made: Footprint, name: str) -> float:
    """GiB of one addend."""
    return next(each.size for each in made.lines if each.name == name) / GIB


@pytest.mark.parametrize(
    ("of", "published"),
    [
        (configs.LLAMA_8B, 4.8),
        (configs.LLAMA_70B, 4.8),
        (configs.QWEN25_7B, 5.6),
        (configs.QWEN3_32B, 5.6),
        (configs.MISTRAL_SMALL_32, 2.5),
        (config("PixtralForConditionalGeneration", **SIZES), 2.5),
        (config("Qwen3MoeForCausalLM", **SIZES, num_experts=128), 8.0),
        (configs.DEEPSEEK_V3, 8.0),
        (config("Phi3ForCausalLM", **SIZES), 5.5),
        (configs.GEMMA3_12B, 5.5),
    ],
)
def test_activations_on_h100_are_what_was_published_for_the_family(
    of: dict[str, Any], published: float
) -> None:
    assert line(reckoned(of), "activations") == pytest.approx(published, abs=1e-6)


@pytest.mark.parametrize(("tensor", "published"), [(1, 0.15), (2, 0.6), (4, 0.6)])
def test_what_lies_outside_of_pytorch_is_what_was_published(tensor: int, published: float) -> None:
    assert line(reckoned(configs.LLAMA_8B, tensor=tensor), "overhead") == pytest.approx(published, abs=1e-6)


@pytest.mark.parametrize(
    ("of", "kind", "measured"),
    [(configs.LLAMA_8B, H100, 4.76), (configs.QWEN25_7B, CARD_OF_22, 1.04)],
)
def test_a_model_of_8_billion_takes_no_more_than_is_reckoned_and_not_much_less(
    of: dict[str, Any], kind: GpuKind, measured: float
) -> None:
    """Its activations follow the batch that vLLM chooses for the GPU: 8,192 tokens on one, 2,048 on the other."""
    told = line(reckoned(of, kind), "activations")
    assert measured <= told < measured + 0.5
