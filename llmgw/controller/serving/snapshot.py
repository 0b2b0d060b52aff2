"""What ``serve`` knows right now, as one value that is replaced whole after each pass and look; and what it tells as it happens.

Whoever answers over HTTP, counts or sends notices reads values of this module and knows nothing else of the loop.
"""

from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from llmgw.core.show.status import Status
from llmgw.model.ids import Commit
from llmgw.model.record import Endpoint
from llmgw.model.struct import Struct, field, replace

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: a pass over a few local nodes takes a tenth of one, with a node out of reach 20."""

NOTHING, HELD, INVALID, ERROR = "nothing", "held", "invalid", "error"
"""How a pass ended beside the words of :class:`~llmgw.model.record.Outcome`: nothing was to be done; somebody else is
applying; the commit can't be applied as it is written; anything else that kept it from beginning."""


class Durations(Struct):
    """``counts[i]`` passes took at most ``BOUNDS[i]`` seconds and more than the bound before; the last count has no bound."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    total: float = 0.0  # seconds of all passes together

    def plus(self, seconds: float) -> "Durations":
        at = bisect_left(BOUNDS, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Durations(counts=counts, total=self.total + seconds)


class Totals(Struct):
    """Since the start of this process; they only grow."""

    passes: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (trigger, how it ended)
    steps: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (kind, outcome), as in the plan
    durations: Durations = Durations()

    def plus(
        self, *, trigger: str, ended: str, seconds: float, steps: Mapping[tuple[str, str], int]
    ) -> "Totals":
        return Totals(
            passes={**self.passes, (trigger, ended): self.passes.get((trigger, ended), 0) + 1},
            steps={**self.steps, **{key: self.steps.get(key, 0) + count for key, count in steps.items()}},
            durations=self.durations.plus(seconds),
        )


class Applied(Struct):
    """What the record says was applied last. ``at``: when its pass began."""

    commit: Commit
    serial: int
    at: datetime | None


class LastPass(Struct):
    """How the newest pass of this process went."""

    number: int  # counts from 1 at the start of the process
    trigger: str  # webhook | watch
    why: str  # what led to it, in words
    begun: datetime
    seconds: float
    ended: str  # a word of Outcome, or NOTHING, HELD, INVALID, ERROR
    code: int  # of design's exit codes, as the same pass by hand would end
    commit: Commit | None  # that it was about; None: it did not come so far
    serial: int | None
    sentence: str
    errors: tuple[str, ...] = ()  # complete messages, the most important first

    @property
    def line(self) -> str:
        """For a log that people read and programs search."""
        commit, serial = (self.commit or "-")[:10], "-" if self.serial is None else self.serial
        return (
            f"pass={self.number} trigger={self.trigger} ended={self.ended} exit={self.code} seconds={self.seconds:.2f} "
            f"commit={commit} serial={serial} why={self.why!r}: {self.sentence}"
        )


class Snapshot(Struct):
    started: datetime
    version: str  # of llmgw
    fleet: str  # its name; ``status.fleet`` is its id
    holder: str
    ref: str = ""  # the branch that is followed; empty: not known yet
    head: Commit | None = None  # the newest commit that was seen on it
    applied: Applied | None = None
    same: Commit | None = None  # a later commit that asks for just what the applied one asks for
    totals: Totals = Totals()
    last_pass: LastPass | None = None
    last_good: datetime | None = None
    """When a pass last ended that could read, ask and command what it had to, so that all went on as it should."""
    status: Status | None = None  # what `llmgw status` would show, as the last pass saw it
    looked: datetime | None = None  # when that was
    endpoints: tuple[Endpoint, ...] = ()  # that the record publishes
    changes: int = 0  # of the last plan, those that are not blocked
    blocked: int = 0
    drift: int = 0
    source_error: str = ""  # why the repository can't be read right now; empty: it can
    stopping: bool = False


class Snapshots:
    """The newest snapshot. One writer, the loop; readers take ``now`` once and work with that value."""

    def __init__(self, first: Snapshot) -> None:
        self.now = first

    def change(self, **fields: Any) -> None:
        self.now = replace(self.now, **fields)


class HeadMoved(Struct):
    """The branch points to another commit. ``old`` None: the first one that this process sees."""

    old: Commit | None
    new: Commit


class PassBegan(Struct):
    """A pass is about to command something."""

    commit: Commit | None
    trigger: str
    sentence: str


class PassEnded(Struct):
    """``settled``: the fleet is what the commit asks for, and nothing is on its way."""

    last: LastPass
    settled: bool


class CommitRefused(Struct):
    """A commit can't be applied as it is written. Told once a commit, however often it is looked at."""

    commit: Commit
    problems: tuple[str, ...]


Event = HeadMoved | PassBegan | PassEnded | CommitRefused


class Observer(Protocol):
    def told(self, event: Event) -> None:
        """Called from the event loop, in the order in which it happens; must return at once and never raise."""
        ...
