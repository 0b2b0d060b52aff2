"""What the table of a shard's states works on: the life, the events, the actions, the rules. The table and its chart
are in lifecycle.py.
"""

from enum import Enum
from typing import TypeAlias

from llmgw.model.launch import RestartPolicy, ShardTimeouts
from llmgw.model.report import Exit, ShardState
from llmgw.model.struct import Struct, Time

S = ShardState

TERMINAL = frozenset({S.STOPPED, S.FAILED})
WAITING = frozenset({S.PENDING, S.INSTALLING, S.FETCHING})
LIVE = frozenset({S.STARTING, S.LOADING, S.READY})
"""An engine runs, or is about to."""


class Action(Enum):
    """What the supervisor does next; each replaces what it was doing."""

    AWAIT_JOBS = "await-jobs"
    LAUNCH = "launch"
    AWAIT_PORT = "await-port"
    AWAIT_READY = "await-ready"
    WATCH = "watch"
    DRAIN = "drain"
    CLEAR = "clear"
    REST = "rest"


class Rules(Struct):
    """What the table takes from a launch spec."""

    restart: RestartPolicy = RestartPolicy()
    timeouts: ShardTimeouts = ShardTimeouts()
    local: bool = True  # restarts here; a gang's shard is restarted by the controller only
    http: bool = True
    rendezvous: float = 0  # seconds that its processes may wait for others, together


class Life(Struct):
    """Where a shard is. Written to disk at each change, before the action."""

    state: ShardState
    reason: str
    since: Time
    deadline: Time | None = None
    attempts: int = 0  # failed starts since it was last ready for long
    next_try: Time | None = None
    launched: bool = False  # an engine of this order has been started, ever
    started: Time | None = None
    ready_at: Time | None = None
    loading_seconds: float | None = None
    last_error: str = ""
    failed_at: Time | None = (
        None  # when this run went wrong: its engine's own end, or what its agent found too late
    )
    last_exit: Exit | None = None
    then: ShardState = S.STOPPED  # what follows stopping
    adopted: bool = False  # found running, not ready since


class Ordered(Struct):
    """A standing order has come. ``here``: there is no job to wait for."""

    here: bool = False


class JobsWaiting(Struct):
    """``state`` is installing or fetching."""

    state: ShardState
    reason: str


class JobsDone(Struct):
    pass


class JobsFailed(Struct):
    error: str
    retry: bool = False


class Launched(Struct):
    """The engine has been executed."""


class LaunchRefused(Struct):
    """``mismatch``: the node is not what the plan took for granted; that counts as no attempt. ``processes``:
    sidecars run already."""

    error: str
    mismatch: bool = False
    processes: bool = False


class PortOpen(Struct):
    pass


class Ready(Struct):
    pass


class ProbeFailed(Struct):
    """It was ready and has not answered several times in a row."""

    why: str


class Waiting(Struct):
    """Nothing has changed but what it waits for."""

    reason: str


class Exited(Struct):
    """The engine, or a sidecar that isn't optional, has ended."""

    exit: Exit


class DeadlinePassed(Struct):
    pass


class DrainAsked(Struct):
    timeout: float


class Drained(Struct):
    note: str = "nothing in flight"


class StopAsked(Struct):
    reason: str = ""


class Gone(Struct):
    """No process is left and the GPUs' memory is back; ``note`` says what could not be verified."""

    note: str = ""


class SurvivedKill(Struct):
    who: str


class Adopted(Struct):
    """A new agent has found the engine running."""


class Resumed(Struct):
    """A new agent has found the order, and no engine under it."""


class Rebooted(Struct):
    """A new agent has found the order, written before the machine went down: nothing of it can run."""


Event: TypeAlias = (
    Ordered
    | JobsWaiting
    | JobsDone
    | JobsFailed
    | Launched
    | LaunchRefused
    | PortOpen
    | Ready
    | ProbeFailed
    | Waiting
    | Exited
    | DeadlinePassed
    | DrainAsked
    | Drained
    | StopAsked
    | Gone
    | SurvivedKill
    | Adopted
    | Resumed
    | Rebooted
)
