"""What manifests may already say and llmgw does not do yet: refused by name, never accepted and ignored.

Whoever builds one of these deletes its line.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmgw.core.adapter import EngineAdapter
from llmgw.model.manifest import Manifests, ProfileSpec
from llmgw.model.problems import Problem

NOT_YET: tuple[tuple[str, str, Callable[[Any], bool], str], ...] = (
    # kind, path, is it asked for?, what to write instead
)


def problems(manifests: Manifests, adapters: Mapping[str, EngineAdapter]) -> Iterator[Problem]:
    by_kind = {
        "Fleet": (manifests.fleet,) if manifests.fleet else (),
        "Node": manifests.nodes,
        "Profile": manifests.profiles,
        "Model": manifests.models,
    }
    for kind, path, asked_for, instead in NOT_YET:
        for manifest in by_kind[kind]:
            if asked_for(manifest.spec):
                value = " (the default)" if path not in manifest.marks else ""
                what = f"{path}{_shown(path, manifest.spec)}{value} is not supported yet"
                yield Problem(what=what, instead=instead, where=manifest.at(path))
    for manifest in manifests.profiles:
        if isinstance(manifest.spec, ProfileSpec) and manifest.spec.engine.name not in adapters:
            yield Problem(
                what=f"the engine {manifest.spec.engine.name} is not supported yet",
                instead=f"write one of {', '.join(sorted(adapters))}",
                where=manifest.at("spec.engine.name"),
            )


def _shown(path: str, spec: Any) -> str:
    """The value, where it is a single word or number."""
    value = getattr(spec, path.removeprefix("spec."), None)
    return f": {value}" if isinstance(value, str) or type(value) is int else ""
