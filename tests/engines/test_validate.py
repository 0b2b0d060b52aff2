"""What an engine cannot do is said before anything starts, at the field it is about."""

from typing import Any

import pytest

from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import GIB, Engine, Gpus, Parallel, Size, Source
from tests.engines.cases import BY_URL, CPU, LLAMA, ON_NODE, SHA, SIM, SMOLLM, cases, model, profile
from tests.engines.matrix import matrix


def problems(of: DesiredModel) -> list[str]:
    return [problem.what for problem in ADAPTERS[of.profile.engine.name].validate(of)]


@pytest.mark.parametrize("name", sorted({**cases(), **matrix()}))
def test_nothing_is_wrong_with_what_the_golden_files_launch(name: str) -> None:
    assert problems({**cases(), **matrix()}[name].model) == []


BOTH = Engine(name="llamacpp", version="2026.10.11549", path="/opt/llama.cpp")
PROFILES: list[tuple[str, dict[str, Any]]] = [
    ("spec.engine: version and path", {"engine": BOTH}),
    ("spec.engine.version: llamacpp needs", {"engine": Engine(name="llamacpp")}),
    ("spec.engine.version: '>=1'", {"engine": Engine(name="llamacpp", version=">=1")}),
    ("spec.engine.version: 'latest'", {"engine": Engine(name="llamacpp", version="latest")}),
    ("spec.engine.version: '1.0 --pre'", {"engine": Engine(name="llamacpp", version="1.0 --pre")}),
    ("spec.engine.path", {"engine": Engine(name="llamacpp", path="opt/llama.cpp")}),
    ("spec.gpus.share", {"gpus": Gpus(per_node=2, share=Size(GIB))}),
    ("spec.parallel.tensor", {"parallel": Parallel(tensor=2)}),
    ("spec.parallel.pipeline", {"parallel": Parallel(pipeline=2)}),
    ("spec.parallel.data", {"parallel": Parallel(data=2)}),
    ("spec.nodes", {"nodes": 2}),
    ("spec.quantization", {"quantization": "fp8"}),
    ("spec.dtype", {"dtype": "bfloat16"}),
    ("spec.gpuMemoryUtilization", {"gpu_memory_utilization": 0.5}),
    ("spec.args[1]: llmgw decides about --port", {"args": ("--mlock", "--port", "1")}),
    ("spec.args[0]: llmgw decides about --api-key", {"args": ("--api-key=sekret",)}),
    (
        "spec.args[0]: llmgw decides about --ctx_size, which stands for --ctx-size,",
        {"args": ("--ctx_size", "9")},
    ),
    ("spec.args[0]: llmgw decides about -hf itself", {"args": ("-hf", "lab/other")}),
    ("spec.args[0]: llmgw decides about --rpc itself", {"args": ("--rpc", "10.0.0.9:50052")}),
    ("spec.args[0]: llmgw decides about --reuse-port itself", {"args": ("--reuse-port",)}),
    ("spec.args[0]: '0'", {"args": ("-np", "0")}),
    ("spec.args[0]: ''", {"args": ("-np",)}),
    ("spec.args[0]: 'two'", {"args": ("--parallel=two",)}),
    ("spec.args[0]: 'most'", {"args": ("-ngl", "most")}),
    ("spec.args[0]: -ngl puts layers", {"gpus": CPU, "args": ("-ngl", "10")}),
    ("spec.env.LLAMA_API_KEY", {"env": {"LLAMA_API_KEY": "x"}}),
    ("spec.env.LLAMA_ARG_PORT", {"env": {"LLAMA_ARG_PORT": "1"}}),
    ("spec.env.CUDA_VISIBLE_DEVICES", {"env": {"CUDA_VISIBLE_DEVICES": "0"}}),
    ("spec.env.LLMGW_SHARD", {"env": {"LLMGW_SHARD": "x"}}),
    ("spec.env: 'A B'", {"env": {"A B": "x"}}),
]


@pytest.mark.parametrize(("begins", "fields"), PROFILES, ids=[begins for begins, _ in PROFILES])
def test_llamacpp_refuses_what_it_cannot_do(begins: str, fields: dict[str, Any]) -> None:
    found = problems(model(profile(**({"engine": LLAMA} | fields))))
    assert [what[: len(begins)] for what in found] == [begins]


@pytest.mark.parametrize(
    ("begins", "source"),
    [
        ("spec.source.huggingFace", Source(hugging_face="some/model")),
        ("spec.source.path", Source(path="/models/llama")),
        ("spec.source.url", Source(url="https://models.example/x.safetensors?download=1", sha256=SHA)),
    ],
)
def test_llamacpp_refuses_weights_that_are_no_gguf(begins: str, source: Source) -> None:
    (found,) = problems(model(profile(), source))
    assert found.startswith(begins)


@pytest.mark.parametrize("source", [SMOLLM, BY_URL, ON_NODE])
def test_llamacpp_takes_gguf_from_everywhere(source: Source) -> None:
    assert problems(model(profile(), source)) == []


@pytest.mark.parametrize("engine", [LLAMA, SIM])
@pytest.mark.parametrize("name", ["", "a b", "a,b", "a\nb", "a\x07"])
def test_a_served_name_that_would_break_a_command_line_is_refused(engine: Engine, name: str) -> None:
    (found,) = problems(model(profile(engine), served_name=name))
    assert found.startswith("spec.servedName")


@pytest.mark.parametrize(
    ("begins", "fields"),
    [
        ("spec.args[0]", {"args": ("--served-name", "x")}),
        ("spec.env.SIM_API_KEY", {"env": {"SIM_API_KEY": "x"}}),
        ("spec.launch", {"launch": "ray"}),
        ("spec.engine.path", {"engine": Engine(name="sim", path="sim")}),
    ],
)
def test_sim_refuses_what_it_cannot_do(begins: str, fields: dict[str, Any]) -> None:
    (found,) = problems(model(profile(**({"engine": SIM} | fields))))
    assert found.startswith(begins)


def test_all_problems_are_told_at_once_and_each_with_a_way_out() -> None:
    of = model(profile(nodes=2, dtype="half"), args=("-m", "x"), env={"LLAMA_API_KEY": "x"})
    found = ADAPTERS["llamacpp"].validate(of)
    assert len(found) == 4
    assert all(problem.instead for problem in found)
