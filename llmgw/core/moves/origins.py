"""Whose word each variable of a launch is: the network's or people's, at the node, in the profile or in the model; and who said
something else and lost. What nobody of these names is the engine's own."""

from collections.abc import Iterator, Mapping

from llmgw.core.adapter import RankNetwork
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import LaunchSpec, Process
from llmgw.model.manifest import NodeSpec, Value
from llmgw.model.plan import Origin

MASKED = "(a secret)"


def origins(
    spec: LaunchSpec, *, node_name: str, node: NodeSpec, model: DesiredModel, network: RankNetwork
) -> tuple[Origin, ...]:
    """By process and name, in order. ``node`` is the manifest of ``node_name``, where the rank runs."""
    found = {name: variable.value for name, variable in network.environment.items()}
    reasons = {name: variable.reason for name, variable in network.environment.items()}
    sources: Mapping[str, Mapping[str, Value]] = {
        "network": found,
        f"node {node_name}": node.env,
        f"profile {model.profile_name}": model.profile.env,
        f"model {model.name}": model.spec.env,
    }
    return tuple(each for process in spec.processes for each in _of_process(process, sources, reasons))


def _of_process(
    process: Process, sources: Mapping[str, Mapping[str, Value]], reasons: Mapping[str, str]
) -> Iterator[Origin]:
    for name, value in sorted(process.env.items()):
        said = [(source, env[name]) for source, env in sources.items() if name in env]
        if not said:
            continue
        source, last = said[-1]
        won = _is(value, name, last)
        lost = said[:-1] if won else said
        yield Origin(
            process=process.name,
            name=name,
            source=source if won else "engine",
            reason=_reason(source, reasons.get(name, "")) if won else "llmgw decides about it itself",
            over=tuple(f"{whose}: {_shown(what)}" for whose, what in reversed(lost) if _shown(what) != value),
        )


def _is(value: str, name: str, said: Value) -> bool:
    """Whether what the launch holds is what was said: text with its dollar signs escaped, or a secret by its name."""
    if isinstance(said, str):
        return value == said.replace("$", "$$")
    return value == f"${{secret:{name}}}"


def _reason(source: str, network: str) -> str:
    return network if source == "network" else "spec.env"


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else MASKED
