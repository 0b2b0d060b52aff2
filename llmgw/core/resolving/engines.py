"""Profiles whose engine no adapter knows: refused by name, never accepted and ignored."""

from collections.abc import Iterator, Mapping

from llmgw.core.adapter import EngineAdapter
from llmgw.model.manifest import Manifests, ProfileSpec
from llmgw.model.problems import Problem


def problems(manifests: Manifests, adapters: Mapping[str, EngineAdapter]) -> Iterator[Problem]:
    for manifest in manifests.profiles:
        if isinstance(manifest.spec, ProfileSpec) and manifest.spec.engine.name not in adapters:
            yield Problem(
                what=f"the engine {manifest.spec.engine.name} is not supported yet",
                instead=f"write one of {', '.join(sorted(adapters))}",
                where=manifest.at("spec.engine.name"),
            )
