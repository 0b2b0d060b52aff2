"""Small fleets for tests of the core: desired, record and reports, with only what a test varies."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone

from llmgw.core.adapter import NOTHING_KNOWN, EngineAdapter, Known, Need, NodeContext, Placed
from llmgw.model.claims import Claims
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.facts import Facts, Gpu, GpuProcess, Interface
from llmgw.model.ids import Commit, FleetId, JobId, digest, shard_id
from llmgw.model.launch import (
    ENGINE,
    FetchSpec,
    HelpSpec,
    HttpProbe,
    InstallSpec,
    LaunchSpec,
    LoraOrder,
    Probes,
    Process,
)
from llmgw.model.manifest import (
    GIB,
    Engine,
    FleetSpec,
    Gpus,
    ModelSpec,
    NodeSpec,
    Pip,
    ProfileSpec,
    Size,
    Source,
)
from llmgw.model.problems import Problem, Where
from llmgw.model.record import PassRecord, Record
from llmgw.model.report import (
    AgentInfo,
    JobReport,
    NodeObservation,
    Observed,
    Reach,
    Report,
    ShardReport,
)
from llmgw.model.struct import Struct, field, replace
from llmgw.wire import codec

NOW = datetime(2026, 3, 1, 10, 0, 0, tzinfo=timezone.utc)
FLEET = FleetId("fleet-1")
COMMIT = Commit("c" * 40)
KEY = "0badcafe"


# ---- a stand-in engine -------------------------------------------------------------------------------


class FakeAdapter:
    """Says what a simple engine would; weights are fetched when the source is a URL."""

    name = "sim"
    lora_ranks: tuple[int, ...] = ()

    def lora(self, model: DesiredModel) -> LoraOrder | None:
        return None

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        return ()

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        return ()

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        return ()

    def weights(self, model: DesiredModel) -> str | None:
        return None

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        share = model.profile.gpus.share
        return Need(ports=1, gpu_memory=share or 0, memory=model.profile.memory or 0, sum="as stated")

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        engine = model.profile.engine
        if engine.path is not None:
            return None
        name = digest([engine.name, engine.version])
        return InstallSpec(
            job=JobId(f"install-{name[:8]}"), engine=engine.name, version=engine.version or "1", digest=name
        )

    def help(self, model: DesiredModel) -> HelpSpec | None:
        return None

    def fetch(self, model: DesiredModel, pip: Pip) -> FetchSpec | None:
        url = model.spec.source.url
        if url is None:
            return None
        name = digest(url)
        return FetchSpec(
            job=JobId(f"fetch-{name[:8]}"), digest=name, description=url, url=url, sha256="0" * 64
        )

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        model, leader = placed.model, placed.ranks[0]
        return tuple(
            LaunchSpec(
                shard=shard_id(placed.replica, rank.rank),
                replica=placed.replica,
                rank=rank.rank,
                ranks=len(placed.ranks),
                model=model.name,
                profile=model.profile_name,
                served_name=model.served_name,
                spec_digest=model.spec_digest,
                address=rank.address,
                leader_address=f"{leader.address}:{leader.ports[0]}",
                processes=(
                    Process(
                        name=ENGINE,
                        argv=("${engine}/bin/sim-engine", "--port", str(rank.ports[0]), *model.spec.args),
                        env={"CUDA_VISIBLE_DEVICES": "${gpu.indices}", "SIM_API_KEY": "${key}"},
                    ),
                ),
                probes=Probes(port=rank.ports[0], host=rank.address, ready=(HttpProbe(path="/health"),)),
                claims=Claims(gpus=rank.gpus, memory=rank.memory, ports=rank.ports),
            )
            for rank in placed.ranks
        )


ADAPTERS: Mapping[str, EngineAdapter] = {"sim": FakeAdapter()}


# ---- what Git asks for -------------------------------------------------------------------------------


def node(name: str, **spec: object) -> DesiredNode:
    return DesiredNode(
        name=name,
        labels={},
        spec=NodeSpec(**spec),  # type: ignore[arg-type] # the test's own words
        address=address_of(name),
        where=Where(file=f"nodes/{name}.yaml", line=1, column=1),
    )


def address_of(name: str) -> str:
    return f"10.0.0.{int(''.join(c for c in name if c.isdigit()) or 1) % 250}"


def profile(*, gpus: int = 1, share: int | None = None, **spec: object) -> ProfileSpec:
    return ProfileSpec(
        engine=Engine(name="sim", version="1"),
        gpus=Gpus(per_node=gpus, share=Size(share) if share else None),
        **spec,  # type: ignore[arg-type] # the test's own words
    )


def model(name: str, runs: ProfileSpec | None = None, **spec: object) -> DesiredModel:
    runs = runs or profile()
    spec.setdefault("source", Source(path=f"/models/{name}"))
    asked = ModelSpec(profile="p", **spec)  # type: ignore[arg-type] # the test's own words
    decides = {
        "source": codec.to_json(asked.source),
        "args": asked.args,
        "env": codec.to_json(asked.env),
        "profile": codec.to_json(runs),
        "key": KEY,
    }
    return DesiredModel(
        name=name,
        labels={},
        spec=asked,
        profile_name="p",
        profile=runs,
        served_name=asked.served_name or name,
        spec_digest=digest(decides),
        where=Where(file=f"models/{name}.yaml", line=1, column=1),
    )


def desired(
    nodes: Sequence[DesiredNode] = (),
    models: Sequence[DesiredModel] = (),
    *,
    fleet: FleetSpec | None = None,
    commit: Commit | None = COMMIT,
) -> Desired:
    return Desired(
        commit=commit,
        fleet_name="lab",
        fleet=fleet or FleetSpec(),
        nodes={each.name: each for each in nodes},
        models={each.name: each for each in models},
    )


# ---- what nodes are and say --------------------------------------------------------------------------


def gpu(node_name: str, index: int, *, memory: int = 80 * GIB, **more: object) -> Gpu:
    return Gpu(
        uuid=f"GPU-{node_name}-{index}",
        index=index,
        name="H100",
        gpu_class=f"h100-{memory // GIB}g",
        memory_total=memory,
        memory_free=memory,
        **more,  # type: ignore[arg-type] # the test's own words
    )


def stranger(memory: int | None, pid: int = 4711, user: str = "ann") -> GpuProcess:
    return GpuProcess(pid=pid, user=user, memory=memory, command="python")


def facts(node_name: str, *, gpus: int = 1, memory: int = 64 * GIB, **more: object) -> Facts:
    more.setdefault("interfaces", (Interface(name="eth0", addresses=(address_of(node_name),)),))
    more.setdefault("gpus", tuple(gpu(node_name, index) for index in range(gpus)))
    return Facts(
        hostname=node_name,
        boot_id=f"boot-{node_name}",
        memory_total=memory,
        gpu_source="nvml",
        **more,  # type: ignore[arg-type] # the test's own words
    )


class NodeState(Struct, kw_only=False, frozen=False, eq=False):
    """A pretended node: what its agent would report. ``says``: the name that its agent has, empty: the node's own.
    ``now``: by its clock, which is ``ahead`` of the controller's."""

    name: str
    facts: Facts
    agent: str = "0.1.0"
    shards: dict[str, ShardReport] = field(default_factory=dict)
    jobs: dict[str, JobReport] = field(default_factory=dict)
    reach: Reach = Reach.OK
    error: str = ""
    fleet: str | None = FLEET
    says: str = ""
    now: datetime = NOW
    ahead: timedelta = timedelta(0)

    def observation(self) -> NodeObservation:
        if self.reach is not Reach.OK:
            probed = self.facts if self.reach is Reach.NO_AGENT else None
            return NodeObservation(node=self.name, reach=self.reach, facts=probed, error=self.error)
        report = Report(
            agent=AgentInfo(
                version=self.agent,
                protocol="1.0",
                fleet=self.fleet,
                node=self.says or self.name,
                boot_id=self.facts.boot_id,
                pid=1,
                started=NOW,
            ),
            at=self.now,
            facts=self.facts,
            shards=tuple(self.shards[key] for key in sorted(self.shards)),
            jobs=tuple(self.jobs[key] for key in sorted(self.jobs)),
        )
        return NodeObservation(node=self.name, reach=Reach.OK, facts=self.facts, report=report)


def observed(*nodes: NodeState) -> Observed:
    return Observed(nodes={each.name: each.observation() for each in nodes})


def shard_report(spec: LaunchSpec, state: str = "pending", **more: object) -> ShardReport:
    return replace(
        ShardReport(
            shard=spec.shard,
            replica=spec.replica,
            rank=spec.rank,
            ranks=spec.ranks,
            model=spec.model,
            profile=spec.profile,
            spec_digest=spec.spec_digest,
            state=state,
            reason="",
            since=NOW,
            claims=spec.claims,
            port=spec.probes.port,
            leader_address=spec.leader_address,
        ),
        **more,  # type: ignore[arg-type] # the test's own words
    )


# ---- the record --------------------------------------------------------------------------------------


def empty_record() -> Record:
    return Record(fleet=FLEET)


def a_pass(serial: int = 1, now: datetime = NOW) -> PassRecord:
    return PassRecord(
        serial=serial,
        holder="ann@desk",
        trigger="manual",
        actor="ann",
        commit=COMMIT,
        plan_digest="",
        started=now,
        lease_until=now + timedelta(seconds=120),
    )
