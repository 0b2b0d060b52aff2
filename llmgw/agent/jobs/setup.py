"""Puts the real doers together: how a job becomes an order for a worker, on this node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmgw.agent.jobs.files import RESERVE
from llmgw.agent.jobs.orders import WorkOrder
from llmgw.agent.jobs.targets import DiskTargets, engine_complete, weights_complete
from llmgw.agent.jobs.workers import Workers
from llmgw.agent.settings import JOB_RUNS, Layout
from llmgw.agent.shards.processes import ShimSpawner
from llmgw.clock import Clock
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.struct import Struct
from llmgw.wire.setup import AgentSettings


class WorkPlace(Struct):
    """The node, as its jobs see it. ``env`` is the base environment of what workers run."""

    places: Layout
    runtime: Path
    settings: AgentSettings
    env: Mapping[str, str]
    targets: DiskTargets
    reserve: int = RESERVE

    def order(self, spec: InstallSpec | FetchSpec, secrets: Mapping[str, str]) -> WorkOrder:
        return WorkOrder(
            engines=str(self.places.engines),
            weights=str(self.places.weights),
            runtime=str(self.runtime),
            python=self.settings.python,
            env=self.env,
            reserve=self.reserve,
            engine_user=self.settings.engine_user,
            install=spec if isinstance(spec, InstallSpec) else None,
            fetch=spec if isinstance(spec, FetchSpec) else None,
            secrets=secrets,
        )


def workers(place: WorkPlace, *, clock: Clock) -> tuple[Workers, Workers]:
    """For installs and for fetches. Their processes are told from the shards' by a tag of their own."""
    folder = place.places.work / JOB_RUNS
    processes = ShimSpawner(folder, clock=clock)

    def of(kind: str, complete: Any) -> Workers:
        return Workers(
            folder=folder,
            processes=processes,
            is_complete=complete,
            order_of=place.order,
            half_made=place.targets.half_made,
            kind=kind,
        )

    return (
        of("install", lambda spec: engine_complete(place.places.engines, spec)),
        of("fetch", lambda spec: weights_complete(place.places.weights, spec)),
    )
