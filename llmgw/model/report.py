"""What an agent says of its node: facts, shards, jobs, journal.

States come as text so that a newer agent's unknown state is shown, not refused; the known ones are the
constants here and the table in core/lifecycle.
"""

from collections.abc import Mapping
from enum import Enum

from llmgw.model.claims import Claims
from llmgw.model.facts import Facts
from llmgw.model.ids import Fence, FleetId, JobId, ReplicaId, ShardId
from llmgw.model.struct import Struct, Time, field
from llmgw.model.weights import Measured, Weights


class ShardState(Enum):
    """States of a shard, in the order a healthy life goes through them; the chart is in core/lifecycle."""

    PENDING = "pending"
    INSTALLING = "installing"
    FETCHING = "fetching"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    BACKOFF = "backoff"
    FAILED = "failed"


class JobState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Exit(Struct):
    """How a process ended, explained. Exactly one of ``code`` and ``signal`` is set, or neither when an
    adopted process went without a shim to tell."""

    at: Time
    process: str = "engine"
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    traceback: str = ""
    """The first traceback in the output: the last line is often only its echo."""
    last_lines: tuple[str, ...] = ()
    detail: str = ""


class ComputesOn(Struct):
    """What a shard really computes on: GPUs its processes hold memory of, in bytes; empty means CPU."""

    gpus: Mapping[str, int] = field(default_factory=dict)


class ByHand(Struct):
    """What somebody did to a shard on its node, past the controller; it counts until the controller commands it again."""

    verb: str  # started | stopped | drained
    by: str
    at: Time


class LoraState(Enum):
    """How far a LoRA adapter of a shard is, in the order of a healthy one. A rank that does not serve only holds them."""

    HELD = "held"
    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"  # the engine took it
    ROUTABLE = "routable"  # and lists it: requests can choose it
    FAILED = "failed"


class LoraReport(Struct):
    """A LoRA adapter that a shard was told to have. ``send``: the JSON fields of a request that is to be answered by it."""

    name: str
    digest: str
    rank: int
    state: str
    reason: str = ""
    send: str = ""


class ShardReport(Struct):
    """One shard as its agent sees it."""

    shard: ShardId
    replica: ReplicaId
    rank: int
    ranks: int
    model: str
    profile: str
    spec_digest: str
    state: str
    reason: str
    since: Time  # in this state
    attempts: int = 0
    pid: int | None = None  # the engine's
    started: Time | None = None
    ready_at: Time | None = None
    next_try: Time | None = None
    loading_seconds: float | None = None  # how long the last start took until ready
    last_error: str = ""
    failed_at: Time | None = None
    """When its run went wrong: its engine's own end, or its agent's finding that it does not get ready. Not the end that
    its agent then made of it."""
    last_exit: Exit | None = None
    last_line: str = ""
    claims: Claims = Claims()
    port: int | None = None
    leader_address: str = ""
    computes_on: ComputesOn | None = None
    by_hand: ByHand | None = None
    measured: Measured | None = None
    """What its engine said of its memory since it became ready."""
    lost: str = ""
    """What its agent misses of its order, in words, so that the order must be sent once more."""
    adapters: tuple[LoraReport, ...] = ()


class JobReport(Struct):
    """Work with an end. ``total`` None: not known (yet)."""

    job: JobId
    kind: str  # install | fetch
    target: str  # digest of the engine or weights
    description: str
    state: str
    done_bytes: int = 0
    total_bytes: int | None = None
    started: Time | None = None
    ended: Time | None = None
    last_line: str = ""
    error: str = ""


class Stored(Struct):
    """Something that jobs have brought to a node, whole or half made. ``held``: why its agent would not remove it now."""

    name: str  # engine/<digest>, weights/<digest>, tool/<name>-<version>-<digest8>, half/<job>/<name>
    description: str
    path: str
    size: int  # bytes on the disk; of weights that somebody else has put there: none
    held: str = ""
    shards: tuple[ShardId, ...] = ()  # those among the reasons: each whose order refers to it


TOLD = "told"
"""The field of a shard-exit entry that says what the process had been told."""


class JournalEntry(Struct):
    """Something that happened on the node. Numbers only grow; a gap means entries were dropped."""

    number: int
    at: Time
    kind: str  # agent-started, shard-state, shard-exit, adapter, job, fence, manual, policy, problem
    subject: str
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def told(self) -> bool:
        """A process ended because it had been told to."""
        return TOLD in self.fields


class AgentInfo(Struct):
    version: str
    protocol: str  # "1.0"
    fleet: str | None
    node: str
    boot_id: str
    pid: int
    started: Time
    user: str = ""
    build: str = (
        ""  # of the files that it was made of, as whoever installed it names them; empty: run where they lie
    )


class Report(Struct):
    """Everything one agent says. ``at`` is the node's clock as the answer is sent, ``took`` the seconds that it needed to
    answer: what is left of the time that an asker waits is the way there and back."""

    agent: AgentInfo
    at: Time
    facts: Facts
    fence: Fence | None = None
    shards: tuple[ShardReport, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    journal: tuple[JournalEntry, ...] = ()
    journal_last: int = 0
    problems: tuple[str, ...] = ()
    took: float = 0.0

    @property
    def journal_read(self) -> int:
        """Up to which number the journal is known with this report: it holds only so many entries, and the rest comes
        with the next one."""
        return self.journal[-1].number if self.journal else self.journal_last


class Reach(Enum):
    """Whether a node could be asked, and if not, why not."""

    OK = "ok"  # its agent answered
    NO_AGENT = "no-agent"  # the machine answers, no agent there (facts may come from the probe)
    UNREACHABLE = "unreachable"  # nothing is known of it now
    NOT_ASKED = "not-asked"  # an offline plan


class NodeObservation(Struct):
    """What one pass learnt of one node. ``facts`` may stand without a report: from the probe, from pretended
    facts, or from the record in an offline plan; None: known only after bootstrap. ``skew``: seconds that the node's
    clock is ahead of the asker's; None: not known. ``owner``: another fleet that its agent belongs to, so that it was asked nothing."""

    node: str
    reach: Reach
    facts: Facts | None = None
    report: Report | None = None
    error: str = ""
    owner: FleetId | None = None
    skew: float | None = None
    bad_weights: Mapping[str, str] = field(default_factory=dict)
    """Weights that this node should have and that can't be used there: why, by the digest of their source."""


class Observed(Struct):
    """Everything one pass learnt, by node. ``weights`` are those that models ask for and something is known of, by the digest
    of their source; None: nobody looked."""

    nodes: Mapping[str, NodeObservation] = field(default_factory=dict)
    weights: Mapping[str, Weights] | None = None
