"""A fleet without machines: agents that do at once what they are told and become what the test says, over the real
transport seam, the real planner and the memory record store."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import Any, TypeVar

from llmgw import __version__
from llmgw.clock import FakeClock
from llmgw.controller.fleet import Fleet
from llmgw.controller.nodes.memory import MemoryNode, MemoryTransport
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Wish
from llmgw.controller.passes.progress import Progress, Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.values import PassRequest, PassResult
from llmgw.controller.repo.records import MemoryRecordStore, RecordStore
from llmgw.controller.secrets import MemorySecret
from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import Desired
from llmgw.model.facts import EngineFact, Facts, Gpu, WeightsFact
from llmgw.model.ids import Commit, Fence, FleetId, ShardId, key_id
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.manifest import (
    GIB,
    Engine,
    Gpus,
    Local,
    Manifest,
    Manifests,
    Metadata,
    ModelSpec,
    NodeSpec,
    PortRange,
    ProfileSpec,
    Rollout,
    Size,
    Source,
    Spec,
)
from llmgw.model.problems import AgentError, StalledError, Where
from llmgw.model.report import AgentInfo, Exit, JournalEntry, Report, ShardReport
from llmgw.model.struct import Struct, replace
from llmgw.wire import codec
from llmgw.wire.messages import (
    CONFLICT,
    FENCED,
    Accepted,
    Command,
    DrainParams,
    FetchParams,
    ForgetParams,
    HelloResult,
    InstallParams,
    ReportParams,
    StartParams,
    StopParams,
    WatchEvent,
)

T = TypeVar("T")
START = datetime(2030, 1, 1, 12, 0, tzinfo=timezone.utc)
SECRET = b"a secret that is long enough for any purpose"
FLEET = FleetId("fleet-1")


# ---- manifests -----------------------------------------------------------------------------------------------


class Model(Struct):
    name: str = "chat"
    replicas: int = 1
    args: tuple[str, ...] = ()
    gpus: int = 1
    aliases: tuple[str, ...] = ()
    protect: bool = False
    url: str | None = "http://weights.invalid/chat.gguf"


def _manifest(kind: str, name: str, spec: Spec) -> Manifest:
    return Manifest(
        kind=kind,
        metadata=Metadata(name=name),
        spec=spec,
        where=Where(file=f"{kind.lower()}-{name}.yaml", line=1),
    )


def manifests(commit: Commit, nodes: tuple[str, ...], models: tuple[Model, ...]) -> Manifests:
    return Manifests(
        commit=commit,
        fleet=None,
        nodes=tuple(
            _manifest(
                "Node",
                name,
                NodeSpec(
                    transport="local",
                    local=Local(work_dir=f"/pretended/{name}"),
                    ports=PortRange(from_port=18000 + 10 * at, to_port=18009 + 10 * at),
                ),
            )
            for at, name in enumerate(nodes)
        ),
        profiles=tuple(
            _manifest(
                "Profile",
                f"p-{model.name}",
                ProfileSpec(
                    engine=Engine(name="sim", version="1"),
                    gpus=Gpus(per_node=model.gpus),
                    memory=Size(GIB),
                    args=model.args,
                ),
            )
            for model in models
        ),
        models=tuple(
            _manifest(
                "Model",
                model.name,
                ModelSpec(
                    source=Source(url=model.url, sha256="0" * 64) if model.url else Source(path="/models/x"),
                    profile=f"p-{model.name}",
                    replicas=model.replicas,
                    aliases=model.aliases,
                    protect=model.protect,
                    rollout=Rollout(),
                ),
            )
            for model in models
        ),
    )


class Branch:
    """A branch of manifests. Implements controller.fleet.Source."""

    def __init__(self, nodes: tuple[str, ...], *models: Model) -> None:
        self.nodes = nodes
        self.commits: list[tuple[Model, ...]] = [models]
        self.kept: list[Commit] = []
        self.is_pushed = True

    def commit_models(self, *models: Model) -> Commit:
        self.commits.append(models)
        return self.tip

    @property
    def tip(self) -> Commit:
        return Commit(f"{len(self.commits):040x}")

    async def newest(self) -> Commit:
        return self.tip

    async def commit(self, name: str) -> Commit:
        return Commit(name)

    async def desired(self, commit: Commit, *, key_id: str) -> Desired:
        models = self.commits[int(commit, 16) - 1]
        return resolve(manifests(commit, self.nodes, models), key_id=key_id, adapters=ADAPTERS)

    async def is_ancestor(self, older: Commit, newer: Commit) -> bool:
        return int(older, 16) <= int(newer, 16)

    async def unpushed(self, commit: Commit) -> bool:
        return not self.is_pushed

    async def keep(self, commit: Commit) -> None:
        self.kept.append(commit)

    async def who_wrote(self, commit: Commit, where: Where) -> str:
        return f"commit {commit[:10]} by Ann"


# ---- agents --------------------------------------------------------------------------------------------------


class PretendAgent:
    """Says what a node's agent would. Shards load until the test lets them become something."""

    def __init__(self, name: str, clock: FakeClock, *, gpus: int = 2, ready_at_once: bool = False) -> None:
        self.name = name
        self.clock = clock
        self.ready_at_once = ready_at_once
        self.fleet: FleetId | None = None
        self.fence: Fence | None = None
        self.shards: dict[str, ShardReport] = {}
        self.engines: dict[str, EngineFact] = {}
        self.weights: dict[str, WeightsFact] = {}
        self.journal: list[JournalEntry] = []
        self.commands: list[tuple[str, str]] = []  # method, command id
        self.secrets: dict[str, Mapping[str, str]] = {}
        self.refuse: dict[str, AgentError] = {}
        self.watchers: list[asyncio.Queue[WatchEvent]] = []
        self.stream_begins_after = 0.0  # seconds: over SSH a channel is opened first
        self.gpus = tuple(
            Gpu(
                uuid=f"GPU-{name}-{index}",
                index=index,
                name="L40S",
                gpu_class="l40s-45g",
                memory_total=45 * GIB,
                memory_free=45 * GIB,
            )
            for index in range(gpus)
        )

    # ---- what the test does --------------------------------------------------------------------------------

    def become(self, state: str, *, lines: tuple[str, ...] = (), error: str = "") -> None:
        """Every shard that is on its way becomes this."""
        for name, shard in self.shards.items():
            if shard.state in ("loading", "draining", "stopping"):
                self._set(name, state, lines=lines, error=error)

    def _set(self, name: str, state: str, *, lines: tuple[str, ...] = (), error: str = "") -> None:
        now = self.clock.now()
        ended = Exit(at=now, code=1, last_lines=lines) if lines else None
        self.shards[name] = replace(
            self.shards[name],
            state=state,
            since=now,
            last_error=error,
            last_exit=ended,
            ready_at=now if state == "ready" else None,
        )
        for watcher in self.watchers:
            watcher.put_nowait(WatchEvent(shard=self.shards[name]))

    def note(self, kind: str, subject: str, text: str) -> None:
        number = len(self.journal) + 1
        self.journal.append(
            JournalEntry(number=number, at=self.clock.now(), kind=kind, subject=subject, text=text)
        )

    # ---- what the controller asks --------------------------------------------------------------------------

    async def call(self, method: str, params: Mapping[str, Any]) -> Any:
        return codec.to_json(await self._call(method, params))

    async def _call(self, method: str, params: Mapping[str, Any]) -> Any:
        if method == "hello":
            return HelloResult(
                protocol="1.0", agent_version=__version__, node=self.name, boot_id="b1", fleet=self.fleet
            )
        if method == "report":
            return self._report(codec.from_json(ReportParams, params, strict=True))
        kinds: dict[str, type[Any]] = {
            "start": StartParams,
            "stop": StopParams,
            "drain": DrainParams,
            "forget": ForgetParams,
            "install": InstallParams,
            "fetch": FetchParams,
        }
        decoded: Any = codec.from_json(kinds[method], params, strict=True)
        self._admit(decoded.command)
        if method in self.refuse:
            raise self.refuse[method]
        self.commands.append((method, decoded.command.id))
        getattr(self, f"_{method}")(decoded)
        return Accepted()

    def _admit(self, command: Command) -> None:
        known, fence = self.fence, command.fence
        stale = known is not None and (
            fence.serial < known.serial or (fence.serial == known.serial and fence.intent != known.intent)
        )
        if stale:
            raise AgentError(f"serial {fence.serial} is fenced off", code=FENCED)
        if self.fleet not in (None, fence.fleet):
            raise AgentError("another fleet's", code=CONFLICT)
        self.fleet, self.fence = fence.fleet, fence

    def _report(self, params: ReportParams) -> Report:
        return Report(
            agent=AgentInfo(
                version=__version__,
                protocol="1.0",
                fleet=self.fleet,
                node=self.name,
                boot_id="b1",
                pid=1,
                started=START,
            ),
            at=self.clock.now(),
            facts=self.facts(),
            fence=self.fence,
            shards=tuple(self.shards.values()),
            journal=tuple(entry for entry in self.journal if entry.number > params.journal_after),
            journal_last=len(self.journal),
        )

    def facts(self) -> Facts:
        return Facts(
            hostname=self.name,
            boot_id="b1",
            cpus=8,
            memory_total=64 * GIB,
            memory_available=60 * GIB,
            gpus=self.gpus,
            engines=tuple(self.engines.values()),
            weights=tuple(self.weights.values()),
        )

    def _start(self, params: StartParams) -> None:
        spec = params.spec
        self.secrets[spec.shard] = params.secrets
        if spec.shard not in self.shards:
            self.shards[spec.shard] = ShardReport(
                shard=spec.shard,
                replica=spec.replica,
                rank=spec.rank,
                ranks=spec.ranks,
                model=spec.model,
                profile=spec.profile,
                spec_digest=spec.spec_digest,
                state="loading",
                reason="",
                since=self.clock.now(),
                claims=spec.claims,
                port=spec.probes.port,
                leader_address=spec.leader_address,
                started=self.clock.now(),
                attempts=1,
            )
            if self.ready_at_once:
                self._set(spec.shard, "ready")

    def _stop(self, params: StopParams) -> None:
        if params.shard in self.shards:
            self._set(params.shard, "stopped")

    def _drain(self, params: DrainParams) -> None:
        self._set(params.shard, "draining")
        self._set(params.shard, "stopped")

    def _forget(self, params: ForgetParams) -> None:
        self.shards.pop(params.shard, None)

    def _install(self, params: InstallParams) -> None:
        spec: InstallSpec = params.spec
        self.engines[spec.digest] = EngineFact(
            name=spec.engine, version=spec.version, digest=spec.digest, path=f"/engines/{spec.digest[:8]}"
        )

    def _fetch(self, params: FetchParams) -> None:
        spec: FetchSpec = params.spec
        self.weights[spec.digest] = WeightsFact(
            digest=spec.digest, path=f"/weights/{spec.digest[:8]}", size=1
        )

    async def stream(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[Any]:
        await asyncio.sleep(self.stream_begins_after)
        watcher: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self.watchers.append(watcher)
        try:
            yield codec.to_json(WatchEvent())
            while True:
                yield codec.to_json(await watcher.get())
        finally:
            self.watchers.remove(watcher)


# ---- the fleet -----------------------------------------------------------------------------------------------


class FreeLock:
    """Nobody else on this machine."""

    @asynccontextmanager
    async def __call__(self, timeout: float) -> AsyncIterator[None]:
        yield


class World:
    """Everything outside of a pass, and what makes passes over it."""

    def __init__(
        self, *models: Model, nodes: tuple[str, ...] = ("gpu01",), gpus: int = 2, agents: bool = True
    ) -> None:
        self.clock = FakeClock(START)
        self.branch = Branch(nodes, *(models or (Model(),)))
        self.store: RecordStore = MemoryRecordStore()
        self.agents = {name: PretendAgent(name, self.clock, gpus=gpus) for name in nodes}
        self.machines = {name: self._machine(agent, there=agents) for name, agent in self.agents.items()}
        self.transport = MemoryTransport(nodes=self.machines)
        self.secret = MemorySecret(SECRET)
        self.progress: Progress = Silent()
        self.links = Links({"local": self.transport})

    def _machine(self, agent: PretendAgent, *, there: bool) -> MemoryNode:
        async def start(fleet: str) -> PretendAgent:
            agent.fleet = FleetId(fleet)
            return agent

        return MemoryNode(start=start, service=agent if there else None, facts=agent.facts())

    def fleet(self, holder: str = "ann@desk", *, store: RecordStore | None = None) -> Fleet:
        return Fleet(
            name="lab",
            source=self.branch,
            store=store or self.store,
            transports={"local": self.transport},
            adapters=ADAPTERS,
            clock=self.clock,
            secret=self.secret,
            lock=FreeLock(),
            first_id=FLEET,
            holder=holder,
            actor=holder,
            environment={},
        )

    async def apply(
        self,
        holder: str = "ann@desk",
        *,
        halt: Halt | None = None,
        store: RecordStore | None = None,
        **request: Any,
    ) -> PassResult:
        """One pass. ``wish`` and the rest of PassRequest by name."""
        asked = PassRequest(**{"wish": Wish(), **request})
        links = Links({"local": self.transport})
        try:
            return await one_pass(
                self.fleet(holder, store=store),
                asked,
                links=links,
                halt=halt if halt is not None else Halt(),
                progress=self.progress,
            )
        finally:
            await links.close()

    async def settle(self) -> None:
        """Passes until nothing is left to do; whatever loads gets ready, whatever stops has stopped."""
        for _ in range(20):
            result = await self.apply()
            moving = [
                agent
                for agent in self.agents.values()
                if any(it.state == "loading" for it in agent.shards.values())
            ]
            for agent in moving:
                agent.become("ready")
            if not result.plan.commands and not moving:
                return
        raise AssertionError("it does not settle")

    @property
    def commands(self) -> list[str]:
        return [method for agent in self.agents.values() for method, _ in agent.commands]

    @property
    def key_id(self) -> str:
        return key_id(SECRET)

    def states(self) -> dict[ShardId, str]:
        return {it.shard: it.state for agent in self.agents.values() for it in agent.shards.values()}


def only(result: PassResult) -> StalledError:
    raise StalledError(str(result))
