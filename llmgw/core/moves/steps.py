"""The steps of a plan: what is sent to which node, and after what. Exact to the last word.

Steps whose condition is seen to hold already (a job that is done, a replica that is ready) are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from llmgw.core.adapter import EngineAdapter, NodeContext, Placed, RankNetwork
from llmgw.core.amounts import names
from llmgw.core.enginecheck.verdict import expecting
from llmgw.core.fabric.labels import Labels, labels
from llmgw.core.fabric.network import Network, network
from llmgw.core.moves import commands
from llmgw.core.moves.commands import COMMAND_WITHIN
from llmgw.core.moves.origins import origins
from llmgw.core.seen.survey import NodeView, Survey
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import ReplicaId, ShardId, shard_id
from llmgw.model.launch import FetchSpec, InstallSpec, LaunchSpec, LoraAdapter
from llmgw.model.manifest import Pip
from llmgw.model.plan import Origin, Step, StepKind, sendable
from llmgw.model.record import RankPlacement, ReplicaRecord
from llmgw.model.report import JobReport, JobState
from llmgw.model.struct import Struct, replace
from llmgw.model.weights import Weights

JOB_RETRY = timedelta(minutes=1)
"""A failed job is tried again after this: a mirror that was down may be back."""

_WHY_WAIT = {
    StepKind.AWAIT_JOBS: "an outage must not include an install or a download",
    StepKind.AWAIT_READY: "it is only published once it answers",
    StepKind.AWAIT_DRAINED: "requests in flight come to their end",
    StepKind.AWAIT_STOPPED: "its GPUs and ports are free only when no process is left",
}


class JobStanding(Enum):
    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    ABSENT = "absent"


class Job(Struct):
    """An install or a fetch that a replica stands on, on one node."""

    node: str
    spec: InstallSpec | FetchSpec
    standing: JobStanding
    report: JobReport | None = None


def failing(jobs: Iterable[Job]) -> Job | None:
    """The first that has failed and rests."""
    return next((job for job in jobs if job.standing is JobStanding.FAILED), None)


def lacking(jobs: Iterable[Job]) -> str:
    """Those that are not done, in words; empty when all are."""
    return names(f"{job.spec.job} on {job.node}" for job in jobs if job.standing is not JobStanding.DONE)


def job_failed(job: Job) -> str:
    error = job.report.error if job.report is not None else ""
    return (
        f"{job.spec.job} on {job.node} failed: {error or 'no reason given'}; it is tried again after a minute"
    )


@dataclass(slots=True)
class StepBook:
    """Collects the steps of one plan; each is there once, however many ask for it."""

    survey: Survey
    adapters: Mapping[str, EngineAdapter]
    pip: Pip
    now: datetime
    weights: Mapping[str, Weights] = field(default_factory=dict)  # what is known of them, by digest
    _steps: dict[str, Step] = field(default_factory=dict)
    _launches: dict[str, tuple[LaunchSpec, ...]] = field(default_factory=dict)
    _jobs: dict[tuple[object, ...], tuple[Job, ...]] = field(default_factory=dict)
    _contexts: dict[str, NodeContext] = field(default_factory=dict)
    _labels: Labels | None = None
    networks: dict[str, Network] = field(default_factory=dict)
    """By replica whose start was worked out, whether or not it is started then."""

    def add(self, step: Step) -> str:
        """The first to ask for a step says why."""
        self._steps.setdefault(step.id, step)
        return step.id

    def bootstrap(self, node: str, reason: str) -> str:
        return self.add(commands.bootstrap(node, reason))

    def jobs(self, model: DesiredModel, nodes: Iterable[str]) -> tuple[Job, ...]:
        """What must be on the nodes before the model can start there, and how far it is. A start asks again for what was
        looked at before it was decided."""
        unique = tuple(dict.fromkeys(nodes))
        asked = (model.name, model.spec_digest, model.spec.adapters, unique)
        if asked not in self._jobs:
            self._jobs[asked] = self._needed(model, unique)
        return self._jobs[asked]

    def _needed(self, model: DesiredModel, nodes: tuple[str, ...]) -> tuple[Job, ...]:
        adapter = self.adapters[model.profile.engine.name]
        fetch = adapter.fetch(model, self.pip)
        lora = adapter.lora(model)
        loras = () if lora is None or lora.calls is not None else adapter.lora_fetches(model, self.pip)
        found = []
        for node in nodes:
            install = adapter.install(model, self._context(node), self.pip)
            found += [self._job(node, spec) for spec in (install, fetch, *loras) if spec is not None]
        return tuple(found)

    def order(self, jobs: Iterable[Job], *, model: str) -> tuple[str, ...]:
        """Steps for the jobs that nobody has ordered yet."""
        return tuple(
            self._order(job, model)
            for job in jobs
            if job.standing in (JobStanding.ABSENT, JobStanding.FAILED)
        )

    def start(
        self,
        model: DesiredModel,
        replica: ReplicaId,
        ranks: tuple[RankPlacement, ...],
        *,
        reason: str,
        after: Iterable[str] = (),
        only: frozenset[int] | None = None,
    ) -> tuple[str, ...]:
        """Starts every rank, or ``only`` some, the leader first, and returns those steps. A gang starts when all that its
        ranks need is there: none holds its GPUs while another downloads."""
        nodes = [rank.node for rank in ranks]
        jobs = self.jobs(model, nodes)
        ordered = self.order(jobs, model=model.name)
        ordered = (*ordered, *(step for node in nodes if (step := f"bootstrap {node}") in self._steps))
        if len(ranks) > 1 and any(job.standing is not JobStanding.DONE for job in jobs):
            why = "no rank starts before all of them have what they need"
            ordered = (self.wait(StepKind.AWAIT_JOBS, replica, model=model.name, after=ordered, reason=why),)
        self.bring_adapters(model, nodes)
        before = (*after, *ordered)
        started: list[str] = []
        for spec in self.launches(model, replica, ranks):
            if only is not None and spec.rank not in only:
                continue
            lead = started[:1]
            started.append(
                self.add(
                    Step(
                        id=f"start {spec.shard}",
                        kind=StepKind.START,
                        node=ranks[spec.rank].node,
                        model=model.name,
                        replica=replica,
                        shard=spec.shard,
                        reason=reason,
                        after=tuple(dict.fromkeys((*before, *lead))),
                        timeout=COMMAND_WITHIN,
                        launch=spec,
                        origins=self._origins(model, spec, ranks[spec.rank]),
                    )
                )
            )
        return tuple(started)

    def launches(
        self, model: DesiredModel, replica: ReplicaId, ranks: tuple[RankPlacement, ...]
    ) -> tuple[LaunchSpec, ...]:
        """What the engine's adapter makes of a settled place."""
        if replica not in self._launches:
            nodes = {rank.node: self._context(rank.node) for rank in ranks}
            told = self.networks[replica] = network(model, ranks, nodes, self.labels())
            adapter = self.adapters[model.profile.engine.name]
            seen = self.weights.get(adapter.weights(model) or "")
            placed = Placed(
                model=model,
                replica=replica,
                ranks=ranks,
                nodes=nodes,
                pip=self.pip,
                network=told.ranks,
                weights_size=seen.size if seen is not None else 0,
            )
            help_ = adapter.help(model)
            self._launches[replica] = tuple(expecting(help_, spec) for spec in adapter.launch(placed))
        return self._launches[replica]

    def _origins(self, model: DesiredModel, spec: LaunchSpec, rank: RankPlacement) -> tuple[Origin, ...]:
        return origins(
            spec,
            node_name=rank.node,
            node=self._context(rank.node).spec,
            model=model,
            network=self.networks[spec.replica].ranks.get(spec.rank, RankNetwork()),
        )

    def labels(self) -> Labels:
        """The fabrics of every node, as far as they can be used."""
        if self._labels is None:
            self._labels = labels(self.survey.nodes.values())
        return self._labels

    def publish(self, subject: str, *, model: str | None, reason: str, after: Iterable[str] = ()) -> str:
        """``subject`` is a replica's id, a model's name or ``node/NAME``: what the record says from now on."""
        return self.add(
            Step(
                id=f"publish {subject}",
                kind=StepKind.PUBLISH,
                model=model,
                replica=subject if model is not None and subject != model else None,
                reason=reason,
                after=tuple(after),
            )
        )

    def bring_adapters(self, model: DesiredModel, nodes: Iterable[str]) -> None:
        """Steps for LoRA adapters that are loaded while it runs and that nobody fetches yet. Nobody waits for them: their agents
        load them when they are there."""
        fetches = self.adapters[model.profile.engine.name].lora_fetches(model, self.pip)
        jobs = (self._job(node, spec) for node in dict.fromkeys(nodes) for spec in fetches)
        self.order((job for job in jobs if job.standing is JobStanding.ABSENT), model=model.name)

    def change_adapters(
        self,
        replica: ReplicaRecord,
        rank: int,
        adapters: tuple[LoraAdapter, ...],
        *,
        what: str,
    ) -> str:
        shard = shard_id(replica.id, rank)
        return self.add(
            Step(
                id=f"{what} on {shard}",
                kind=StepKind.ADAPTERS,
                node=replica.ranks[rank].node,
                model=replica.model,
                replica=replica.id,
                shard=shard,
                reason="Git asks for it" if rank == 0 else "its leader loads it for all ranks",
                timeout=COMMAND_WITHIN,
                adapters=adapters,
            )
        )

    def drain(self, replica: ReplicaRecord, *, reason: str, after: Iterable[str] = ()) -> str:
        """Drains the leader, which is the rank that serves HTTP."""
        leader = shard_id(replica.id, 0)
        return self.add(
            Step(
                id=f"drain {leader}",
                kind=StepKind.DRAIN,
                node=replica.ranks[0].node,
                model=replica.model,
                replica=replica.id,
                shard=leader,
                reason=reason,
                after=tuple(after),
                timeout=COMMAND_WITHIN,
                drain_timeout=replica.spec.model.rollout.drain_timeout,
            )
        )

    def stop(
        self,
        replica: ReplicaRecord,
        *,
        reason: str,
        after: Iterable[str] = (),
        only: frozenset[int] | None = None,
    ) -> tuple[str, ...]:
        """Stops every rank, or ``only`` some."""
        going = (rank for rank in replica.ranks if only is None or rank.rank in only)
        return tuple(
            self.add(
                commands.stop(
                    shard_id(replica.id, rank.rank),
                    rank.node,
                    reason,
                    model=replica.model,
                    replica=replica.id,
                    after=after,
                )
            )
            for rank in going
        )

    def wait(
        self, kind: StepKind, replica: str, *, model: str, after: Iterable[str], reason: str = ""
    ) -> str:
        """A condition that a later pass must see before what comes after is done."""
        return self.add(
            Step(
                id=f"{kind.value} {replica}",
                kind=kind,
                model=model,
                replica=replica,
                reason=reason or _WHY_WAIT[kind],
                after=tuple(after),
            )
        )

    def forget(self, node: str, shard: ShardId, reason: str) -> str:
        return self.add(commands.forget(shard, node, reason))

    def started(self) -> frozenset[str]:
        """The replicas that the plan starts."""
        starts = (step for step in self._steps.values() if step.kind is StepKind.START)
        return frozenset(step.replica for step in starts if step.replica is not None)

    def has_commands(self) -> bool:
        """Whether anything can be done now."""
        return bool(sendable(self._steps.values()))

    def finish(self) -> tuple[Step, ...]:
        """In waves, by name within a wave. Empty when nothing could be done now: what waits then needs no step."""
        if not self.has_commands():
            return ()
        waves = _waves(self._steps)
        waved = (_in_wave(step, waves[step.id]) for step in self._steps.values())
        return tuple(sorted(waved, key=lambda step: (step.wave, step.kind.value, step.id)))

    # ---- jobs ------------------------------------------------------------------------------------------

    def _context(self, node: str) -> NodeContext:
        if node not in self._contexts:
            view = self.survey.nodes[node]
            if view.desired is None:
                raise AssertionError(f"nothing is started on {node}: it is not in Git")
            self._contexts[node] = NodeContext(name=node, spec=view.desired.spec, facts=view.facts)
        return self._contexts[node]

    def _job(self, node: str, spec: InstallSpec | FetchSpec) -> Job:
        view = self.survey.nodes[node]
        if _present(view, spec):
            return Job(node=node, spec=spec, standing=JobStanding.DONE)
        report = next((job for job in view.report.jobs if job.job == spec.job), None) if view.report else None
        return Job(node=node, spec=spec, standing=self._standing(report), report=report)

    def _standing(self, report: JobReport | None) -> JobStanding:
        if report is None or report.state == JobState.CANCELLED.value:
            return JobStanding.ABSENT
        if report.state == JobState.DONE.value:
            return JobStanding.DONE
        if report.state != JobState.FAILED.value:
            return JobStanding.RUNNING
        rested = report.ended is None or self.now - report.ended >= JOB_RETRY
        return JobStanding.ABSENT if rested else JobStanding.FAILED

    def _order(self, job: Job, model: str) -> str:
        is_install = isinstance(job.spec, InstallSpec)
        before = f"bootstrap {job.node}"
        return self.add(
            Step(
                id=f"{job.spec.job} on {job.node}",
                kind=StepKind.INSTALL if is_install else StepKind.FETCH,
                node=job.node,
                model=model,
                reason=_job_reason(job.spec, model),
                after=(before,) if before in self._steps else (),
                timeout=COMMAND_WITHIN,
                install=job.spec if isinstance(job.spec, InstallSpec) else None,
                fetch=job.spec if isinstance(job.spec, FetchSpec) else None,
            )
        )


def _job_reason(spec: InstallSpec | FetchSpec, model: str) -> str:
    if isinstance(spec, InstallSpec):
        return f"{model} runs on {spec.engine} {spec.version}"
    return f"{model} needs {spec.description}"


def _present(view: NodeView, spec: InstallSpec | FetchSpec) -> bool:
    if view.facts is None or view.reach.value == "no-agent":
        return False
    if isinstance(spec, InstallSpec):
        return any(engine.digest == spec.digest for engine in view.facts.engines)
    return any(weights.digest == spec.digest for weights in view.facts.weights)


def _in_wave(step: Step, wave: int) -> Step:
    return step if step.wave == wave else replace(step, wave=wave)


def _waves(steps: Mapping[str, Step]) -> dict[str, int]:
    """How many steps lie before each; steps are only added after those they wait for."""
    waves: dict[str, int] = {}
    for step in steps.values():
        waves[step.id] = max((waves[name] + 1 for name in step.after if name in waves), default=0)
    return waves
