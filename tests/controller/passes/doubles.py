"""Nodes whose answers a test writes down: for what a real agent would do only by bad luck."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

from llmgw.controller.nodes.transport import Link, Transport
from llmgw.model.claims import Claims
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import Commit, Fence, FleetId, JobId, ReplicaId, ShardId
from llmgw.model.launch import InstallSpec, LaunchSpec, Probes, Process
from llmgw.model.manifest import Local, NodeSpec
from llmgw.model.plan import Basis, Plan, Step, StepKind
from llmgw.model.problems import NoAgentError, Where
from llmgw.model.report import AgentInfo, JournalEntry, Report, ShardReport
from llmgw.wire.messages import Accepted, HelloResult

T = TypeVar("T")
NOW = datetime(2030, 1, 1, 12, 0, tzinfo=timezone.utc)
FLEET = FleetId("fleet-1")
FENCE = Fence(fleet=FLEET, serial=7, intent=Commit("c" * 40))

Answer = Callable[[Any], Any]


class Script:
    """What one node says. ``answers`` are taken in order for each method; when they are used up the last one stays.
    An exception is raised, anything else returned."""

    def __init__(self, name: str, **answers: Sequence[Any]) -> None:
        self.name = name
        self.answers: dict[str, list[Any]] = {method: list(given) for method, given in answers.items()}
        self.asked: list[tuple[str, Any]] = []
        self.connects: list[Exception] = []
        self.fleet: FleetId | None = None
        self.agent = True
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.gated: set[str] = set()
        self.was_asked = asyncio.Event()
        self.at_once = 0
        self.most_at_once = 0

    def take(self, method: str) -> Any:
        waiting = self.answers.get(method)
        if not waiting:
            return Accepted()
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]


class ScriptedLink:
    def __init__(self, script: Script) -> None:
        self._script = script
        self.closed = False

    @property
    def hello(self) -> HelloResult:
        return HelloResult(
            protocol="1.0",
            agent_version="0.1.0",
            node=self._script.name,
            boot_id="b",
            fleet=self._script.fleet,
        )

    async def request(self, method: str, params: Any, result: type[T], *, timeout: float) -> T:
        script = self._script
        script.asked.append((method, params))
        script.was_asked.set()
        script.at_once += 1
        script.most_at_once = max(script.most_at_once, script.at_once)
        try:
            if method in script.gated:
                await script.gates[method].wait()
            await asyncio.sleep(0)
            answer = script.take(method)
        finally:
            script.at_once -= 1
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, result)
        return answer

    async def stream(self, method: str, params: Any, item: type[T]) -> AsyncIterator[T]:
        for answer in self._script.answers.get(method, ()):
            yield answer

    async def close(self) -> None:
        self.closed = True


class ScriptedTransport:
    def __init__(self, *scripts: Script) -> None:
        self.scripts = {script.name: script for script in scripts}
        self.links: list[ScriptedLink] = []
        self.bootstrapped: list[str] = []
        self.open_at_once = 0

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        script = self.scripts[node.name]
        if script.connects:
            raise script.connects.pop(0)
        if not script.agent:
            raise NoAgentError(f"node {node.name}: no agent listens")
        link = ScriptedLink(script)
        self.links.append(link)
        return link

    async def probe(self, node: DesiredNode) -> Facts:
        return Facts(hostname=node.name)

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        self.bootstrapped.append(node.name)
        self.scripts[node.name].agent = True

    async def close(self) -> None:
        pass


def transports(transport: ScriptedTransport) -> Mapping[str, Transport]:
    return {"local": transport}


def node(name: str, *, pretended: Facts | None = None) -> DesiredNode:
    return DesiredNode(
        name=name,
        labels={},
        spec=NodeSpec(transport="local", local=Local(work_dir=f"/tmp/{name}")),
        address="127.0.0.1",
        where=Where(file="nodes.yaml"),
        pretended=pretended,
    )


def launch(replica: str = "chat-1f0c9a2b-0.1", *, secrets: tuple[str, ...] = ()) -> LaunchSpec:
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
        leader_address="127.0.0.1:18000",
        processes=(Process(name="engine", argv=("engine",)),),
        probes=Probes(port=18000),
        claims=Claims(ports=(18000,)),
        secrets=secrets,
    )


def start(name: str, on: str = "gpu01", *, after: tuple[str, ...] = (), timeout: float = 1) -> Step:
    return Step(
        id=name,
        kind=StepKind.START,
        reason="new model",
        node=on,
        model="chat",
        replica="chat-1f0c9a2b-0.1",
        shard="chat-1f0c9a2b-0.1-r0",
        after=after,
        launch=launch(),
        timeout=timeout,
    )


def install(name: str, on: str = "gpu01", *, after: tuple[str, ...] = ()) -> Step:
    spec = InstallSpec(job=JobId("install-1"), engine="sim", version="1", digest="1" * 64)
    return Step(
        id=name, kind=StepKind.INSTALL, reason="needed", node=on, install=spec, after=after, timeout=1
    )


def step(name: str, kind: StepKind, on: str | None = "gpu01", *, after: tuple[str, ...] = ()) -> Step:
    return Step(
        id=name,
        kind=kind,
        reason="because",
        node=on,
        model="chat",
        replica="chat-1f0c9a2b-0.1",
        shard="chat-1f0c9a2b-0.1-r0" if kind not in (StepKind.BOOTSTRAP, StepKind.PUBLISH) else None,
        after=after,
        drain_timeout=5 if kind is StepKind.DRAIN else None,
        timeout=1,
    )


def plan_of(*steps: Step) -> Plan:
    basis = Basis(fleet=FLEET, commit=Commit("a" * 40), serial=6, observed="o")
    return Plan(basis=basis, created=NOW, steps=steps)


def report(
    name: str,
    *,
    shards: tuple[ShardReport, ...] = (),
    journal: tuple[JournalEntry, ...] = (),
    journal_last: int = 0,
) -> Report:
    return Report(
        agent=AgentInfo(
            version="0.1.0",
            protocol="1.0",
            fleet=FLEET,
            node=name,
            boot_id="b",
            pid=1,
            started=NOW,
            user="ann",
        ),
        at=NOW,
        facts=Facts(hostname=name),
        shards=shards,
        journal=journal,
        journal_last=journal_last,
    )


def shard(state: str, *, replica: str = "chat-1f0c9a2b-0.1") -> ShardReport:
    return ShardReport(
        shard=ShardId(f"{replica}-r0"),
        replica=ReplicaId(replica),
        rank=0,
        ranks=1,
        model="chat",
        profile="small",
        spec_digest="1f0c9a2b" + "0" * 56,
        state=state,
        reason="",
        since=NOW,
    )
