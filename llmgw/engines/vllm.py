"""vLLM: ``vllm serve``, on one node, or on several by its own launch (mp) or by Ray.

The flags are those of the versions that :mod:`llmgw.engines.versions` names. Facts behind them: docs/engines.md.
"""

import json
from collections.abc import Iterator, Mapping

from llmgw.core.adapter import NOTHING_KNOWN, Known, Need, NodeContext, Placed
from llmgw.engines import checkpoint, checks, helps, lora, parallel, ray, weights
from llmgw.engines import vllmlimits as limits
from llmgw.engines.environment import environment, escape
from llmgw.engines.install import environment_program, install
from llmgw.engines.memory import needs, served
from llmgw.engines.probes import openai_probes
from llmgw.engines.shard import host_port, launch_spec, with_adapters
from llmgw.engines.versions import RAY, VLLM
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
from llmgw.model.manifest import Pip, ProfileSpec
from llmgw.model.problems import Problem
from llmgw.model.record import RankPlacement
from llmgw.model.struct import replace

IN_FLIGHT = ("vllm:num_requests_running", "vllm:num_requests_waiting")
LORA_RANKS = lora.RANKS
GRACE = 10
"""Seconds between the end of vLLM's own wait for requests and SIGKILL, in which its processes end."""
CONFIG = ".config/vllm"
NOT_CARRIED_OVER = "ray_non_carry_over_env_vars.json"


class Vllm:
    """See :class:`llmgw.core.adapter.EngineAdapter`."""

    name = "vllm"
    lora_ranks = lora.RANKS

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        profile = model.profile
        kept = {**limits.KEPT, **(limits.KEPT_WITH_RAY if profile.launch == "ray" else {})}
        return (
            *checks.engine_problems(model, version_needed=True, example=VLLM.newest),
            *checks.gpu_problems(model),
            *checks.name_problems(model),
            *parallel.world_problems(model, data=profile.parallel.data, context=limits.context(model)),
            *limits.shape_problems(profile),
            *limits.server_problems(model),
            *checkpoint.problems(model, "vLLM"),
            *lora.problems(model, highest=LORA_RANKS[-1], engine="vLLM"),
            *lora.peft_problems(model, "vLLM"),
            *checks.argument_problems(model, limits.OURS, argparse=True),
            *checks.variable_problems(model, kept),
        )

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        found = [*VLLM.untried(model.profile.engine)]
        if "VLLM_SERVER_DEV_MODE" in {**model.profile.env, **model.spec.env}:
            found.append(
                Problem(
                    what="spec.env.VLLM_SERVER_DEV_MODE: vLLM then answers /sleep, /wake_up and others without a key",
                    instead="leave it out where others reach the node's address",
                )
            )
        return (*found, *limits.copies_apart(model))

    def weights(self, model: DesiredModel) -> str | None:
        return weights.weights_digest(model.spec.source)

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        return needs.need(model, known, served.Served(), ports=1, leader_ports=leader_ports(model.profile))

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        profile = model.profile
        version = profile.engine.version or ""
        rays = (f"ray[client]=={RAY}",) if profile.launch == "ray" else ()
        needed = (f"vllm=={version}", *rays)
        return install(
            profile.engine, node.spec, pip, version=version, requirements=needed, help_=self.help(model)
        )

    def help(self, model: DesiredModel) -> HelpSpec | None:
        return helps.vllm(model.profile.engine)

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
                highest_rank=lora.rounded(found.rank, LORA_RANKS),
                in_place=True,
                already="already been loaded",
            ),
            form="peft",
        )

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        return lora.fetches(model, pip)

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        return tuple(self._rank(placed, rank) for rank in placed.ranks)

    def _rank(self, placed: Placed, rank: RankPlacement) -> LaunchSpec:
        model = placed.model
        by_ray = model.profile.launch == "ray"
        spec = launch_spec(
            placed,
            rank,
            processes=_by_ray(placed, rank) if by_ray else (_server(placed, rank),),
            probes=_probes(model, rank),
            install=self.install(model, placed.nodes[rank.node], placed.pip),
            fetch=self.fetch(model, placed.pip),
            weights_path=model.spec.source.path,
        )
        spec = with_adapters(spec, self.lora(model), placed)
        return replace(
            spec, measure=served.measured_by(placed, rank, weights.weights_digest(model.spec.source))
        )


def leader_ports(profile: ProfileSpec) -> int:
    """Where ranks of several nodes meet: torch's store, and with data parallel vLLM's own."""
    if profile.nodes == 1:
        return 0
    if profile.launch == "ray":
        return ray.LEADER_PORTS
    return 2 if profile.parallel.data > 1 else 1


# ---- processes ---------------------------------------------------------------------------------------


def _server(placed: Placed, rank: RankPlacement) -> Process:
    model, by_ray = placed.model, placed.model.profile.launch == "ray"
    fixed = {"VLLM_API_KEY": "${key}"}
    wait: WaitFor | None = None
    files: tuple[File, ...] = ()
    if (found := lora.lora(model)) is not None and found.on_demand:
        fixed["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if by_ray:
        fixed |= {
            "RAY_ADDRESS": host_port(*ray.head_address(placed)),
            "VLLM_CONFIG_ROOT": f"${{home}}/{CONFIG}",
        }
        files, wait = (_not_carried_over(placed),), ray.wait_for_head(placed)
    elif rank.rank:
        wait = _wait_for_leader(placed)
    return Process(
        name=ENGINE,
        argv=(environment_program(model.profile.engine, "vllm"), "serve", *_arguments(placed, rank)),
        env=_environment(placed, rank, fixed),
        files=files,
        wait_for=wait,
    )


def _by_ray(placed: Placed, rank: RankPlacement) -> tuple[Process, ...]:
    return (_joined(placed, rank),) if rank.rank else (_ray_head(placed), _server(placed, rank))


def _ray_head(placed: Placed) -> Process:
    return Process(
        name=ray.SIDECAR,
        argv=ray.head(placed, environment_program(placed.model.profile.engine, "ray")),
        env=_environment(placed, placed.ranks[0], {}),
    )


def _joined(placed: Placed, rank: RankPlacement) -> Process:
    return Process(
        name=ENGINE,
        argv=ray.join(placed, rank, environment_program(placed.model.profile.engine, "ray")),
        env=_environment(placed, rank, {}),
        wait_for=ray.wait_for_head(placed),
    )


def _environment(placed: Placed, rank: RankPlacement, fixed: Mapping[str, str]) -> Mapping[str, str]:
    profile = placed.model.profile
    defaults = {
        "DO_NOT_TRACK": "1",
        # Weights are on the node already: without these a node without internet waits for timeouts.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # vLLM would give up by itself after 10 minutes.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(profile.startup_timeout)),
        "VLLM_NO_USAGE_STATS": "1",
    }
    ours = {"VLLM_HOST_IP": rank.address}
    if profile.launch == "ray":
        ours |= ray.variables()
    if rank.gpus and VLLM.has(profile.engine, "gpu-uuids"):
        ours["CUDA_VISIBLE_DEVICES"] = "${gpu.uuids}"
    search = environment_program(profile.engine, "").rstrip("/")
    return environment(placed, rank, search=search, defaults=defaults, fixed={**ours, **fixed})


def _not_carried_over(placed: Placed) -> File:
    """For vLLM, which copies the leader's variables to the workers that Ray starts. What is each node's own must stay so."""
    names = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HOME", "PATH", "VLLM_HOST_IP", "XDG_CACHE_HOME"}
    for network in placed.network.values():
        names |= set(network.environment)
    for node in placed.nodes.values():
        names |= set(node.spec.env)
    return File(path=f"{CONFIG}/{NOT_CARRIED_OVER}", content=escape(json.dumps(sorted(names))))


def _wait_for_leader(placed: Placed) -> WaitFor:
    """At the last of the ports where ranks meet. With data parallel that is vLLM's own, which the leader opens first; torch's
    stays closed where copies have nothing to tell each other, as those of a model without experts."""
    leader = placed.ranks[0]
    timeout = placed.model.profile.timeouts.rendezvous
    return WaitFor(host=leader.address, port=leader.ports[-1], timeout=timeout)


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


# ---- the command line --------------------------------------------------------------------------------


def _arguments(placed: Placed, rank: RankPlacement) -> tuple[str, ...]:
    model = placed.model
    words = ["${weights}", "--served-model-name", escape(model.served_name)]
    if not rank.rank:
        words += ["--host", rank.address, "--port", str(rank.ports[0])]
    words += _limits(placed, rank)
    words += _parallel(placed, rank)
    words += _lora(model, rank)
    if model.spec.task in ("embed", "rerank"):
        words += ["--runner", "pooling"]
    if VLLM.has(model.profile.engine, "shutdown-timeout"):
        words += ["--shutdown-timeout", str(max(int(model.profile.timeouts.stop) - GRACE, 0))]
    asked = model.profile.args + model.spec.args
    if rank.rank:
        # A rank without a server refuses to be told how many it has.
        _, asked = checks.take(asked, limits.API_SERVERS)
    return (*words, *(escape(arg) for arg in asked))


def _limits(placed: Placed, rank: RankPlacement) -> Iterator[str]:
    profile = placed.model.profile
    if profile.max_model_len is not None:
        yield from ("--max-model-len", str(profile.max_model_len))
    if profile.dtype != "auto":
        yield from ("--dtype", profile.dtype)
    if profile.quantization is not None:
        yield from ("--quantization", escape(profile.quantization))
    if rank.gpus:
        yield from ("--gpu-memory-utilization", _utilization(placed, rank))


def _utilization(placed: Placed, rank: RankPlacement) -> str:
    """As vLLM counts, in parts of the whole GPU. A share is rounded down to thousandths: it must not be exceeded."""
    profile = placed.model.profile
    facts = placed.nodes[rank.node].facts
    total = next(
        (gpu.memory_total for gpu in (facts.gpus if facts else ()) if gpu.uuid == rank.gpus[0].uuid), 0
    )
    if profile.gpus.share is None or not total:
        return f"{profile.gpu_memory_utilization:g}"
    return f"{min(profile.gpus.share * 1000 // total, 1000) / 1000:g}"


def _parallel(placed: Placed, rank: RankPlacement) -> Iterator[str]:
    parallel_, leader = placed.model.profile.parallel, placed.ranks[0]
    sizes = (
        ("--tensor-parallel-size", parallel_.tensor),
        ("--pipeline-parallel-size", parallel_.pipeline),
        ("--data-parallel-size", parallel_.data),
    )
    for flag, size in sizes:
        if size > 1:
            yield from (flag, str(size))
    if len(placed.ranks) == 1:
        return
    yield from ("--distributed-executor-backend", placed.model.profile.launch)
    if placed.model.profile.launch == "ray":
        return
    yield from ("--nnodes", str(len(placed.ranks)), "--node-rank", str(rank.rank))
    yield from ("--master-addr", leader.address, "--master-port", str(leader.ports[1]))
    if parallel_.data > 1:
        yield from ("--data-parallel-rpc-port", str(leader.ports[2]))
    if rank.rank:
        yield "--headless"


def _lora(model: DesiredModel, rank: RankPlacement) -> Iterator[str]:
    found = lora.lora(model)
    if found is None:
        return
    slots, highest = str(found.slots), lora.rounded(found.rank, LORA_RANKS)
    yield from ("--enable-lora", "--max-loras", slots, "--max-cpu-loras", slots)
    yield from ("--max-lora-rank", str(highest))
    if found.static:
        yield from ("--lora-modules", *(f"{name}={path}" for name, path in found.static))
    elif model.profile.parallel.data > 1 and not rank.rank:
        # vLLM refuses to change adapters of several API servers at run time.
        yield from ("--api-server-count", "1")
