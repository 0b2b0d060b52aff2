"""The stand-in: an OpenAI-compatible server of our own runtime that computes nothing and can be told to misbehave.

It claims the GPUs it is given and never touches them, so that whole fleets can be tried without one. Weights that
can be fetched are fetched and must be there; a path is only a name to it. Misbehaviours are plain
flags in ``args`` (docs/engines.md lists them).
"""

from collections.abc import Iterator

from llmgw.core.adapter import NOTHING_KNOWN, Known, Need, NodeContext, Placed
from llmgw.engines import checks, helps, lora, parallel, weights
from llmgw.engines.environment import environment, escape
from llmgw.engines.install import install, program_path
from llmgw.engines.probes import openai_probes
from llmgw.engines.shard import host_port, launch_spec, with_adapters
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import (
    ENGINE,
    FetchSpec,
    HelpSpec,
    InstallSpec,
    LaunchSpec,
    LoraOrder,
    Probes,
    Process,
    Program,
    WaitFor,
)
from llmgw.model.manifest import Pip, ProfileSpec
from llmgw.model.problems import Problem
from llmgw.model.record import RankPlacement

SERVER = "sim-engine"
DEFAULT_VERSION = "1"
IN_FLIGHT = ("sim:requests_running",)

_LORA = "write adapters: and maxLoadedAdapters: in the model"
_OURS = {
    "--host": "engines bind to the node's address: write it in the node's spec.address",
    "--port": "the plan chooses the port from the node's spec.ports",
    "--served-name": "write the name in the model's spec.servedName",
    "--model": "write the weights in the model's spec.source",
    "--rank": "the plan counts the ranks: write nodes: in the profile",
    "--ranks": "the plan counts the ranks: write nodes: in the profile",
    "--rendezvous": "the plan chooses the meeting point",
    **dict.fromkeys(("--adapter", "--max-adapters", "--max-adapter-rank"), _LORA),
    "--pretend": "write the field in the profile",
}
_KEPT = {"SIM_API_KEY": "it holds the replica's key: leave it out"}


class Sim:
    """See :class:`llmgw.core.adapter.EngineAdapter`."""

    name = "sim"
    lora_ranks = lora.RANKS

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        return (
            *checks.engine_problems(model, version_needed=False, example=DEFAULT_VERSION),
            *checks.gpu_problems(model),
            *checks.name_problems(model),
            *parallel.ray_problems(model, "the sim engine"),
            *lora.problems(model, highest=lora.RANKS[-1], engine="the sim engine"),
            *checks.argument_problems(model, _OURS),
            *checks.variable_problems(model, _KEPT),
        )

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        del model
        return ()

    def weights(self, model: DesiredModel) -> str | None:
        del model  # it computes nothing: whatever the weights are, it takes what the profile states
        return None

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        del known
        return checks.stated_need(model, ports=1, leader_ports=1 if model.profile.nodes > 1 else 0)

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        return install(
            model.profile.engine,
            node.spec,
            pip,
            version=model.profile.engine.version or DEFAULT_VERSION,
            program=Program(runtime="simengine", install_as=SERVER),
            help_=self.help(model),
        )

    def help(self, model: DesiredModel) -> HelpSpec | None:
        return helps.sim(model.profile.engine, SERVER)

    def fetch(self, model: DesiredModel, pip: Pip) -> FetchSpec | None:
        return weights.fetch(model.spec.source, pip)

    def lora(self, model: DesiredModel) -> LoraOrder | None:
        if (found := lora.lora(model)) is None:
            return None
        return LoraOrder(
            adapters=lora.adapters(model, lora.by_name),
            listing=lora.OPENAI_LIST,
            calls=lora.calls(
                model,
                prefix="/v1",
                highest_rank=lora.rounded(found.rank, lora.RANKS),
                in_place=True,
                already="already been loaded",
            ),
        )

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        return lora.fetches(model, pip)

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        return tuple(self._rank(placed, rank) for rank in placed.ranks)

    def _rank(self, placed: Placed, rank: RankPlacement) -> LaunchSpec:
        node, model = placed.nodes[rank.node], placed.model
        fetch = self.fetch(model, placed.pip)
        process = Process(
            name=ENGINE,
            argv=(
                program_path(model.profile.engine, SERVER),
                *_arguments(placed, rank, fetched=fetch is not None),
            ),
            env=environment(
                placed,
                rank,
                search="" if model.profile.engine.path else "${engine}/bin",
                fixed={"SIM_API_KEY": "${key}"},
            ),
            wait_for=_rendezvous(placed) if rank.rank else None,
        )
        spec = launch_spec(
            placed,
            rank,
            processes=(process,),
            probes=_probes(model, rank),
            install=self.install(model, node, placed.pip),
            fetch=fetch,
        )
        return with_adapters(spec, self.lora(model), placed)


def _arguments(placed: Placed, rank: RankPlacement, *, fetched: bool) -> tuple[str, ...]:
    model = placed.model
    argv = ["--host", rank.address, "--port", str(rank.ports[0])]
    argv += ["--served-name", escape(model.served_name)]
    argv += ["--model", escape(weights.describe(model.spec.source))]
    if fetched:
        argv += ["--weights", "${weights}"]
    argv += _lora(model)
    for setting in _settings(model.profile):
        argv += ["--pretend", escape(setting)]
    if len(placed.ranks) > 1:
        leader = placed.ranks[0]
        argv += ["--rank", str(rank.rank), "--ranks", str(len(placed.ranks))]
        argv += ["--rendezvous", host_port(leader.address, leader.ports[1])]
    return (*argv, *(escape(arg) for arg in model.profile.args + model.spec.args))


def _lora(model: DesiredModel) -> Iterator[str]:
    if (found := lora.lora(model)) is None:
        return
    for name, path in found.static:
        yield from ("--adapter", f"{name}={path}")
    if found.on_demand:
        rank = lora.rounded(found.rank, lora.RANKS)
        yield from ("--max-adapters", str(found.slots), "--max-adapter-rank", str(rank))


def _settings(profile: ProfileSpec) -> Iterator[str]:
    """What the profile says of an engine that computes. The stand-in only shows it, on its command line and in its list of
    models, so that nobody takes it for ignored."""
    parallel, plain = profile.parallel, ProfileSpec(engine=profile.engine)
    stated = (
        ("parallel.tensor", parallel.tensor, plain.parallel.tensor),
        ("parallel.pipeline", parallel.pipeline, plain.parallel.pipeline),
        ("parallel.data", parallel.data, plain.parallel.data),
        ("dtype", profile.dtype, plain.dtype),
        ("quantization", profile.quantization, plain.quantization),
        ("maxModelLen", profile.max_model_len, plain.max_model_len),
        ("gpuMemoryUtilization", profile.gpu_memory_utilization, plain.gpu_memory_utilization),
    )
    for name, value, default in stated:
        if value != default:
            yield f"{name}={value}"


def _rendezvous(placed: Placed) -> WaitFor:
    leader = placed.ranks[0]
    return WaitFor(
        host=leader.address, port=leader.ports[1], timeout=placed.model.profile.timeouts.rendezvous
    )


def _probes(model: DesiredModel, rank: RankPlacement) -> Probes:
    if rank.rank:
        return Probes(port=None, host=rank.address)
    return openai_probes(
        host=rank.address,
        port=rank.ports[0],
        served_name=model.served_name,
        task=model.spec.task,
        in_flight=IN_FLIGHT,
    )
