"""llama.cpp: its own HTTP server, installed as a wheel (xllamacpp) with our launcher, or found at a path.

One process a replica; several GPUs hold a model in layers. ``-c`` is shared out among the slots of ``-np``, so it is
``maxModelLen`` times as many. Facts behind the flags: docs/engines.md.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from llmgw.core.adapter import NOTHING_KNOWN, Known, Need, NodeContext, Placed
from llmgw.engines import checks, helps, lora, parallel, weights
from llmgw.engines.environment import environment, escape
from llmgw.engines.install import install, program_path
from llmgw.engines.memory import gguf, needs
from llmgw.engines.probes import openai_probes
from llmgw.engines.shard import launch_spec, with_adapters
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import (
    ENGINE,
    FetchSpec,
    HelpSpec,
    HttpProbe,
    InstallSpec,
    LaunchSpec,
    LoraListing,
    LoraOrder,
    Process,
    Program,
)
from llmgw.model.manifest import Adapter, Pip
from llmgw.model.problems import Problem
from llmgw.model.record import RankPlacement
from llmgw.model.struct import replace

SERVER = "llama-server"
EXAMPLE_VERSION = "2026.10.11549"
IN_FLIGHT = ("llamacpp:requests_processing", "llamacpp:requests_deferred")

SLOTS = frozenset({"-np", "--parallel"})
LAYERS = frozenset({"-ngl", "--gpu-layers", "--n-gpu-layers"})
BATCHES = frozenset({"-b", "--batch-size", "-ub", "--ubatch-size"})

LISTING = LoraListing(probe=HttpProbe(path="/lora-adapters", authorized=True), place="path")
"""By place, not by name: a request chooses one by its number."""

_WEIGHTS = "write the weights in the model's spec.source"
_ADAPTERS = "write them as adapters: in the model"
_KEY = "the key comes from the fleet's secret: leave it out"
_OURS = {
    **dict.fromkeys(("-m", "--model"), _WEIGHTS),
    **dict.fromkeys(("-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"), _WEIGHTS),
    **dict.fromkeys(("-dr", "--docker-repo", "--models-dir", "--models-preset"), _WEIGHTS),
    "--rpc": "its workers have no key, and one that is lost takes the server with it: write engine: {name: custom}, as "
    "examples/custom-engine does",
    "--reuse-port": "the plan gives each engine a port of its own: leave it out",
    "-a": "write the name in the model's spec.servedName",
    "--alias": "write the name in the model's spec.servedName",
    "--host": "engines bind to the node's address: write it in the node's spec.address",
    "--port": "the plan chooses the port from the node's spec.ports",
    "-c": "write the tokens of one request in spec.maxModelLen",
    "--ctx-size": "write the tokens of one request in spec.maxModelLen",
    "--metrics": "it is always on: drains count requests by it",
    "--no-webui": "it is always set",
    "--webui": "engines serve the API only: leave it out",
    "--no-ui": "it is always set",
    "--ui": "engines serve the API only: leave it out",
    "--embedding": "write task: embed in the model",
    "--embeddings": "write task: embed in the model",
    "--rerank": "write task: rerank in the model",
    "--reranking": "write task: rerank in the model",
    "--api-key": _KEY,
    "--api-key-file": _KEY,
    **dict.fromkeys(("--lora", "--lora-scaled", "--lora-init-without-apply"), _ADAPTERS),
    "--api-prefix": "probes and clients expect /v1 at the root: leave it out",
    "--ssl-key-file": "probes and clients speak plain HTTP to the node's address: leave it out",
    "--ssl-cert-file": "probes and clients speak plain HTTP to the node's address: leave it out",
}
_KEPT = {
    "LLAMA_API_KEY": "it holds the replica's key: leave it out",
    "LLAMA_ARG_*": "write it as a flag in spec.args, so that the plan shows it",
}


class LlamaCpp:
    """See :class:`llmgw.core.adapter.EngineAdapter`."""

    name = "llamacpp"
    lora_ranks = ()

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        return (
            *checks.engine_problems(model, version_needed=True, example=EXAMPLE_VERSION, archives=True),
            *checks.gpu_problems(model),
            *checks.name_problems(model),
            *parallel.ray_problems(model, "llama.cpp"),
            *_shape_problems(model),
            *_weights_problems(model),
            *lora.problems(model, highest=None, engine="llama.cpp"),
            *_adapter_problems(model),
            *checks.argument_problems(model, _OURS),
            *_count_problems(model),
            *checks.variable_problems(model, _KEPT),
        )

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        del model
        return ()

    def weights(self, model: DesiredModel) -> str | None:
        return weights.weights_digest(model.spec.source)

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        return needs.need(model, known, gguf.Gguf(), ports=1)

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        version = model.profile.engine.version or ""
        return install(
            model.profile.engine,
            node.spec,
            pip,
            version=version,
            program=Program(runtime="llamaserver", install_as=SERVER),
            requirements=(f"xllamacpp=={version}",),
            help_=self.help(model),
        )

    def help(self, model: DesiredModel) -> HelpSpec | None:
        return helps.llamacpp(model.profile.engine, SERVER)

    def fetch(self, model: DesiredModel, pip: Pip) -> FetchSpec | None:
        return weights.fetch(model.spec.source, pip)

    def lora(self, model: DesiredModel) -> LoraOrder | None:
        if not model.spec.adapters:
            return None
        return LoraOrder(adapters=lora.adapters(model, _asked_by), listing=LISTING, form="gguf")

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        return lora.fetches(model, pip)

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        (rank,) = placed.ranks
        node, model = placed.nodes[rank.node], placed.model
        program = program_path(model.profile.engine, SERVER)
        process = Process(
            name=ENGINE,
            argv=(program, *_arguments(model, rank)),
            env=environment(
                placed,
                rank,
                search="" if model.profile.engine.path else "${engine}/bin",
                fixed={"LLAMA_API_KEY": "${key}"},
            ),
        )
        probes = openai_probes(
            host=rank.address,
            port=rank.ports[0],
            served_name=model.served_name,
            task=model.spec.task,
            in_flight=IN_FLIGHT,
        )
        spec = launch_spec(
            placed,
            rank,
            processes=(process,),
            probes=probes,
            install=self.install(model, node, placed.pip),
            fetch=self.fetch(model, placed.pip),
            weights_path=model.spec.source.path,
        )
        spec = with_adapters(spec, self.lora(model), placed)
        reads = weights.weights_digest(model.spec.source)
        return (replace(spec, measure=gguf.measured_by(placed, rank, reads)),)


def _arguments(model: DesiredModel, rank: RankPlacement) -> tuple[str, ...]:
    asked = model.profile.args + model.spec.args
    slots, asked = checks.take(asked, SLOTS)
    layers, asked = checks.take(asked, LAYERS)
    count = int(slots or 1)
    return (
        "-m",
        "${weights}",
        "--alias",
        escape(model.served_name),
        "--host",
        rank.address,
        "--port",
        str(rank.ports[0]),
        "-c",
        str((model.profile.max_model_len or 0) * count),  # 0: what the model was trained with
        "-np",
        str(count),
        "-ngl",
        (layers or "99") if rank.gpus else "0",
        "--metrics",
        "--no-webui",
        *_lora(model),
        *_task_flags(model, asked),
        *(escape(arg) for arg in asked),
    )


def _lora(model: DesiredModel) -> tuple[str, ...]:
    """At scale 0: an adapter only answers a request that asks for it. Loaded at scale 1 it would answer all."""
    files = [f"{lora.place(adapter)}:0" for adapter in model.spec.adapters]
    return ("--lora-scaled", ",".join(files)) if files else ()


def _asked_by(index: int, adapter: Adapter) -> Mapping[str, Any]:
    """By its place on the command line. Without ``cache_prompt`` off, what the cache holds of another adapter's answer to the same
    prompt would be taken."""
    del adapter
    return {"lora": [{"id": index, "scale": 1.0}], "cache_prompt": False}


def _task_flags(model: DesiredModel, asked: tuple[str, ...]) -> tuple[str, ...]:
    """An embedding needs its whole input in one batch, or inputs longer than 512 tokens are refused."""
    flags: tuple[str, ...] = {"embed": ("--embeddings",), "rerank": ("--reranking",)}.get(model.spec.task, ())
    length = model.profile.max_model_len
    if flags and length is not None and not BATCHES.intersection(asked):
        flags += ("-b", str(length), "-ub", str(length))
    return flags


def _shape_problems(model: DesiredModel) -> Iterator[Problem]:
    profile = model.profile
    for part in ("tensor", "pipeline", "data"):
        asked = getattr(profile.parallel, part)
        if asked != 1:
            yield Problem(
                what=f"spec.parallel.{part}: llama.cpp runs one process a replica, not {asked}",
                instead="leave it out; with gpus.perNode above 1 llama.cpp spreads the layers over them",
            )
    if profile.nodes != 1:
        yield Problem(
            what=f"spec.nodes: llama.cpp serves from one node, not {profile.nodes}",
            instead="write nodes: 1, and more replicas in the model",
        )
    if profile.quantization is not None:
        yield Problem(
            what="spec.quantization: a GGUF file is quantized already",
            instead="leave it out and choose the file in the model's spec.source",
        )
    if profile.dtype != "auto":
        yield Problem(
            what=f"spec.dtype: a GGUF file has its types inside, {profile.dtype!r} would be ignored",
            instead="leave it out",
        )
    if profile.gpu_memory_utilization != 0.9:
        yield Problem(
            what="spec.gpuMemoryUtilization: llama.cpp takes what weights and context need, no share of a GPU",
            instead="leave it out",
        )


def _weights_problems(model: DesiredModel) -> Iterator[Problem]:
    source = model.spec.source
    if source.hugging_face is not None:
        yield Problem(
            what="spec.source.huggingFace: llama.cpp reads one GGUF file, not a repository",
            instead="write url: with the file's address and sha256:, or path: with a file on the node",
        )
        return
    path, field = source.path, "path"
    if source.url is not None:
        path, field = source.url.partition("?")[0], "url"
    elif source.pip is not None:
        path, field = source.pip.file, "pip.file"
    if path is not None and not path.lower().endswith(".gguf"):
        yield Problem(
            what=f"spec.source.{field}: {path!r} is no GGUF file, and llama.cpp reads nothing else",
            instead="name a file that ends in .gguf",
        )


def _adapter_problems(model: DesiredModel) -> Iterator[Problem]:
    if model.spec.max_loaded_adapters:
        yield Problem(
            what="spec.maxLoadedAdapters: llama.cpp loads adapters when it starts, all of them",
            instead="leave it out",
        )
    yield from lora.gguf_problems(model)


def _count_problems(model: DesiredModel) -> Iterator[Problem]:
    """Flags that llmgw takes over from people, so that it can reckon with them."""
    for args in (model.profile.args, model.spec.args):
        slots, _ = checks.take(args, SLOTS)
        if slots is not None and not (slots.isascii() and slots.isdigit() and 1 <= int(slots) <= 256):
            yield Problem(
                what=f"{checks.place_of(args, SLOTS)}: {slots!r} is no number of slots for -np",
                instead="write a number from 1 to 256: the context is maxModelLen times as large",
            )
        layers, _ = checks.take(args, LAYERS)
        if layers is None:
            continue
        if model.profile.gpus.per_node == 0:
            yield Problem(
                what=f"{checks.place_of(args, LAYERS)}: -ngl puts layers on GPUs, but gpus.perNode is 0",
                instead="leave it out, or write gpus.perNode: 1",
            )
        elif not (layers.isascii() and layers.isdigit()) and layers not in {"auto", "all"}:
            yield Problem(
                what=f"{checks.place_of(args, LAYERS)}: {layers!r} is no number of layers for -ngl",
                instead="write a number, auto or all",
            )
