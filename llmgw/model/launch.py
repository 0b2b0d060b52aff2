"""How one shard runs, to the last word: the controller computes it, the agent only checks it.

Text in argv, environment and files may hold *late values*, a closed list that only the node can know:
``${gpu.indices}`` ``${gpu.uuids}`` (comma lists of the claimed GPUs, in claim order; among indices a MIG instance
stands by its UUID, because it has none) ``${engine}`` (directory of the installed engine) ``${weights}`` (path of the
fetched weights) ``${home}`` (the engine's home) ``${key}`` (the replica's API key) ``${secret:NAME}`` ``${adapter:NAME}`` (where a LoRA adapter lies). ``$$`` is a
dollar sign. Anything else in ``${…}`` is refused.

Durations are seconds, sizes bytes.
"""

import re
from collections.abc import Mapping
from typing import Literal

from llmgw.model.claims import Claims
from llmgw.model.ids import JobId, ReplicaId, ShardId
from llmgw.model.manifest import Secret
from llmgw.model.struct import Struct, field

LATE_VALUES = ("gpu.indices", "gpu.uuids", "engine", "weights", "home", "key")
ADAPTER = "adapter:"
LATE_PATTERN = re.compile(r"\$(?:\$|\{([^}]*)\})")
MAX_PROCESSES = 16
ENGINE = "engine"  # the name of a shard's last process, whose exit is the shard's
TOKEN = "token"  # noqa: S105 - the name under which a fetch's access token travels, not what it holds


class File(Struct):
    """A file laid below the shard's home before launch, mode 0600. ``path`` is relative."""

    path: str
    content: str


class WaitFor(Struct):
    """A rendezvous: the process starts when something listens there."""

    host: str
    port: int
    timeout: float


class Process(Struct):
    """Environment is exact: nothing is inherited from the agent. The working directory is the engine's home."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    wait_for: WaitFor | None = None
    optional: bool = False


class HttpProbe(Struct):
    """A request that answers one question. ``authorized`` sends the replica's key as a bearer token."""

    path: str
    method: Literal["GET", "POST"] = "GET"
    body: str | None = None
    authorized: bool = False
    contains: str | None = None
    """Text that the answer's body must hold, for example the served name in ``/v1/models``."""


class Metric(Struct):
    """Sum of the samples of one name in the engine's Prometheus text."""

    path: str
    names: tuple[str, ...]
    authorized: bool = False


class Probes(Struct):
    """What *ready* means. A rank without HTTP (``port`` None) is ready when up for ``alive_grace``.

    Before the first ready all of ``ready`` and then ``token`` must answer 200; afterwards ``alive`` is asked.
    """

    port: int | None
    host: str = "127.0.0.1"
    ready: tuple[HttpProbe, ...] = ()
    token: HttpProbe | None = None
    alive: HttpProbe | None = None
    in_flight: Metric | None = None


class Expect(Struct):
    """What the plan took for granted, checked again just before exec. A mismatch is a named Retry, and the
    next pass plans anew."""

    gpus: tuple[str, ...] = ()  # UUIDs present, healthy and free of foreign memory
    interface_address: str | None = None  # an interface of the node holds this address
    gids: Mapping[str, str] = field(default_factory=dict)  # "mlx5_0:1:3" -> GID
    ports_free: tuple[int, ...] = ()
    engine: str | None = None  # digest of the installed engine
    flags: tuple[str, ...] = ()  # that this engine knows, by its own help, if it has told any
    weights: str | None = None  # digest of the fetched weights


class RestartPolicy(Struct):
    """Only single shards restart locally; a gang is restarted by the controller."""

    local: bool = True
    backoff: float = 10.0
    max_backoff: float = 300.0
    give_up_after: int = 6
    reset_after: float = 600.0  # seconds ready until the count of attempts starts anew


class ShardTimeouts(Struct):
    startup: float = 1800.0
    stop: float = 60.0
    kill: float = 5.0
    rendezvous: float = 300.0
    alive_grace: float = 5.0
    health: float = 2.0
    health_request: float = 3.0
    adopt_ready: float = 60.0
    drain: float = 120.0
    install: float = 3600.0
    fetch: float = 6.0 * 3600


class Program(Struct):
    """A program of llmgw's own runtime, laid into the engine's ``bin`` under the name ``install_as``."""

    runtime: str  # "llamaserver", "simengine"
    install_as: str  # "llama-server"


class HelpSpec(Struct):
    """How a program of an engine is asked which flags it knows. ``argv`` may hold ``${engine}`` and ends with the one word that
    asks for help; ``sure`` are flags that each version knows: a help without one of them is not whole."""

    argv: tuple[str, ...]
    sure: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    argparse: bool = False
    """It takes flags as Python programs do: underscores for dashes, and values behind a short flag or a dot."""
    finds: str | None = None  # looked for below the engine's path where ``argv`` names no program
    devices: tuple[str, ...] = ()  # the words after the program that make it list what it computes on
    timeout: float = 180.0


class InstallSpec(Struct):
    """An engine, installed into an environment of its own and named by its digest. Generic on purpose: a new
    engine needs no new agent."""

    job: JobId  # install-<digest8>
    engine: str
    version: str
    digest: str
    requirements: tuple[str, ...] = ()
    programs: tuple[Program, ...] = ()
    index_url: str | None = None
    wheel_dir: str | None = None
    python: str | None = None
    url: str | None = None  # an archive in place of requirements and programs
    sha256: str | None = None
    finds: tuple[str, ...] = ()  # programs that must be in the archive; they are linked into ``bin``
    help: HelpSpec | None = None  # read once it is installed
    timeout: float = 3600.0


class FetchSpec(Struct):
    """Weights, fetched to a directory named by ``digest``. Exactly one way is set, as in ``Model.spec.source``."""

    job: JobId  # fetch-<digest8>
    digest: str
    description: str
    path: str | None = None  # already on the node: only checked
    url: str | None = None
    sha256: str | None = None
    pip_requirement: str | None = None
    pip_file: str | None = None
    index_url: str | None = None
    wheel_dir: str | None = None
    hugging_face: str | None = None  # owner/name
    revision: str | None = None
    tool: str | None = None  # requirement of the program that fetches it, pinned; installed on the node
    token: Secret | None = None
    """Where the value comes from that travels beside the spec, under :data:`TOKEN`; here for messages only."""
    size: int | None = None
    timeout: float = 6.0 * 3600


class LoraAdapter(Struct):
    """A LoRA adapter that a shard has: it lies at ``path``, or ``job`` fetches it under ``digest``, which names its source
    either way. ``rank`` is what the manifest states, ``send`` the JSON fields of a request that is to be answered by it."""

    name: str
    digest: str
    rank: int
    send: str
    path: str | None = None
    job: JobId | None = None


class LoraListing(Struct):
    """How an engine tells which adapters it has. ``at`` is the field of its answer that holds the list (empty: the answer is
    the list); ``name``, ``place`` and ``parent`` are the fields of an entry with the adapter's name, its path and the model it
    belongs to (empty: it has no such field). With ``parent`` told, an entry without one is no adapter."""

    probe: HttpProbe
    at: str = ""
    name: str = ""
    place: str = ""
    parent: str = ""


class LoraCalls(Struct):
    """How an engine loads and unloads adapters while it runs. In the bodies ``${name}`` and ``${path}`` stand inside JSON text.
    ``already``: words of a refusal that means that it has the adapter. ``most`` and ``highest_rank``: what it was started for."""

    load: HttpProbe
    unload: HttpProbe
    most: int
    highest_rank: int
    already: str = ""
    timeout: float = 120.0


class LoraOrder(Struct):
    """The adapters of a shard, in the order in which they are loaded. Without ``calls`` the engine has them from its start and
    until its end. ``form`` says what must lie there: a directory of PEFT, a GGUF file, or nothing in particular."""

    adapters: tuple[LoraAdapter, ...]
    listing: LoraListing
    calls: LoraCalls | None = None
    form: Literal["peft", "gguf", ""] = ""


class Measure(Struct):
    """What to look for in the engine's output once it is ready: ``patterns`` are regular expressions with one group, by name.
    What they find is reported under ``key`` with ``about`` and ``given``, which the agent only passes on."""

    key: str
    about: str
    patterns: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)


class LaunchSpec(Struct):
    """One shard's standing order. Processes start in order; the last one, named ``engine``, is the shard."""

    shard: ShardId
    replica: ReplicaId
    rank: int
    ranks: int
    model: str
    profile: str
    served_name: str
    spec_digest: str
    address: str  # the node's own, that engines bind to
    leader_address: str  # host:port of rank 0's HTTP server
    processes: tuple[Process, ...]
    probes: Probes
    claims: Claims
    needs: tuple[JobId, ...] = ()
    engine: str | None = None  # digest that ${engine} resolves to
    engine_path: str | None = None  # or a path on the node
    weights: str | None = None  # digest that ${weights} resolves to
    weights_path: str | None = None  # or a path on the node
    secrets: tuple[str, ...] = ()  # names of ${secret:NAME}; values travel beside the spec, never in it
    expect: Expect = Expect()
    restart: RestartPolicy = RestartPolicy()
    timeouts: ShardTimeouts = ShardTimeouts()
    measure: Measure | None = None
    lora: LoraOrder | None = None
