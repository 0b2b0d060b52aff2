"""Jobs that only take time: for tests and the simulation. What they complete is kept in :class:`FakeTargets`, which
outlives the agent as a disk would."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmgw.agent.jobs.doer import NO_SECRETS, Progress
from llmgw.model.facts import EngineFact, WeightsFact
from llmgw.model.launch import InstallSpec
from llmgw.model.report import Stored


@dataclass(slots=True)
class FakeTargets:
    """Pretended engines and weights, by digest."""

    engine_facts: dict[str, EngineFact] = field(default_factory=dict)
    weights_facts: dict[str, WeightsFact] = field(default_factory=dict)

    def engines(self) -> tuple[EngineFact, ...]:
        return tuple(self.engine_facts[name] for name in sorted(self.engine_facts))

    def weights(self) -> tuple[WeightsFact, ...]:
        return tuple(self.weights_facts[name] for name in sorted(self.weights_facts))

    def stored(self) -> tuple[Stored, ...]:
        engines = (
            Stored(name=f"engine/{it.digest}", description=f"{it.name} {it.version}", path=it.path, size=0)
            for it in self.engines()
        )
        weights = (
            Stored(name=f"weights/{it.digest}", description=it.description, path=it.path, size=it.size)
            for it in self.weights()
        )
        return (*engines, *weights)

    def remove(self, name: str) -> None:
        kind, _, digest = name.partition("/")
        facts: dict[str, Any] = self.engine_facts if kind == "engine" else self.weights_facts
        del facts[digest]


@dataclass(slots=True)
class FakeDoer:
    """Takes ``seconds``, in steps, then fails with ``errors`` one by one, or completes. ``runs`` counts beginnings."""

    targets: FakeTargets
    seconds: float = 5.0
    size: int = 1_000_000
    errors: list[Exception] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    cleaned: list[frozenset[str]] = field(default_factory=list)
    kept: list[frozenset[str]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    secrets: list[Mapping[str, str]] = field(default_factory=list)

    def complete(self, spec: Any) -> bool:
        install = isinstance(spec, InstallSpec)
        done: tuple[EngineFact | WeightsFact, ...] = (
            self.targets.engines() if install else self.targets.weights()
        )
        return any(it.digest == spec.digest for it in done)

    async def run(self, spec: Any, progress: Progress, *, secrets: Mapping[str, str] = NO_SECRETS) -> None:
        self.runs.append(spec.job)
        self.secrets.append(secrets)
        for step in range(4):
            progress.bytes(self.size * step // 4, self.size)
            await asyncio.sleep(self.seconds / 4)
        if self.errors:
            raise self.errors.pop(0)
        progress.bytes(self.size, self.size)
        if isinstance(spec, InstallSpec):
            self.targets.engine_facts[spec.digest] = EngineFact(
                name=spec.engine,
                version=spec.version,
                digest=spec.digest,
                path=f"/pretended/engines/{spec.digest[:8]}",
            )
        else:
            self.targets.weights_facts[spec.digest] = WeightsFact(
                digest=spec.digest, path=f"/pretended/weights/{spec.digest[:8]}", size=self.size
            )

    async def stop(self, job: str) -> None:
        self.stopped.append(job)

    async def clean(self, going_on: frozenset[str], *, kept: frozenset[str]) -> None:
        self.cleaned.append(going_on)
        self.kept.append(kept)
