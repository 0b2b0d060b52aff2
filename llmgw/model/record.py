"""The record: what the reconciler last applied, kept on the state branch.

Laid out as ``record.json`` (head, models, the last pass), ``replicas/<model>/<replica>.json``,
``nodes/<node>.json`` and ``endpoints.json``. Nothing in it changes by itself every minute.
"""

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

from llmgw.model.claims import GpuClaim
from llmgw.model.facts import Facts
from llmgw.model.ids import Commit, FleetId, ReplicaId
from llmgw.model.manifest import ModelSpec, NodeSpec, ProfileSpec
from llmgw.model.problems import Where
from llmgw.model.report import Exit
from llmgw.model.struct import Struct, Time, field
from llmgw.model.weights import Measured, Weights

FORMAT = 1
"""Version of the record's layout. A newer one is refused with the version that can read it."""
LEASE = timedelta(seconds=120)
"""A pass takes seconds; after this long without a sign its controller is taken for dead, unless the settings say otherwise."""


class ReplicaPhase(Enum):
    """What the reconciler last told a replica to be."""

    STARTING = "starting"  # start commanded, not yet seen ready
    SERVING = "serving"  # was ready and is published
    DRAINING = "draining"  # published as draining
    STOPPING = "stopping"  # stop commanded, not yet seen stopped


class Outcome(Enum):
    DONE = "done"
    ACCEPTED = "accepted"  # commands taken; replicas are still on their way
    PARTIAL = "partial"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    INTERRUPTED = "interrupted"
    RECOVERED = "recovered"


class RankPlacement(Struct):
    """Where one rank runs. ``ports`` holds the HTTP port first, then what else the engine needs."""

    rank: int
    node: str
    address: str
    gpus: tuple[GpuClaim, ...] = ()
    memory: int = 0
    ports: tuple[int, ...] = ()


class ReplicaSpec(Struct):
    """The resolved model a replica was started with: enough to start it again without the manifests."""

    model: ModelSpec
    profile_name: str
    profile: ProfileSpec
    served_name: str
    key_id: str


class Origin(Struct):
    """The line of the commit that a replica is there for."""

    commit: Commit
    where: Where
    serial: int
    author: str = ""  # of the commit, as Git writes it; empty: not known


class ReplicaRecord(Struct):
    id: ReplicaId
    model: str
    ordinal: int
    n: int
    spec_digest: str
    spec: ReplicaSpec
    ranks: tuple[RankPlacement, ...]
    phase: ReplicaPhase
    origin: Origin
    reasons: tuple[str, ...] = ()
    draining_since: Time | None = None
    last_exit: Exit | None = None
    replaced_by: str = ""
    """Who asked for a new copy in its place though nothing changed; empty: nobody."""


class Held(Struct):
    """A spec that failed: not tried again until the model's digest changes."""

    spec_digest: str
    commit: Commit
    reason: str
    at: Time
    replica: ReplicaId | None = None
    last_lines: tuple[str, ...] = ()
    author: str = ""  # of that commit; empty: not known


class Evicted(Struct):
    """Why one ordinal has no copy: it made room for another model's. It is no failure, and counts as none."""

    replica: ReplicaId  # that went
    made_room_for: str  # address of who came: model/chat/0
    commit: Commit
    serial: int
    at: Time


class Attempts(Struct):
    """How often one ordinal has failed in a row as a gang, which only the reconciler starts again: a single shard counts
    its own attempts on its node. ``refused``: how often in a row its node was not what the plan took for granted, which
    counts as no attempt."""

    spec_digest: str
    count: int
    at: Time  # when the last failure was seen
    error: str
    replica: ReplicaId  # that failed last
    refused: int = 0
    nodes: tuple[str, ...] = ()  # where it failed in a row, newest last


class ModelRecord(Struct):
    """What outlives a model's replicas: its first name, how often each ordinal was placed, what failed."""

    name: str
    id_prefix: str
    served_name: str
    protect: bool = False
    replicas: int = 1
    priority: int = 100
    aliases: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    placements: Mapping[str, int] = field(default_factory=dict)  # ordinal (as text) -> last n
    last_good: str | None = None  # spec digest that was last seen ready
    last_good_spec: ReplicaSpec | None = None  # what that digest stands for: enough to go back to it
    held: Held | None = None
    attempts: Mapping[str, Attempts] = field(default_factory=dict)  # ordinal (as text) -> failures
    evicted: Mapping[str, Evicted] = field(default_factory=dict)  # ordinal (as text) -> whom it made room for
    removed: bool = False  # gone from Git: dropped when its last replica has stopped
    earlier: tuple[
        str, ...
    ] = ()  # names that it had before, newest last: taken back in Git, each is a rename again


class NodeRecord(Struct):
    """What offline plans and the next pass need of a node."""

    name: str
    address: str
    facts: Facts | None = None  # the stable part
    agent_version: str = ""
    boot_id: str = ""
    journal_cursor: int = 0
    unreachable_since: Time | None = None
    forgiven_at: Time | None = None
    """It was silent and answers again: until then that silence still counts, should it fall silent once more."""
    spec: NodeSpec | None = None
    """As Git had it last: how it is reached when Git does not name it any more. None: not recorded yet."""
    formerly: tuple[str, ...] = ()
    """Names that its agent may still have, newest last; empty once it has been seen to answer under the node's own."""
    earlier: tuple[str, ...] = ()
    """Names that it had before, newest last: taken back in Git, each is a rename again."""


class EndpointAdapter(Struct):
    """A LoRA adapter that a replica answers with. ``send``: the fields that a request to it carries for that."""

    name: str
    send: Mapping[str, Any] = field(default_factory=dict)


class Endpoint(Struct):
    """Where a replica's OpenAI-compatible API is. What a gateway reads."""

    model: str
    served_name: str
    aliases: tuple[str, ...]
    replica: ReplicaId
    address: str
    port: int
    key_id: str
    state: str  # ready | draining
    adapters: tuple[EndpointAdapter, ...] = ()

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/v1"


class PassRecord(Struct):
    """The last pass that commanded something. While ``outcome`` is None it holds the lease."""

    serial: int
    holder: str
    trigger: str  # manual | cron | webhook | watch
    actor: str
    commit: Commit
    plan_digest: str
    started: Time
    lease_until: Time
    outcome: Outcome | None = None
    ended: Time | None = None
    steps: Mapping[str, str] = field(default_factory=dict)  # step id -> outcome
    errors: tuple[str, ...] = ()
    signer: str = ""
    """Who signed the commit, and with which key; empty: nobody had to."""
    diverged_from: Commit | None = None
    """The commit applied before, where this one does not come after it: history was rewritten, or this is another branch."""
    instance: str = ""
    """Which state directory's lock the holder had. Two machines may go by one name; their locks are not one lock."""
    targets: tuple[str, ...] = ()  # the only addresses that it was about; empty: all
    replaced: tuple[str, ...] = ()  # replicas for which new copies were asked for though nothing changed
    override: str = ""  # why changes were made although they are frozen


class GivenUp(Struct):
    """A replica that somebody gave up together with a machine that was lost, or whose order no agent knew of when the pass that
    gave it was taken over: should a shard of it turn up, it is told to stop."""

    replica: ReplicaId
    node: str
    by: str
    at: Time
    serial: int = 0  # of the pass whose order may still come; 0: its machine was lost


class Setback(Struct):
    """How often in a row the agent of a machine could not be set up; the last time at ``at``."""

    count: int
    at: Time
    error: str


class Forgotten(Struct):
    """A replica that somebody stopped managing without stopping it: it runs on by its agents' standing orders, keeps what it
    holds, and no plan touches it until it is adopted or has ended."""

    replica: ReplicaRecord
    by: str
    at: Time
    serial: int
    why: str = ""


class Build(Struct):
    """What agents were made of, by the name that :class:`~llmgw.model.report.AgentInfo` gives it. ``by``: which controller's, the
    name of its state directory."""

    name: str
    by: str


class Record(Struct):
    fleet: FleetId
    serial: int = 0
    commit: Commit | None = None  # the manifests' commit last applied, whole
    partial: Commit | None = None
    """A newer commit, of which only some addresses have been applied since."""
    keeps_removed: bool = False
    """``prune.enabled`` was false when that commit was applied: it takes a commit of its own to make it true again."""
    key_id: str = ""
    tool_version: str = ""
    models: Mapping[str, ModelRecord] = field(default_factory=dict)
    replicas: Mapping[str, ReplicaRecord] = field(default_factory=dict)
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    endpoints: tuple[Endpoint, ...] = ()
    weights: Mapping[str, Weights] = field(default_factory=dict)
    """What is known of the weights that models ask for, by the digest of their source."""
    measured: Mapping[str, Measured] = field(default_factory=dict)
    """What engines said of their memory, by the key of what it holds for."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The highest placement number of models that are gone, by idPrefix: one that comes back goes on from there."""
    last_pass: PassRecord | None = None
    given_up: tuple[GivenUp, ...] = ()  # newest last, bounded
    forgotten: Mapping[str, Forgotten] = field(default_factory=dict)  # by replica id
    setbacks: Mapping[str, Setback] = field(default_factory=dict)  # by node
    spent_plans: tuple[str, ...] = ()  # digests of saved plans already applied, newest last, bounded
    builds: tuple[Build, ...] = ()  # that nodes were brought to, newest last, bounded

    @property
    def holding(self) -> tuple[ReplicaRecord, ...]:
        """Every replica that holds something of a node, whether or not anybody manages it."""
        return (*self.replicas.values(), *(each.replica for each in self.forgotten.values()))

    def knows(self, replica: str) -> bool:
        return replica in self.replicas or replica in self.forgotten
