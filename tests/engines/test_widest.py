"""The widest command lines a profile could come to, and real help that knows every flag of them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import llmgw
from llmgw.core.adapter import NodeContext
from llmgw.core.enginecheck.compare import asked_flags, unknown_flags, words_after
from llmgw.engines.registry import ADAPTERS
from llmgw.engines.widest import AS_ASKED, Shape, launches, shapes
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import Engine, Gpus, NodeSpec, Pip, Source
from llmgw.wire.flags import flags_of
from tests.engines.cases import CPU, LLAMA, ON_NODE, model, profile
from tests.engines.wheels import engine_python

RUNTIME = Path(llmgw.__file__).parent / "runtime"
NODE = NodeContext(name="gpu01", spec=NodeSpec(), facts=None)
WEIGHTS = Source(path="/models/chat")


def words(of: DesiredModel, shape: Shape) -> list[str]:
    adapter = ADAPTERS[of.profile.engine.name]
    spec = adapter.help(of)
    assert spec is not None
    return [
        word
        for launch in launches(shape, adapter, NODE, Pip())
        for word in words_after(spec, launch.processes[-1].argv) or ()
    ]


def widest(of: DesiredModel) -> dict[str, set[str]]:
    found = shapes(of, ADAPTERS[of.profile.engine.name])
    assert found[0].what == AS_ASKED
    assert len({shape.what for shape in found}) == len(found)
    return {shape.what: set(asked_flags(words(of, shape))) for shape in found}


def test_vllm_is_asked_for_several_nodes_copies_adapters_and_every_limit() -> None:
    found = widest(model(profile(Engine(name="vllm", version="0.33.0"), gpus=Gpus(per_node=1)), WEIGHTS))
    assert {"--max-loras", "--lora-modules"} <= found["adapters"]
    assert "--api-server-count" in found["parallel.data: 2 and maxLoadedAdapters"]
    assert {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"} <= found["nodes: 2"]
    assert "--distributed-executor-backend" in found["nodes: 2 and launch: ray"]
    assert {"--quantization"} <= found["quantization"]
    assert {"--max-model-len", "--dtype"} <= found["maxModelLen and dtype"]
    assert "--runner" in found["task: embed"]
    assert not {"--enable-lora", "--nnodes", "--quantization"} & found[AS_ASKED]


def test_sglang_is_asked_for_several_nodes_and_adapters() -> None:
    found = widest(model(profile(Engine(name="sglang", version="0.5.23"), gpus=Gpus(per_node=1)), WEIGHTS))
    assert {"--nnodes", "--node-rank", "--dist-init-addr"} <= found["nodes: 2"]
    assert "--enable-lora" in found["maxLoadedAdapters"]


def test_shapes_that_an_engine_refuses_are_left_out() -> None:
    found = widest(model(profile(LLAMA, gpus=CPU), ON_NODE))
    assert not any(what.startswith(("nodes", "parallel", "quantization")) for what in found)
    assert "--lora-scaled" in found["adapters"]


def help_of(command: Sequence[str | Path]) -> tuple[str, ...]:
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return flags_of(told.stdout)


def unknown(of: DesiredModel, known: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    adapter = ADAPTERS[of.profile.engine.name]
    spec = adapter.help(of)
    assert spec is not None
    assert set(spec.sure) <= set(known)
    every = {shape.what: unknown_flags(spec, words(of, shape), known) for shape in shapes(of, adapter)}
    return {what: flags for what, flags in every.items() if flags}


@pytest.mark.parametrize("gpus", [CPU, Gpus(per_node=2)], ids=["cpu", "gpus"])
def test_the_launcher_of_llama_cpps_wheel_knows_every_flag(gpus: Gpus) -> None:
    known = help_of([engine_python(), RUNTIME / "llamaserver.py", "--help"])
    of = model(profile(LLAMA, gpus=gpus, max_model_len=2048), ON_NODE)
    assert unknown(of, known) == {}
    with_args = model(profile(LLAMA, gpus=gpus, args=("--no-such-flag",)), ON_NODE)
    assert unknown(with_args, known)[AS_ASKED] == ("--no-such-flag",)


def test_the_stand_in_knows_every_flag() -> None:
    known = help_of([engine_python(), RUNTIME / "simengine.py", "--help"])
    assert unknown(model(profile(Engine(name="sim"), gpus=Gpus(per_node=1)), WEIGHTS), known) == {}
