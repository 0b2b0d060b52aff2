"""SGLang: ``python -m sglang.launch_server``, on one node or on several by its own launch.

The flags are those of the versions that :mod:`llmgw.engines.versions` names. Facts behind them: docs/engines.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmgw.core.adapter import NOTHING_KNOWN, Known, Need, NodeContext, Placed
from llmgw.engines import checkpoint, checks, helps, lora, parallel, weights
from llmgw.engines.environment import environment, escape
from llmgw.engines.install import environment_program, install
from llmgw.engines.memory import needs
from llmgw.engines.memory.sglang import StaticPart, measured_by
from llmgw.engines.probes import openai_probes
from llmgw.engines.shard import host_port, launch_spec, with_adapters
from llmgw.engines.versions import SGLANG
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import (
    ENGINE,
    FetchSpec,
    File,
    HelpSpec,
    InstallSpec,
    LaunchSpec,
    LoraOrder,
    Probes,
    Process,
    WaitFor,
)
from llmgw.model.manifest import Adapter, Pip, ProfileSpec
from llmgw.model.problems import Problem
from llmgw.model.record import RankPlacement
from llmgw.model.struct import replace

IN_FLIGHT = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
HIGHEST_RANK = 1024
KEY_FILE = "sglang.yaml"
WORKER_STOP = 10.0
"""Seconds to end for ranks beside the first: they ignore SIGTERM and go when rank 0 tells them, or when they are killed."""
ATTENTION_PORTS = 13
"""With attention data parallel SGLang also binds ports after the one where ranks meet: the next six, and the thirteenth."""

_KEY = "the key comes from the fleet's secret: leave it out"
_WEIGHTS = "write the weights in the model's spec.source"
_RANKS = "the plan counts the ranks: write nodes: in the profile"
_LORA = "write adapters: and maxLoadedAdapters: in the model"
_PLAIN = "probes and clients speak plain HTTP to the node's address: leave it out"
OURS: Mapping[str, str] = {
    "--model-path": _WEIGHTS,
    "--model": _WEIGHTS,
    "--served-model-name": "write the name in the model's spec.servedName",
    "--host": "engines bind to the node's address: write it in the node's spec.address",
    "--port": "the plan chooses the port from the node's spec.ports",
    "--api-key": _KEY,
    "--admin-api-key": "agents change adapters with the replica's key, which an admin key would shut out: leave it out",
    "--config": "write its flags in spec.args, so that the plan shows them",
    "--context-length": "write maxModelLen: in the profile",
    "--dtype": "write dtype: in the profile",
    "--quantization": "write quantization: in the profile",
    "--mem-fraction-static": "write gpuMemoryUtilization: in the profile",
    **dict.fromkeys(("--tp-size", "--tensor-parallel-size"), "write parallel.tensor: in the profile"),
    **dict.fromkeys(("--pp-size", "--pipeline-parallel-size"), "write parallel.pipeline: in the profile"),
    **dict.fromkeys(("--dp-size", "--data-parallel-size"), "write parallel.data: in the profile"),
    **dict.fromkeys(("--nnodes", "--node-rank"), _RANKS),
    **dict.fromkeys(("--dist-init-addr", "--nccl-init-addr"), "the plan chooses the meeting point"),
    **dict.fromkeys(("--base-gpu-id", "--gpu-id-step"), "the plan chooses the GPUs: leave it out"),
    "--enable-metrics": "it is always on: drains count requests by it",
    **dict.fromkeys(("--enable-lora", "--lora-paths", "--max-loras-per-batch"), _LORA),
    **dict.fromkeys(("--max-loaded-loras", "--max-lora-rank"), _LORA),
    "--is-embedding": "write task: embed in the model",
    **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile", "--grpc-mode", "--smg-grpc-mode"), _PLAIN),
    "--grpc-port": "nobody has set a port aside for it: leave it out",
}
_KEPT = {
    "SGLANG_HOST_IP": "it is the node's address: write that in the node's spec.address",
    "HOST_IP": "it is the node's address: write that in the node's spec.address",
}


class Sglang:
    """See :class:`llmgw.core.adapter.EngineAdapter`."""

    name = "sglang"
    lora_ranks = (*lora.RANKS, HIGHEST_RANK)

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        data = 1 if _attention(model) else model.profile.parallel.data
        return (
            *checks.engine_problems(model, version_needed=True, example=SGLANG.newest),
            *checks.gpu_problems(model),
            *checks.name_problems(model),
            *_name_problems(model),
            *parallel.world_problems(model, data=data),
            *parallel.ray_problems(model, "SGLang"),
            *_shape_problems(model),
            *checkpoint.problems(model, "SGLang"),
            *lora.problems(model, highest=HIGHEST_RANK, engine="SGLang"),
            *lora.peft_problems(model, "SGLang"),
            *checks.argument_problems(model, OURS, argparse=True),
            *checks.variable_problems(model, _KEPT),
        )

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        engine = model.profile.engine
        found = [*SGLANG.untried(engine)]
        if not SGLANG.has(engine, "config-file"):
            found.append(
                Problem(
                    what=f"spec.engine.version: SGLang {engine.version} takes its key on the command line only, which "
                    "every user of the node can read",
                    instead=f"use {SGLANG.traits['config-file'].since} or later",
                )
            )
        return tuple(found)

    def weights(self, model: DesiredModel) -> str | None:
        return weights.weights_digest(model.spec.source)

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        return needs.need(model, known, StaticPart(), ports=1, leader_ports=_leader_ports(model))

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        engine = model.profile.engine
        version = engine.version or ""
        needed = (f"sglang=={version}",)
        return install(engine, node.spec, pip, version=version, requirements=needed, help_=self.help(model))

    def help(self, model: DesiredModel) -> HelpSpec | None:
        return helps.sglang(model.profile.engine)

    def fetch(self, model: DesiredModel, pip: Pip) -> FetchSpec | None:
        return weights.fetch(model.spec.source, pip)

    def lora(self, model: DesiredModel) -> LoraOrder | None:
        if lora.lora(model) is None:
            return None
        return LoraOrder(
            adapters=lora.adapters(model, _asked_by(model.served_name)),
            listing=lora.OPENAI_LIST,
            calls=lora.calls(
                model, highest_rank=_highest_rank(model), already="because it is already loaded"
            ),
            form="peft",
        )

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        return lora.fetches(model, pip)

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        return tuple(self._rank(placed, rank) for rank in placed.ranks)

    def _rank(self, placed: Placed, rank: RankPlacement) -> LaunchSpec:
        model = placed.model
        spec = launch_spec(
            placed,
            rank,
            processes=(_process(placed, rank),),
            probes=_probes(model, rank),
            install=self.install(model, placed.nodes[rank.node], placed.pip),
            fetch=self.fetch(model, placed.pip),
            weights_path=model.spec.source.path,
            stop=min(model.profile.timeouts.stop, WORKER_STOP) if rank.rank else None,
        )
        spec = with_adapters(spec, self.lora(model), placed)
        digest = weights.weights_digest(model.spec.source)
        return replace(spec, measure=measured_by(placed, rank, digest))


def _leader_ports(model: DesiredModel) -> int:
    if _attention(model):
        return 1 + ATTENTION_PORTS
    return 1 if model.profile.nodes > 1 else 0


def _attention(model: DesiredModel) -> bool:
    """Whether copies of attention alone share the GPUs of tensor parallel, by either of the flags for it."""
    return checks.given(model, "--enable-dp-attention", "--attn-dp-size", "--attention-data-parallel-size")


# ---- the process -------------------------------------------------------------------------------------


def _process(placed: Placed, rank: RankPlacement) -> Process:
    model = placed.model
    by_file = SGLANG.has(model.profile.engine, "config-file")
    key = ("--config", f"${{home}}/{KEY_FILE}") if by_file else ("--api-key", "${key}")
    python = environment_program(model.profile.engine, "python")
    return Process(
        name=ENGINE,
        argv=(python, "-m", "sglang.launch_server", *key, *_arguments(placed, rank)),
        env=_environment(placed, rank),
        files=(File(path=KEY_FILE, content='api-key: "${key}"\n'),) if by_file else (),
        wait_for=_wait_for_leader(placed) if rank.rank else None,
    )


def _environment(placed: Placed, rank: RankPlacement) -> Mapping[str, str]:
    # Weights are on the node already: without these a node without internet waits for timeouts.
    defaults = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    search = environment_program(placed.model.profile.engine, "").rstrip("/")
    return environment(placed, rank, search=search, defaults=defaults, fixed={"SGLANG_HOST_IP": rank.address})


def _wait_for_leader(placed: Placed) -> WaitFor:
    """Where the leader listens first. With attention data parallel it tells the others the ports of its workers there, and only
    then opens the port where ranks meet: who waited for that one would be waited for."""
    model, leader = placed.model, placed.ranks[0]
    told_first = _attention(model) and SGLANG.has(model.profile.engine, "attention-handshake")
    port = leader.ports[-1] if told_first else leader.ports[1]
    return WaitFor(host=leader.address, port=port, timeout=model.profile.timeouts.rendezvous)


def _probes(model: DesiredModel, rank: RankPlacement) -> Probes:
    """Only rank 0 serves. The others answer /health with 200 whatever happens, which proves nothing."""
    if rank.rank:
        return Probes(port=None, host=rank.address)
    return openai_probes(
        host=rank.address,
        port=rank.ports[0],
        served_name=model.served_name,
        task=model.spec.task,
        in_flight=IN_FLIGHT,
        # /health computes a token each time; /ready does not.
        health="/ready" if SGLANG.has(model.profile.engine, "ready-route") else "/health",
    )


# ---- the command line --------------------------------------------------------------------------------


def _arguments(placed: Placed, rank: RankPlacement) -> Iterator[str]:
    model = placed.model
    yield from ("--model-path", "${weights}", "--served-model-name", escape(model.served_name))
    yield from ("--host", rank.address, "--port", str(rank.ports[0]))
    yield from _limits(model.profile)
    yield from _parallel(placed, rank)
    yield "--enable-metrics"
    yield from _lora(model)
    if model.spec.task in ("embed", "rerank"):
        yield "--is-embedding"
    yield from (escape(arg) for arg in model.profile.args + model.spec.args)


def _limits(profile: ProfileSpec) -> Iterator[str]:
    if profile.max_model_len is not None:
        yield from ("--context-length", str(profile.max_model_len))
    if profile.dtype != "auto":
        yield from ("--dtype", profile.dtype)
    if profile.quantization is not None:
        yield from ("--quantization", escape(profile.quantization))
    if profile.gpus.per_node == 0:
        yield from ("--device", "cpu")
    elif profile.gpu_memory_utilization != ProfileSpec(engine=profile.engine).gpu_memory_utilization:
        yield from ("--mem-fraction-static", f"{profile.gpu_memory_utilization:g}")


def _parallel(placed: Placed, rank: RankPlacement) -> Iterator[str]:
    parallel_, leader = placed.model.profile.parallel, placed.ranks[0]
    sizes = (
        ("--tp-size", parallel_.tensor),
        ("--pp-size", parallel_.pipeline),
        ("--dp-size", parallel_.data),
    )
    for flag, size in sizes:
        if size > 1:
            yield from (flag, str(size))
    if len(placed.ranks) > 1:
        yield from ("--nnodes", str(len(placed.ranks)), "--node-rank", str(rank.rank))
    if len(leader.ports) > 1:
        yield from ("--dist-init-addr", host_port(leader.address, leader.ports[1]))


def _lora(model: DesiredModel) -> Iterator[str]:
    """Rank and targets are told, because without adapters at the start there is nothing to infer them from. A batch's
    places include one for the model itself."""
    found = lora.lora(model)
    if found is None:
        return
    places = str(found.slots + 1)
    yield from ("--enable-lora", "--max-loras-per-batch", places, "--max-loaded-loras", places)
    yield from ("--max-lora-rank", str(_highest_rank(model)))
    if not checks.given(model, "--lora-target-modules"):
        yield from ("--lora-target-modules", "all")
    if found.static:
        yield from ("--lora-paths", *(f"{name}={path}" for name, path in found.static))


def _highest_rank(model: DesiredModel) -> int:
    """Where adapters come later, with room for the next one."""
    found = lora.lora(model)
    assert found is not None, "asked for models with adapters only"
    return lora.rounded(found.rank, Sglang.lora_ranks) if found.on_demand else found.rank


def _asked_by(served_name: str) -> Callable[[int, Adapter], Mapping[str, Any]]:
    return lambda _, adapter: {"model": f"{served_name}:{adapter.name}"}


# ---- what can't be ------------------------------------------------------------------------------------


def _name_problems(model: DesiredModel) -> Iterator[Problem]:
    if ":" in model.served_name:
        yield Problem(
            what=f"spec.servedName: SGLang refuses the colon in {model.served_name!r}, which it keeps for the names of adapters",
            instead="write another character in its place",
        )


def _shape_problems(model: DesiredModel) -> Iterator[Problem]:
    profile = model.profile
    if profile.nodes > 1 and profile.parallel.data > 1 and not _attention(model):
        yield Problem(
            what=f"spec.parallel.data: SGLang keeps copies of a model on one node, and spec.nodes is {profile.nodes}",
            instead="write more replicas in the model, or args: [--attn-dp-size, …] for attention alone",
        )
    if profile.parallel.data > 1 and model.spec.max_loaded_adapters and not _attention(model):
        yield Problem(
            what=f"spec.maxLoadedAdapters: SGLang loads no adapters into {profile.parallel.data} copies while it runs "
            "(parallel.data)",
            instead="leave it out, and all adapters are loaded at the start, or write more replicas in the model",
        )
    if profile.gpus.share is not None:
        yield Problem(
            what="spec.gpus.share: SGLang's own limit leaves out what it computes with, so it can't be held to a share",
            instead="give it a whole GPU, or use vllm",
        )
    if profile.gpus.per_node == 0 and profile.engine.version is not None:
        yield Problem(
            what="spec.gpus.perNode: SGLang's packages compute on GPUs, and perNode is 0",
            instead="write perNode: 1, or engine.path with a build for CPUs",
        )
