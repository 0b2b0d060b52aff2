"""A plan: the changes, the steps that make them, and a reason for each. Decided to the last word; who carries
it out has no choice left. Addresses read ``model/chat``, ``model/chat/0`` (a replica by ordinal), ``node/gpu01``.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from llmgw.model.ids import Commit, FleetId, JobId
from llmgw.model.launch import FetchSpec, InstallSpec, LaunchSpec, LoraAdapter
from llmgw.model.problems import Problem, Where
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct, Time, field

FORMAT = 1
PRUNE_DISABLED = "prune-disabled"
"""Keyword of a removal that the Fleet forbids, or forbade until this commit."""


class Action(Enum):
    """What happens to an address; the value is the sign that plans print."""

    CREATE = "+"
    UPDATE = "~"
    REMOVE = "-"
    CREATE_BEFORE_DESTROY = "+/-"
    DESTROY_BEFORE_CREATE = "-/+"
    MOVE = ">"
    BLOCKED = "!"


class FieldChange(Struct):
    """One field's old and new value, as JSON text (durations and sizes: as in manifests, ``30m``); None: absent."""

    path: str
    old: str | None
    new: str | None
    forces_replacement: bool = False


class Rejection(Struct):
    """A candidate turned down and why, with numbers where there are any."""

    node: str
    reason: str
    need: str = ""
    have: str = ""


class Decision(Struct):
    """Where a replica goes and why. ``ranks`` is empty when nothing fits."""

    ranks: tuple[RankPlacement, ...] = ()
    reasons: tuple[str, ...] = ()
    rejections: tuple[Rejection, ...] = ()


class Change(Struct):
    """What is different at one address and what the plan does about it. Never without a reason."""

    address: str
    action: Action
    reason: str
    keyword: str
    """A stable word for scripts: new-model, scaled-up, spec-changed, removed, no-room, held, unknown-node, …"""
    model: str | None = None
    ordinal: int | None = None
    replica: str | None = None  # the one that comes, or changes in place
    previous: str | None = None  # the one that goes
    fields: tuple[FieldChange, ...] = ()
    placement: Decision | None = None
    where: Where | None = None
    outage: str = ""  # expected, in words; empty: none
    would: Action | None = None  # what it would be, were changes not frozen
    evicts: tuple[
        str, ...
    ] = ()  # replicas of lower priority that go first, so that there is room for this one
    evicted_for: str = ""  # the address that this one makes room for, or has made room for


class Drift(Struct):
    """Reported differs from recorded: what happened without anybody asking for it."""

    address: str
    keyword: str
    text: str
    node: str | None = None
    shard: str | None = None


class StepKind(Enum):
    BOOTSTRAP = "bootstrap"
    INSTALL = "install"
    FETCH = "fetch"
    AWAIT_JOBS = "await-jobs"  # before something is stopped to make room: what comes next is there already
    START = "start"
    ADAPTERS = "adapters"  # of a shard that runs: loaded and unloaded without a restart
    AWAIT_READY = "await-ready"  # nobody waits inside a pass: what comes after is left to a later one
    PUBLISH = "publish"
    DRAIN = "drain"
    AWAIT_DRAINED = "await-drained"
    STOP = "stop"
    AWAIT_STOPPED = "await-stopped"
    FORGET = "forget"
    CANCEL = "cancel"  # a job that nobody wants any more
    COLLECT = "collect"  # only asked for by a person


AWAITS = frozenset(
    {StepKind.AWAIT_JOBS, StepKind.AWAIT_READY, StepKind.AWAIT_DRAINED, StepKind.AWAIT_STOPPED}
)


class Origin(Struct):
    """Whose word a variable of a process is, for people: ``network``, ``node NAME``, ``profile NAME``, ``model NAME``, or
    ``engine`` where llmgw overrules them. ``over`` are the others who said something else, with what they said."""

    process: str
    name: str
    source: str
    reason: str
    over: tuple[str, ...] = ()


class Step(Struct):
    """One thing to do on one node. Runs when every step of ``after`` is done. ``publish`` has no node: it is
    made true by the record."""

    id: str  # unique in the plan, the same for the same plan: "start chat-1f0c9a2b-0.1-r0"
    kind: StepKind
    reason: str
    node: str | None = None
    model: str | None = None
    replica: str | None = None
    shard: str | None = None
    job: JobId | None = None  # to cancel
    after: tuple[str, ...] = ()
    wave: int = 0
    timeout: float = 30.0  # seconds for the command to be answered, not for what it sets going
    launch: LaunchSpec | None = None
    origins: tuple[Origin, ...] = ()  # of the launch's variables that are not the engine's own
    install: InstallSpec | None = None
    fetch: FetchSpec | None = None
    drain_timeout: float | None = None
    adapters: tuple[LoraAdapter, ...] | None = None  # that the shard has from now on
    collect: tuple[str, ...] = ()  # names of what the node has stored and nothing refers to


def sendable(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Those that one pass carries out: nothing they come after must first be seen by a later pass. ``steps`` stand in an
    order in which each comes after those it waits for, as a plan's do."""
    later: set[str] = set()
    for step in (every := tuple(steps)):
        if step.kind in AWAITS or not later.isdisjoint(step.after):
            later.add(step.id)
    return tuple(step for step in every if step.id not in later)


class StepOutcome(Enum):
    """What became of a step in one pass. ``skipped``: something before it failed; ``deferred``: it waits for
    something that only a later pass will see; ``unknown``: sent, and the answer never came."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    DEFERRED = "deferred"
    UNKNOWN = "unknown"


class StepResult(Struct):
    outcome: StepOutcome
    error: str = ""


class Notice(Struct):
    text: str
    where: Where | None = None


def told_of(problem: Problem) -> Notice:
    """What is wrong with a manifest and holds nothing back, as a warning of the plan."""
    text = f"{problem.what}: {problem.instead}" if problem.instead else problem.what
    return Notice(text=text, where=problem.where)


class Gate(Struct):
    """Whether changes may be made now: by ``suspend`` and the sync windows of the Fleet."""

    open: bool
    text: str
    """``closed until Mon 2026-03-02 17:00 Europe/Istanbul (14:00 UTC): …``"""
    until: Time | None = None
    """When that changes by itself; None: only by a commit, or not in sight."""


class Basis(Struct):
    """What the plan was made from, and what makes it stale. ``observed`` digests only what decides: boot ids,
    agents, GPU sets and health, foreign-held yes or no, shard ids and coarse states."""

    fleet: FleetId
    commit: Commit | None
    serial: int
    observed: str
    offline: bool = False
    worktree: bool = False
    record_at: Time | None = None
    record_commit: Commit | None = None
    signer: str = ""
    """Who signed the commit, and with which key; empty: nobody had to."""
    diverged_from: Commit | None = None
    """The commit applied last, where this one does not come after it: history was rewritten, or this is another branch."""


class Plan(Struct):
    basis: Basis
    created: Time
    changes: tuple[Change, ...] = ()
    drift: tuple[Drift, ...] = ()
    steps: tuple[Step, ...] = ()
    warnings: tuple[Notice, ...] = ()
    waiting: tuple[str, ...] = ()
    """What is on its way without a command: ``model/chat/0 is loading since …``; empty when all is settled."""
    due: Time | None = None
    """When something of that may be done by itself, without anybody telling: the end of a pause."""
    unchanged: int = 0
    gate: Gate | None = None
    """None: the Fleet has neither sync windows nor ``suspend``."""
    frozen: bool = False
    """The gate is closed: nothing is begun, and what waits for that is blocked."""
    override: str = ""
    """Why somebody had changes made although the gate is closed."""
    targets: tuple[str, ...] = ()
    """The addresses that this plan is about; empty: all."""
    left_out: tuple[Change, ...] = ()
    """Changes of other addresses, which this plan does not make."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Replicas for which somebody asked for new copies though nothing changed: id to who asked."""
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def blocked(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action is Action.BLOCKED)

    @property
    def partial(self) -> bool:
        """Whether something that the commit asks for is left out on purpose: then it does not count as applied."""
        return self.frozen or bool(self.targets)

    @property
    def commands(self) -> tuple[Step, ...]:
        """Steps that send or record something; an empty tuple means nothing to do now."""
        return tuple(step for step in self.steps if step.kind not in AWAITS)
