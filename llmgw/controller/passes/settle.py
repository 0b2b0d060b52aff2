"""``apply --wait``: passes until nothing is left to do and nothing is on its way.

Between passes nobody holds the lock. What wakes the next pass is what agents tell on their ``watch`` streams; a timer
only stands by for what they can't tell.
"""

from collections import deque
from collections.abc import Mapping

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.progress import Progress
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.values import PassRequest, PassResult, SupersededError
from llmgw.controller.passes.watch import Watch, unquiet
from llmgw.model.plan import Plan, StepKind, StepResult
from llmgw.model.problems import HeldError, LlmgwError
from llmgw.model.record import Outcome
from llmgw.model.struct import Struct, replace

LOOK_AGAIN = 15.0
"""Seconds after which a pass looks by itself: an agent may have been restarted and its stream lost."""
FAILING_PASSES = 3
"""Passes in a row that only failed, after which the waiting ends: who fails four times fails a fifth."""
SAME_AGAIN = 5
"""Passes in a row with the very same commands, all carried out, after which they are taken not to help."""
TURN_TIMEOUT = 30.0
"""Seconds that a later pass waits for somebody else's: the work is begun, giving up at once would leave it so."""
RETRY_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds before what failed is tried again; doubled each time."""

EARLIER_KEPT = 100
"""Passes before the last one that are told of in the end: those of hours."""

_MOVES = frozenset({StepKind.BOOTSTRAP, StepKind.START, StepKind.DRAIN, StepKind.STOP})


class Earlier(Struct):
    """A pass that commanded something, and was not the last one."""

    serial: int
    outcome: Outcome
    results: Mapping[str, StepResult]


class Settled(Struct):
    """What came of it all. ``worked``: some command was carried out, in whichever pass. ``early``: it was a saved plan that ends
    where what was not known yet begins. ``earlier``: the newest of the other passes, in their order."""

    last: PassResult
    passes: int
    worked: bool
    early: bool = False
    earlier: tuple[Earlier, ...] = ()


async def settle(
    fleet: Fleet, request: PassRequest, *, links: Links, halt: Halt, progress: Progress
) -> Settled:
    """Raises what the first pass raises, and HeldError as long as nothing was done; later trouble ends the waiting and
    stands in the last result's ``halted``."""
    first = await one_pass(fleet, request, links=links, halt=halt, progress=progress)
    so_far = _SoFar(first)
    if request.saved is not None and ends_early(request.saved.plan):
        return replace(so_far.told(), early=True)
    watch = Watch(links, first.prepared.desired.nodes, progress)
    try:
        while not halt.called and not so_far.settled():
            await watch.follow(so_far.last)
            await watch.woken(so_far.patience(), halt)
            if not halt.called:
                onward = _onward(request, so_far.last)
                so_far.add(await one_pass(fleet, onward, links=links, halt=halt, progress=progress))
    except SupersededError as moved:
        so_far.end(str(moved))
    except HeldError as held:
        if not so_far.told().worked:
            raise  # the same as if they had been there first
        so_far.end(f"somebody else went on with this fleet: {held}")
    except LlmgwError as failed:
        so_far.end(f"waiting ended: {failed}")
    finally:
        await watch.close()
    if halt.called:
        so_far.end(halt.reason)
    return so_far.told()


def ends_early(plan: Plan) -> bool:
    """Whether a saved plan holds only the first wave of what is to come: the rest is known after a bootstrap, or after a download
    has told how much memory its model takes."""
    started = {step.model for step in plan.steps if step.kind is StepKind.START}
    return any(
        step.kind is StepKind.BOOTSTRAP or (step.kind is StepKind.FETCH and step.model not in started)
        for step in plan.steps
    )


def _onward(request: PassRequest, last: PassResult) -> PassRequest:
    """The same commit, nobody to ask again, and patience with whoever holds the lock for a moment."""
    return replace(
        request,
        saved=None,
        read=None,
        approve=None,
        continues=last.record.serial,
        lock_timeout=max(request.lock_timeout, TURN_TIMEOUT),
        wish=replace(request.wish, commit=last.prepared.desired.commit, replaced=()),
    )


class _SoFar:
    """What the passes have come to: only what deciding needs of the earlier ones is kept."""

    def __init__(self, first: PassResult) -> None:
        self.last = first
        self._earlier: deque[Earlier] = deque(maxlen=EARLIER_KEPT)
        self._passes = 1
        self._worked = bool(first.done)
        self._same = 1  # passes in a row with these very commands
        self._failing = 1 if first.errors else 0  # passes in a row with errors
        self._fruitless = 1 if _fruitless(first) else 0  # passes in a row that failed and got nowhere

    def add(self, result: PassResult) -> None:
        commands = [step.id for step in result.plan.commands]
        same = commands == [step.id for step in self.last.plan.commands] and not result.plan.waiting
        self._same = self._same + 1 if same else 1
        self._failing = self._failing + 1 if result.errors else 0
        self._fruitless = self._fruitless + 1 if _fruitless(result) else 0
        self._worked = self._worked or bool(result.done)
        self._passes += 1
        if (before := self.last).outcome is not None:
            self._earlier.append(
                Earlier(serial=before.record.serial, outcome=before.outcome, results=before.results)
            )
        self.last = result

    def end(self, reason: str) -> None:
        if not self.last.halted:
            self.last = replace(self.last, halted=reason)

    def told(self) -> Settled:
        return Settled(last=self.last, passes=self._passes, worked=self._worked, earlier=tuple(self._earlier))

    def settled(self) -> bool:
        """Nothing to do and nothing on its way; or what is to be done has been tried in vain."""
        last = self.last
        if last.unrecorded or last.halted:
            return True
        if not last.plan.commands:
            return last.plan.frozen or not last.plan.waiting
        return self._same >= SAME_AGAIN or self._fruitless >= FAILING_PASSES

    def patience(self) -> float:
        """Seconds until the next look, whoever wakes us before."""
        if self._failing:
            return min(RETRY_PAUSE * 2.0 ** min(self._failing - 1, 10), LONGEST_PAUSE)
        return next_look(self.last)


def next_look(last: PassResult, *, patience: float = LOOK_AGAIN) -> float:
    """Seconds until there is something to look for after a pass that went well, if nobody tells of it before; at most
    ``patience``."""
    opened = {StepKind.BOOTSTRAP, StepKind.PUBLISH}
    done = set(last.done)
    if any(step.kind in opened for step in last.plan.commands if step.id in done):
        return 0  # what comes after can be done at once
    plan = last.plan
    pause = (plan.due - plan.created).total_seconds() if plan.due is not None else patience
    return min(max(pause, 0), patience)


def _fruitless(result: PassResult) -> bool:
    """Failed, with nothing on its way, and nothing done that brings the fleet nearer to what is asked for."""
    done = set(result.done)
    moved = any(step.kind in _MOVES for step in result.plan.commands if step.id in done)
    return bool(result.errors) and not moved and not _stirs(result)


def _stirs(result: PassResult) -> bool:
    """Whether something is on its way by itself. A plan may also be waiting for what its own failing command brings,
    such as the agent that knows a replica: that is nothing to wait for."""
    reports = (node.report for node in result.prepared.observed.nodes.values())
    return bool(result.plan.waiting) and any(unquiet(report) for report in reports if report is not None)
