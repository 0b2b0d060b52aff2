"""Builders and fakes that the agent's tests share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from llmgw.agent.events import Events
from llmgw.agent.jobs.fakes import FakeDoer, FakeTargets
from llmgw.agent.jobs.runner import Jobs
from llmgw.agent.journal import Journal, MemoryJournalStore
from llmgw.agent.ownership import Ownership
from llmgw.agent.sampling import FixedFacts
from llmgw.agent.seams import ANYTHING, Examiner, Rules
from llmgw.agent.service import AgentService, Checkpoint, FactsSource, no_checkpoint
from llmgw.clock import FakeClock
from llmgw.model.claims import Claims
from llmgw.model.facts import Facts, Gpu
from llmgw.model.ids import Commit, Fence, FleetId, JobId, ReplicaId, ShardId
from llmgw.model.launch import FetchSpec, InstallSpec, LaunchSpec, Probes, Process
from llmgw.model.problems import AgentError, StalledError
from llmgw.model.report import AgentInfo, ShardReport
from llmgw.wire.messages import (
    NOT_FOUND,
    PROTOCOL,
    Accepted,
    AdaptersParams,
    Command,
    DrainParams,
    ForgetParams,
    KeyParams,
    LogLine,
    LogsParams,
    ManualParams,
    StartParams,
    StopParams,
    Tokened,
    TokenParams,
    Whose,
    WhoseParams,
)

DEADLINE = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition, with a deadline that fails."""
    end = asyncio.get_running_loop().time() + DEADLINE
    while not condition():
        assert asyncio.get_running_loop().time() < end, "the condition never came true"
        await asyncio.sleep(0.01)


NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
FLEET = FleetId("fleet-1")
DIGEST = "ab" * 32


def fence(serial: int = 1, intent: str = "1" * 40, fleet: str = FLEET) -> Fence:
    return Fence(fleet=FleetId(fleet), serial=serial, intent=Commit(intent))


def command(name: str = "c1", serial: int = 1, intent: str = "1" * 40, fleet: str = FLEET) -> Command:
    return Command(id=name, fence=fence(serial, intent, fleet))


def install_spec(digest: str = DIGEST, **changes: object) -> InstallSpec:
    given: dict[str, object] = {
        "job": JobId(f"install-{digest[:8]}"),
        "engine": "sim",
        "version": "1",
        "digest": digest,
        **changes,
    }
    return InstallSpec(**given)  # type: ignore[arg-type]


def fetch_spec(digest: str = DIGEST, **changes: object) -> FetchSpec:
    given: dict[str, object] = {
        "job": JobId(f"fetch-{digest[:8]}"),
        "digest": digest,
        "description": "weights",
        **changes,
    }
    return FetchSpec(**given)  # type: ignore[arg-type]


def launch_spec(replica: str = "chat-1f0c9a2b-0.1", port: int = 18000) -> LaunchSpec:
    return LaunchSpec(
        shard=ShardId(f"{replica}-r0"),
        replica=ReplicaId(replica),
        rank=0,
        ranks=1,
        model="chat",
        profile="small",
        served_name="chat",
        spec_digest="1f0c9a2b" + "0" * 56,
        address="127.0.0.1",
        leader_address=f"127.0.0.1:{port}",
        processes=(Process(name="engine", argv=("engine",)),),
        probes=Probes(port=port),
        claims=Claims(ports=(port,)),
    )


@dataclass(slots=True)
class MemoryDisk:
    """Files that outlive the agent. ``refuses`` is what every write then says."""

    files: dict[str, bytes] = field(default_factory=dict)
    refuses: str = ""
    writes: list[str] = field(default_factory=list)

    async def write(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        if self.refuses:
            raise StalledError(f"writing {name}: {self.refuses}")
        self.writes.append(name)
        self.files[name] = data

    async def write_all(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            await self.write(name, data)

    async def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    async def read_all(self, folder: str) -> Mapping[str, bytes]:
        start = f"{folder}/"
        found = (
            (name.removeprefix(start), data) for name, data in self.files.items() if name.startswith(start)
        )
        return {name: data for name, data in found if "/" not in name}

    async def move(self, name: str, to: str) -> None:
        if self.refuses == "Read-only file system":  # a full disk lets files be renamed
            raise StalledError(f"moving aside {name}: {self.refuses}")
        self.files[to] = self.files.pop(name)

    async def remove(self, name: str) -> None:
        self.files.pop(name, None)

    async def remove_folder(self, name: str) -> None:
        for path in [path for path in self.files if path.startswith(f"{name}/")]:
            del self.files[path]


@dataclass(slots=True)
class FakeShards:
    """Shards that do at once what they are told; counts how often."""

    states: dict[str, ShardReport] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    error: Exception | None = None
    lines: tuple[str, ...] = ()
    needed: dict[str, tuple[ShardId, ...]] = field(default_factory=dict)

    async def adopt(self) -> None:
        self.calls.append("adopt")

    async def start(self, params: StartParams) -> Accepted:
        self._called("start", params.spec.shard)
        spec = params.spec
        self.states[spec.shard] = ShardReport(
            shard=spec.shard,
            replica=spec.replica,
            rank=0,
            ranks=1,
            model=spec.model,
            profile=spec.profile,
            spec_digest=spec.spec_digest,
            state="ready",
            reason="started",
            since=NOON,
        )
        return Accepted(shard=self.states[spec.shard])

    async def drain(self, params: DrainParams) -> Accepted:
        self._called("drain", params.shard)
        if params.shard not in self.states:
            raise AgentError(f"no shard {params.shard}", code=NOT_FOUND)
        return Accepted(shard=self.states[params.shard])

    async def manual(self, params: ManualParams) -> Accepted:
        self._called(f"manual {params.verb}", params.shard)
        return Accepted(shard=self.states.get(params.shard), detail=params.by)

    async def stop(self, params: StopParams) -> Accepted:
        self._called("stop", params.shard)
        return Accepted(shard=self.states.pop(params.shard, None))

    async def forget(self, params: ForgetParams) -> Accepted:
        self._called("forget", params.shard)
        return Accepted()

    async def whose(self, params: WhoseParams) -> Whose:
        return Whose(shard=None, process=f"pid {params.pid}")

    async def token(self, params: TokenParams) -> Tokened:
        self._called("token", params.shard)
        return Tokened(took=0.5)

    async def adapters(self, params: AdaptersParams) -> Accepted:
        self._called("adapters", params.shard)
        return Accepted()

    async def key(self, params: KeyParams) -> Accepted:
        self._called("key", params.shard)
        return Accepted()

    async def sampled(self, gpus: tuple[Gpu, ...]) -> None:
        pass

    def reports(self) -> tuple[ShardReport, ...]:
        return tuple(self.states[name] for name in sorted(self.states))

    def needs(self) -> Mapping[str, tuple[ShardId, ...]]:
        return self.needed

    def problems(self) -> tuple[str, ...]:
        return ()

    async def logs(self, params: LogsParams) -> AsyncIterator[LogLine]:
        for line in self.lines[-params.lines :]:
            yield LogLine(process="", text=line)

    async def close(self) -> None:
        self.calls.append("close")

    def _called(self, method: str, shard: str) -> None:
        self.calls.append(f"{method} {shard}")
        if self.error is not None:
            error, self.error = self.error, None
            raise error


@dataclass(slots=True)
class Node:
    """What outlives an agent's process, and a way to start another on it."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    store: MemoryJournalStore = field(default_factory=MemoryJournalStore)
    targets: FakeTargets = field(default_factory=FakeTargets)
    shards: FakeShards = field(default_factory=FakeShards)
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOON))
    facts: Facts = Facts(hostname="n1")
    source: FactsSource | None = None  # instead of ``facts``
    fleet: FleetId | None = FLEET
    seconds: float = 0.0
    rules: Rules = ANYTHING
    examiner: Examiner | None = None

    async def agent(self, *, checkpoint: Checkpoint = no_checkpoint) -> AgentService:
        service, _ = await self.agent_with_events(checkpoint=checkpoint)
        return service

    async def agent_with_events(
        self, *, checkpoint: Checkpoint = no_checkpoint
    ) -> tuple[AgentService, Events]:
        journal = Journal(store=self.store, clock=self.clock)
        events = Events(journal)
        doer = FakeDoer(self.targets, seconds=self.seconds)
        jobs = Jobs(
            clock=self.clock,
            disk=self.disk,
            journal=journal,
            install=doer,
            fetch=doer,
            targets=self.targets,
            changed=events.from_jobs,
        )
        info = AgentInfo(
            version="0.1.0", protocol=PROTOCOL, fleet=None, node="n1", boot_id="b1", pid=1, started=NOON
        )
        service = AgentService(
            info=info,
            clock=self.clock,
            shards=self.shards,
            jobs=jobs,
            events=events,
            ownership=Ownership(disk=self.disk, journal=journal, fleet=self.fleet),
            facts=self.source or FixedFacts(self.facts),
            checkpoint=checkpoint,
            rules=self.rules,
            examiner=self.examiner,
        )
        await service.adopt()
        return service, events
