"""What the runner of jobs needs of those who do them, and how far they are."""

from collections.abc import Mapping
from typing import Any, Protocol

from llmgw.model.facts import EngineFact, WeightsFact
from llmgw.model.report import Stored

NO_SECRETS: Mapping[str, str] = {}


class Progress:
    """How far a doer is. Plain numbers, so that threads may write them too; the runner tells them once a second."""

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None
        self.line = ""

    def bytes(self, done: int, total: int | None = None) -> None:
        self.done = done
        if total is not None:
            self.total = total

    def say(self, line: str) -> None:
        self.line = line[:300]


class Doer(Protocol):
    """Knows how to do one kind of job. What it set going outlives the agent."""

    def complete(self, spec: Any) -> bool:
        """Whether the target is there, whole and verified."""
        ...

    async def run(self, spec: Any, progress: Progress, *, secrets: Mapping[str, str] = NO_SECRETS) -> None:
        """Makes the target complete, or goes on with what an earlier agent has set going. Raises StalledError or
        RetryError. Cancelling it only ends the waiting: :meth:`stop` ends the work."""
        ...

    async def stop(self, job: str) -> None:
        """Returns when nothing works on this job any more. Raises StalledError when something can't be ended."""
        ...

    async def clean(self, going_on: frozenset[str], *, kept: frozenset[str]) -> None:
        """Ends what works on jobs that don't go on, and removes what they left lying: all but that of ``going_on`` and
        ``kept``, which may be ordered again."""
        ...


class Targets(Protocol):
    """What is complete on the node."""

    def engines(self) -> tuple[EngineFact, ...]: ...

    def weights(self) -> tuple[WeightsFact, ...]: ...

    def stored(self) -> tuple[Stored, ...]:
        """Those, tools, and what is half made, with their sizes: takes as long as the disk does."""
        ...

    def remove(self, name: str) -> None:
        """One of ``stored``. Never whole in name only: its marker goes first. Raises OSError."""
        ...
