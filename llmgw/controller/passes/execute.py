"""Carry a plan out: every step whose ``after`` are done runs at once, bounded, and tells what became of it.

One node's failure skips only what depends on it. Nothing here waits for what a command sets going: that is for a
later pass to see. A line that breaks leaves the outcome unknown; the same command id is asked again once the node
answers, and the agent gives the same answer.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from graphlib import CycleError, TopologicalSorter

from llmgw.controller.passes.commands import UnfinishedStepError, message_of
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.progress import Progress
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import Fence
from llmgw.model.plan import AWAITS, Plan, Step, StepKind, StepOutcome, StepResult
from llmgw.model.problems import (
    AgentError,
    InvalidError,
    LlmgwError,
    NoAgentError,
    Problem,
    RetryError,
    StalledError,
    UnknownOutcomeError,
)
from llmgw.model.record import Outcome
from llmgw.model.report import JobState
from llmgw.model.struct import Struct
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import FENCED, Accepted

NODES_AT_ONCE = 32
STEPS_AT_ONCE = 4
"""Steps of one node at the same time: more would only queue in its agent."""
BOOTSTRAP_TIMEOUT = 180.0
"""Seconds at least: starting an agent copies files and starts an interpreter on a machine that may be busy."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two tries of one command; doubled each time."""

GONE_FOR = 10.0
"""Seconds that a node may be out of reach within a pass. Whatever the step's own time: all other nodes wait for the pass to end, and
the next one tries again."""

_DONE = StepResult(outcome=StepOutcome.DONE)


class _LeaseOverError(LlmgwError):
    """Somebody else may be commanding by now."""


class Errand(Struct):
    """What carrying a plan out needs beside the plan."""

    fence: Fence
    nodes: Mapping[str, DesiredNode]
    links: Links
    secrets: Callable[[Step], Mapping[str, str]]
    """What a start sends beside its spec; raises an LlmgwError that says which secret is missing."""
    holds_lease: Callable[[], bool] = lambda: True
    """Asked right before each command: agents that have not heard of a newer pass would still obey."""


async def execute(plan: Plan, errand: Errand, *, halt: Halt, progress: Progress) -> Mapping[str, StepResult]:
    """What became of every step, by step id. Raises InvalidError for a plan whose steps are no graph."""
    _check_graph(plan.steps)
    return await _Execution(errand, halt=halt, progress=progress).run(plan.steps)


def _check_graph(steps: Sequence[Step]) -> None:
    """A step that waits for itself or for nobody would wait for ever."""
    known = {step.id for step in steps}
    problems = tuple(
        Problem(
            what=f"step {step.id} comes after {before}, which the plan does not hold", instead="plan again"
        )
        for step in steps
        for before in step.after
        if before not in known
    )
    if len(known) != len(steps):
        problems = (*problems, Problem(what="two steps of the plan have the same id", instead="plan again"))
    if problems:
        raise InvalidError(problems)
    try:
        TopologicalSorter({step.id: step.after for step in steps}).prepare()
    except CycleError as circle:
        what = f"steps of the plan wait for each other: {' <- '.join(circle.args[1])}"
        raise InvalidError((Problem(what=what, instead="plan again"),)) from circle


class _Lanes:
    """At most so many nodes at once, and so many steps on each."""

    def __init__(self) -> None:
        self._nodes = asyncio.Semaphore(NODES_AT_ONCE)
        self._steps: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(STEPS_AT_ONCE)
        )
        self._entering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._inside: defaultdict[str, int] = defaultdict(int)

    @asynccontextmanager
    async def lane(self, node: str) -> AsyncIterator[None]:
        async with self._steps[node]:
            async with self._entering[node]:
                if not self._inside[node]:
                    await self._nodes.acquire()
                self._inside[node] += 1
            try:
                yield
            finally:
                self._inside[node] -= 1
                if not self._inside[node]:
                    self._nodes.release()


class _Execution:
    """One run of one plan."""

    def __init__(self, errand: Errand, *, halt: Halt, progress: Progress) -> None:
        self._errand = errand
        self._halt = halt
        self._progress = progress
        self._lanes = _Lanes()

    async def run(self, steps: Sequence[Step]) -> Mapping[str, StepResult]:
        loop = asyncio.get_running_loop()
        ended: dict[str, asyncio.Future[StepResult]] = {step.id: loop.create_future() for step in steps}

        async def one(step: Step) -> None:
            before = {name: await ended[name] for name in step.after}
            ended[step.id].set_result(await self._step(step, before))

        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(one(step), name=step.id)
        return {name: future.result() for name, future in ended.items()}

    async def _step(self, step: Step, before: Mapping[str, StepResult]) -> StepResult:
        result = _held_back(step, before)
        if result is None and step.node is None:
            result = _DONE  # made true by the record
        if result is None:
            result = await self._on_node(step)
        self._progress.step(step, result)
        return result

    async def _on_node(self, step: Step) -> StepResult:
        node = self._errand.nodes.get(step.node or "")
        if node is None:
            return _failed(f"node {step.node} is not in the manifests any more: put it back to command it")
        async with self._lanes.lane(node.name):
            if self._halt.called:
                return StepResult(outcome=StepOutcome.DEFERRED, error=self._halt.reason)
            self._progress.step(step, None)
            return await self._until_answered(step, node)

    async def _until_answered(self, step: Step, node: DesiredNode) -> StepResult:
        """Send, and send again where the error says that it makes sense, within twice the step's timeout. A node that is gone
        is not waited for."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + 2 * step.timeout
        pause, unanswered, gone = FIRST_PAUSE, "", False
        while True:
            try:
                return await self._send(step, node)
            except AgentError as refused:
                self._stop_if_fenced(refused, node)
                if refused.after is None:
                    return _failed(_on(node, refused))
                error, wait = _on(node, refused), refused.after.total_seconds()
            except (NoAgentError, StalledError, UnfinishedStepError, _LeaseOverError) as failed:
                return _ended(unanswered, _on(node, failed), later=isinstance(failed, _LeaseOverError))
            except RetryError as lost:
                error, wait = _on(node, lost), pause
                if not gone:
                    gone, give_up = True, min(give_up, loop.time() + GONE_FOR)
                if isinstance(lost, UnknownOutcomeError):
                    unanswered = error
            except (LlmgwError, OSError, CodecError) as failed:
                return _ended(unanswered, _on(node, failed))
            if loop.time() + wait >= give_up or await self._halt.sleep(wait):
                return _ended(unanswered, error)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _send(self, step: Step, node: DesiredNode) -> StepResult:
        errand = self._errand
        if step.kind is StepKind.BOOTSTRAP:
            self._must_hold_lease()
            try:
                async with asyncio.timeout(max(step.timeout, BOOTSTRAP_TIMEOUT)):
                    await errand.links.bootstrap(node, fleet=errand.fence.fleet)
            except TimeoutError:
                return _failed(
                    f"node {node.name}: its agent did not start in time: look at its log on the node"
                )
            return _DONE
        secrets = errand.secrets(step) if step.kind in (StepKind.START, StepKind.FETCH) else {}
        method, params = message_of(step, errand.fence, secrets=secrets)
        link = await errand.links.to(node)
        self._must_hold_lease()
        try:
            answer = await link.request(method, params, Accepted, timeout=step.timeout)
        except RetryError:
            await errand.links.drop(node.name, link)
            raise
        if answer.job is not None and answer.job.state == JobState.FAILED.value:
            return _failed(f"node {node.name}: {answer.job.description}: {answer.job.error}")
        return StepResult(outcome=StepOutcome.DONE)

    def _must_hold_lease(self) -> None:
        if not self._errand.holds_lease():
            why = (
                "the lease is over: this machine slept, or could not renew it in time; the next apply goes on"
            )
            self._halt.now(Outcome.INTERRUPTED, why)
            raise _LeaseOverError(why)

    def _stop_if_fenced(self, refused: AgentError, node: DesiredNode) -> None:
        """A newer controller has commanded: every further command of this pass would be refused as well."""
        if refused.code == FENCED:
            self._halt.now(Outcome.SUPERSEDED, f"node {node.name} obeys a newer apply: {refused}")


def _held_back(step: Step, before: Mapping[str, StepResult]) -> StepResult | None:
    """Why a step is not sent in this pass: something before it went wrong, or is still to come."""
    for name, result in before.items():
        if result.outcome in (StepOutcome.FAILED, StepOutcome.SKIPPED):
            return StepResult(outcome=StepOutcome.SKIPPED, error=f"{name}: {result.outcome.value}")
    for name, result in before.items():
        if result.outcome is not StepOutcome.DONE:
            return StepResult(outcome=StepOutcome.DEFERRED, error=f"waits for {name}")
    if step.kind in AWAITS:
        return StepResult(outcome=StepOutcome.DEFERRED, error="a later pass will see it")
    return None


def _on(node: DesiredNode, error: Exception) -> str:
    text = str(error)
    return text if node.name in text else f"node {node.name}: {text}"


def _failed(error: str) -> StepResult:
    return StepResult(outcome=StepOutcome.FAILED, error=error)


def _ended(unanswered: str, error: str, *, later: bool = False) -> StepResult:
    """A command that was sent once and never answered may have been carried out, whatever came later. ``later``: it
    was not sent, and another pass will."""
    if unanswered:
        return StepResult(outcome=StepOutcome.UNKNOWN, error=error)
    if later:
        return StepResult(outcome=StepOutcome.DEFERRED, error=error)
    return _failed(error)
