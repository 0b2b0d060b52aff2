"""LoRA adapters as engines are asked for them: what can't be one, how each is asked, what an agent is told to call."""

import json
from typing import Any

import pytest

from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import Adapter, Engine, Pip, PipFile, Source
from tests.engines.cases import CPU, LLAMA, SHA, SIM, model, profile

VLLM, SGLANG = Engine(name="vllm", version="0.33.0"), Engine(name="sglang", version="0.5.23")
HUB = Source(hugging_face="lab/sql", revision="6f6073b423013f6a7d4d9f39144961bfbfbc386b")
FILE = Source(url="https://adapters.example/sql.gguf", sha256=SHA)
IN_WHEEL = Source(pip=PipFile(requirement="lab-sql==1", file="lab/sql.gguf", sha256=SHA))


def of(engine: Engine, *sources: Source, most: int = 0, **more: Any) -> DesiredModel:
    adapters = tuple(Adapter(name=f"a{n}", source=source) for n, source in enumerate(sources))
    runs = profile(engine, gpus=CPU) if engine in (LLAMA, SIM) else profile(engine)
    source = Source(path="/models/x.gguf" if engine is LLAMA else "/models/x")
    return model(runs, source, adapters=adapters, max_loaded_adapters=most, **more)


def problems(asked: DesiredModel) -> list[str]:
    return [problem.what for problem in ADAPTERS[asked.profile.engine.name].validate(asked)]


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda it: it.name)
@pytest.mark.parametrize(
    ("source", "field"),
    [(FILE, "url"), (IN_WHEEL, "pip.file"), (Source(path="/adapters/sql.GGUF"), "path")],
)
def test_one_file_is_no_directory_of_peft(engine: Engine, source: Source, field: str) -> None:
    (found,) = problems(of(engine, HUB, source))
    assert found.startswith(f"spec.adapters[1].source.{field}: ")
    assert "reads the directory that PEFT writes" in found


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (HUB, "spec.adapters[0].source.huggingFace: llama.cpp reads adapters as GGUF files"),
        (
            Source(path="/adapters/sql"),
            "spec.adapters[0].source.path: llama.cpp reads adapters as GGUF files",
        ),
        (Source(path="/a,b/sql.gguf"), "spec.adapters[0].source.path: llama.cpp takes the comma or colon"),
        (Source(path="/a:1/sql.gguf"), "spec.adapters[0].source.path: llama.cpp takes the comma or colon"),
    ],
)
def test_llama_cpp_is_given_files_whose_paths_it_takes_as_they_are(source: Source, told: str) -> None:
    (found,) = problems(of(LLAMA, source))
    assert found.startswith(told)


def test_what_each_engine_takes_is_not_refused() -> None:
    assert problems(of(LLAMA, FILE, IN_WHEEL, Source(path="/adapters/sql.gguf"))) == []
    for engine in (VLLM, SGLANG):
        assert problems(of(engine, HUB, Source(path="/adapters/sql"), most=1)) == []
    assert problems(of(SIM, HUB, FILE, IN_WHEEL, Source(path="/x"), most=3)) == []


def test_llama_cpp_loads_none_while_it_runs() -> None:
    (found,) = problems(of(LLAMA, FILE, most=1))
    assert found.startswith("spec.maxLoadedAdapters: llama.cpp loads adapters when it starts")


@pytest.mark.parametrize("flag", ["--lora", "--lora-scaled", "--lora-init-without-apply"])
def test_llama_cpps_own_flags_for_adapters_are_refused_with_the_field(flag: str) -> None:
    (found,) = ADAPTERS["llamacpp"].validate(of(LLAMA, args=(flag, "/x.gguf")))
    assert found.what.startswith(f"spec.args[0]: llmgw decides about {flag}")
    assert found.instead == "write them as adapters: in the model"


ASKED = [
    (VLLM, "chat", {"model": "a0"}),
    (SIM, "chat", {"model": "a0"}),
    (SGLANG, "chat", {"model": "chat:a0"}),
    (LLAMA, "chat", {"lora": [{"id": 0, "scale": 1.0}], "cache_prompt": False}),
]


@pytest.mark.parametrize(("engine", "served", "send"), ASKED, ids=lambda it: str(getattr(it, "name", "")))
def test_how_a_request_is_answered_by_an_adapter(engine: Engine, served: str, send: dict[str, Any]) -> None:
    source = FILE if engine is LLAMA else HUB
    order = ADAPTERS[engine.name].lora(of(engine, source, served_name=served))
    assert order is not None
    assert json.loads(order.adapters[0].send) == send


def test_only_those_that_are_loaded_are_ordered_and_fetched_each_source_once() -> None:
    asked = of(VLLM, HUB, HUB, Source(hugging_face="lab/more", revision=HUB.revision), most=2)
    engine = ADAPTERS["vllm"]
    order = engine.lora(asked)
    assert order is not None
    assert [each.name for each in order.adapters] == ["a0", "a1"]
    (fetch,) = engine.lora_fetches(asked, Pip())
    assert {each.job for each in order.adapters} == {fetch.job}
    assert {each.digest for each in order.adapters} == {fetch.digest}


def test_without_adapters_there_is_nothing_to_do_and_with_places_alone_there_is() -> None:
    for engine in (VLLM, SGLANG, LLAMA, SIM):
        assert ADAPTERS[engine.name].lora(of(engine)) is None
    order = ADAPTERS["vllm"].lora(of(VLLM, most=3))
    assert order is not None
    assert order.calls is not None
    assert (order.adapters, order.calls.most, order.calls.highest_rank) == ((), 3, 16)
