"""A node with the real shards on it: pretended (in pretended time) or real, and builders for what they are told."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from llmgw.agent.fakes import (
    Checkpoint,
    Contents,
    FakeChecks,
    FakeGpus,
    FakeProbe,
    FakeSpawner,
    MemoryDisk,
    PretendedNode,
    Script,
)
from llmgw.agent.seams import ANYTHING, JournalEvent, Order, Rules
from llmgw.agent.shards.keeper import Shards
from llmgw.agent.shards.surroundings import ShardSettings
from llmgw.model.claims import Claims
from llmgw.model.facts import Gpu
from llmgw.model.ids import Commit, Fence, FleetId, JobId, ReplicaId, ShardId
from llmgw.model.launch import (
    ENGINE,
    HttpProbe,
    LaunchSpec,
    Metric,
    Probes,
    Process,
    RestartPolicy,
    ShardTimeouts,
)
from llmgw.model.problems import StalledError
from llmgw.model.report import JobReport, ShardReport
from llmgw.model.struct import replace
from llmgw.wire.messages import Command, DrainParams, ForgetParams, StartParams, StopParams
from tests.sim.loop import LoopClock, VirtualLoop, run

T = TypeVar("T")
GIB = 1024**3
RESTART = RestartPolicy(backoff=10, max_backoff=40, give_up_after=3)
TIMEOUTS = ShardTimeouts(startup=60, stop=5, kill=2, health=1, health_request=1)
COMMAND = Command(id="c1", fence=Fence(fleet=FleetId("lab"), serial=1, intent=Commit("0" * 40)))


def spec(
    *,
    model: str = "chat",
    n: int = 1,
    port: int | None = 18000,
    argv: tuple[str, ...] | None = None,
    env: Mapping[str, str] | None = None,
    sidecars: tuple[Process, ...] = (),
    rank: int = 0,
    ranks: int = 1,
    claims: Claims | None = None,
    restart: RestartPolicy = RESTART,
    timeouts: ShardTimeouts = TIMEOUTS,
    address: str = "127.0.0.1",
    token: bool = True,
    **changes: Any,
) -> LaunchSpec:
    """A shard of one engine, claiming its port."""
    replica = ReplicaId(f"{model}-{'ab' * 4}-0.{n}")
    words = argv if argv is not None else ("engine", "--port", str(port))
    probes = Probes(
        port=port,
        host=address,
        ready=(HttpProbe(path="/health"), HttpProbe(path="/v1/models", contains=model)),
        token=HttpProbe(path="/v1/completions", method="POST", body="{}") if token else None,
        alive=HttpProbe(path="/health"),
        in_flight=Metric(path="/metrics", names=("running",)),
    )
    made = LaunchSpec(
        shard=ShardId(f"{replica}-r{rank}"),
        replica=replica,
        rank=rank,
        ranks=ranks,
        model=model,
        profile="p",
        served_name=model,
        spec_digest="ab" * 32,
        address=address,
        leader_address=f"{address}:{port}",
        processes=(*sidecars, Process(name=ENGINE, argv=words, env=env or {})),
        probes=probes,
        claims=claims or Claims(ports=(port,) if port else ()),
        restart=restart,
        timeouts=timeouts,
    )
    return replace(made, **changes)


def behaving(**script: Any) -> Callable[[Order], Script]:
    """Every process behaves so."""
    made = Script(**script)
    return lambda _: made


def gpu(index: int = 0, *, total: int = 80 * GIB, health: tuple[str, ...] = ()) -> Gpu:
    return Gpu(
        uuid=f"GPU-{index}", index=index, name="H100", gpu_class="h100-80g", memory_total=total, health=health
    )


def start(launch: LaunchSpec, **secrets: str) -> StartParams:
    return StartParams(command=COMMAND, spec=launch, secrets=secrets)


def stop(launch: LaunchSpec, reason: str = "") -> StopParams:
    return StopParams(command=COMMAND, shard=launch.shard, reason=reason)


def drain(launch: LaunchSpec, timeout: float = 30) -> DrainParams:
    return DrainParams(command=COMMAND, shard=launch.shard, timeout=timeout)


def forget(launch: LaunchSpec) -> ForgetParams:
    return ForgetParams(command=COMMAND, shard=launch.shard)


@dataclass
class JobsByHand:
    """A gate that the test opens. ``errors``: jobs that have failed."""

    done: set[str] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what engines know by their own help
    weights: dict[str, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    forgotten: set[str] = field(default_factory=set)  # jobs that an agent does not know that came later

    async def wait(self, jobs: tuple[JobId, ...]) -> None:
        if lost := self.forgotten & set(jobs):
            raise StalledError(f"nobody has ordered job {min(lost)}")
        while not set(jobs) <= self.done:
            failed = [job for job in jobs if job in self.errors]
            if failed:
                raise StalledError(self.errors[failed[0]])
            self.changed.clear()
            await self.changed.wait()

    def finish(self, job: str) -> None:
        self.done.add(job)
        self.changed.set()

    def fail(self, job: str, error: str) -> None:
        self.errors[job] = error
        self.changed.set()

    def state(self, job: JobId) -> JobReport | None:
        if job in self.forgotten:
            return None
        kind = "install" if job.startswith("install") else "fetch"
        state = "done" if job in self.done else "running"
        return JobReport(job=job, kind=kind, target="", description=f"{kind} it", state=state)

    def engine_path(self, digest: str) -> str | None:
        return self.engines.get(digest)

    def engine_flags(self, digest: str) -> tuple[str, ...] | None:
        return self.flags.get(digest)

    def weights_path(self, digest: str) -> str | None:
        return self.weights.get(digest)


@dataclass
class Rig:
    """A pretended node. ``agent`` brings a new incarnation of the shards to life on it."""

    loop: VirtualLoop
    node: PretendedNode
    clock: LoopClock
    disk: Contents = field(default_factory=Contents)
    jobs: JobsByHand = field(default_factory=JobsByHand)
    events: list[ShardReport | JournalEvent] = field(default_factory=list)
    learnt: list[str] = field(default_factory=list)
    shards: Shards | None = None
    rules: Rules = ANYTHING
    probe: FakeProbe = field(init=False)
    spawner: FakeSpawner = field(init=False)

    async def agent(
        self, *, checkpoint: Checkpoint | None = None, attending: ShardId | None = None
    ) -> Shards:
        """``attending``: only this shard is taken in hand, as for one command while no agent runs."""
        settings = ShardSettings(work=Path("/nowhere"), boot_id=self.node.boot_id, housekeeping=0)
        self.probe = FakeProbe(self.node, checkpoint=checkpoint)
        self.spawner = FakeSpawner(self.node, checkpoint=checkpoint)
        self.shards = Shards(
            settings,
            clock=self.clock,
            spawner=self.spawner,
            probe=self.probe,
            disk=MemoryDisk(self.node, self.disk, checkpoint=checkpoint),
            gpus=FakeGpus(self.node, checkpoint=checkpoint),
            jobs=self.jobs,
            node=FakeChecks(self.node, checkpoint=checkpoint),
            events=self.events.append,
            learn=self.learnt.append,
            rules=self.rules,
        )
        if attending is not None:
            await self.shards.attend(attending)
            return self.shards
        await self.shards.adopt()
        return self.shards

    def report(self, launch: LaunchSpec) -> ShardReport:
        assert self.shards is not None
        return next(report for report in self.shards.reports() if report.shard == launch.shard)

    async def reaches(
        self, launch: LaunchSpec, state: str, *, within: float = 120, says: str = ""
    ) -> ShardReport:
        """Waits for the state, in the node's time, and for a reason that holds ``says``."""
        await until(
            lambda: self.report(launch).state == state and says in self.report(launch).reason,
            within=within,
            otherwise=lambda: f"waited for {state} {says!r}, it is {self.report(launch)}",
        )
        return self.report(launch)

    def states(self, launch: LaunchSpec) -> list[str]:
        """Every state that was told of, in order."""
        told = [
            event.state
            for event in self.events
            if isinstance(event, ShardReport) and event.shard == launch.shard
        ]
        return [state for i, state in enumerate(told) if i == 0 or told[i - 1] != state]


async def until(
    condition: Callable[[], bool], *, within: float = 60, otherwise: Callable[[], str] = lambda: "too long"
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not condition():
        assert loop.time() < end, otherwise()
        await asyncio.sleep(0.05)


def on_node(
    story: Callable[[Rig], Coroutine[Any, Any, T]],
    *,
    gpus: tuple[Gpu, ...] = (),
    memory: int = 0,
    **world: Any,
) -> T:
    """Runs a story on a pretended node, in pretended time."""
    loop = VirtualLoop()
    clock = LoopClock(loop)

    async def main() -> T:
        node = PretendedNode(clock=clock, gpus=gpus, memory=memory, **world)
        rig = Rig(loop=loop, node=node, clock=clock)
        try:
            return await story(rig)
        finally:
            if rig.shards is not None:
                await rig.shards.close()

    return run(main(), loop)
