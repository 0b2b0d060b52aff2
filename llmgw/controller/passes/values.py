"""What goes into a pass and what comes out of it."""

from collections.abc import Callable, Mapping

from llmgw.controller.passes.prepare import Prepared, Wish
from llmgw.controller.passes.saved import SavedPlan
from llmgw.controller.repo.records import Stored
from llmgw.model.plan import Plan, StepOutcome, StepResult
from llmgw.model.problems import StaleError
from llmgw.model.record import Outcome, Record
from llmgw.model.struct import Struct, field


class SupersededError(StaleError):
    """Another commit was applied while this apply was waiting."""


class PassRequest(Struct):
    """``approve`` is given the plan before anything is written, and raises to refuse it. ``continues`` is the serial
    of the pass that this one carries on: when another commit was applied since, that one counts. ``recorded`` is given
    every record that stands before the first command and at the end of a pass. ``read`` is the record as it was read a moment ago, for
    the first try. ``instead`` makes another plan of what was read and seen, about single nodes
    only: models stay as they are recorded, and the commit does not count as applied. ``amend`` says what else the record holds
    after such a plan."""

    wish: Wish = Wish()
    saved: SavedPlan | None = None
    lock_timeout: float = 0
    allow_unpushed: bool = False
    approve: Callable[[Plan], None] | None = None
    continues: int | None = None
    recorded: Callable[[Record], None] | None = None
    read: Stored | None = None
    instead: Callable[[Prepared], Plan] | None = None
    amend: Callable[[Record, Prepared], Record] | None = None


class PassResult(Struct):
    """``outcome`` None: nothing was to be done, and nothing was written but perhaps news. ``unrecorded``: the work was
    done and its outcome could not be written; the next pass finds out by asking the agents."""

    prepared: Prepared
    plan: Plan
    record: Record
    outcome: Outcome | None = None
    results: Mapping[str, StepResult] = field(default_factory=dict)
    halted: str = ""
    unrecorded: str = ""

    @property
    def done(self) -> tuple[str, ...]:
        """Ids of the commands that were carried out."""
        return tuple(step.id for step in self.plan.commands if self._is(step.id, StepOutcome.DONE))

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(
            f"{step.id}: {self.results[step.id].error}"
            for step in self.plan.steps
            if self._is(step.id, StepOutcome.FAILED) or self._is(step.id, StepOutcome.UNKNOWN)
        )

    def _is(self, step: str, outcome: StepOutcome) -> bool:
        result = self.results.get(step)
        return result is not None and result.outcome is outcome
