"""The example of LoRA adapters, planned as its page tells people to."""

import pytest

from llmgw.model.problems import InvalidError
from tests.core.examples import planned, text_of

EXAMPLE = "lora"


def test_adapters_are_on_llama_cpps_command_line_and_not_on_vllms() -> None:
    made = planned(EXAMPLE)
    assert not made.blocked
    text = text_of(made)
    assert "--enable-lora --max-loras 2 --max-cpu-loras 2 --max-lora-rank 16 " in text
    assert "--lora-scaled ${adapter:polite}:0" in text
    assert "--lora-modules" not in text
    orders = {step.launch.model: step.launch.lora for step in made.steps if step.launch is not None}
    loaded = {
        model: [each.name for each in lora.adapters] for model, lora in orders.items() if lora is not None
    }
    assert loaded == {"qwen3-8b": ["sql", "team/legal"], "small": ["polite"]}


def test_a_higher_rank_and_a_list_of_the_start_are_seen_on_the_command_line() -> None:
    first = "    - {name: sql,"
    big = "    - {name: big, source: {path: /data/adapters/big}, rank: 64}\n"
    assert "--max-lora-rank 64 " in text_of(planned(EXAMPLE, changed={"models.yaml": (first, big + first)}))
    fixed = planned(EXAMPLE, changed={"models.yaml": ("  maxLoadedAdapters: 2\n", "")})
    assert "--lora-modules sql=${adapter:sql} team/legal=${adapter:team/legal} " in text_of(fixed)


def test_llama_cpp_is_asked_for_none_while_it_runs() -> None:
    small = "  source: {path: /data/weights/small.gguf}\n"
    with pytest.raises(
        InvalidError, match=r"spec\.maxLoadedAdapters: llama\.cpp loads adapters when it starts"
    ):
        planned(EXAMPLE, changed={"models.yaml": (small, f"{small}  maxLoadedAdapters: 1\n")})
