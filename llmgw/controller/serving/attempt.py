"""One unattended pass, whatever becomes of it, as values: how it ended, what to tell, when to look again.

A commit that can't be applied as it is written does not leave the fleet alone: what was applied last is kept up, as long
as the branch points to something that nobody can apply. That is told, and it is nothing that a plan of the new commit
would ever be made from.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Wish
from llmgw.controller.passes.progress import Progress
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.settle import Settled, next_look, settle
from llmgw.controller.passes.story import lower, sentence
from llmgw.controller.passes.values import PassRequest, PassResult
from llmgw.controller.passes.verdict import Verdict, verdict
from llmgw.controller.repo.records import RecordError, Stored
from llmgw.controller.serving.snapshot import ERROR, HELD, INVALID, NOTHING, LastPass
from llmgw.core.amounts import plural
from llmgw.model import exitcode
from llmgw.model.ids import Commit
from llmgw.model.plan import AWAITS, StepOutcome
from llmgw.model.problems import HeldError, InvalidError, LlmgwError, StalledError
from llmgw.model.record import Outcome, Record
from llmgw.model.struct import Struct, field, replace

log = logging.getLogger("llmgw.serve")
T = TypeVar("T")

STANDS_BY = 60.0
"""Seconds until a pass looks by itself at what is on its way: streams tell of it, and this is for what they can't tell."""


class Cause(Struct):
    """Why a pass is made, about which commit, and after which record: the one that was read beside the look at the branch."""

    trigger: str
    why: str
    head: Commit | None = None  # None: the newest of the branch, whichever it is
    read: Stored | None = None  # None: the pass reads it


class Refusal(Struct):
    """A commit that can't be applied as it is written, with everything that is wrong with it."""

    commit: Commit
    problems: tuple[str, ...]
    error: LlmgwError


class Attempted(Struct):
    """``result`` None: it did not come so far. ``look`` in seconds; None: nothing is on its way."""

    last: LastPass
    result: PassResult | None = None
    refused: Refusal | None = None
    look: float | None = None
    steps: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the same again, after a pause, may be what helps. Of a commit that is refused: not while it says what it
        says, but somebody may yet push it."""
        last = self.last
        if self.refused is not None:
            return not isinstance(self.refused.error, InvalidError)
        if self.result is None:
            return last.ended != INVALID
        return bool(self.result.errors or self.result.unrecorded)

    @property
    def settled(self) -> bool:
        """The fleet is what its commit asks for, and nothing is on its way."""
        result = self.result
        return (
            result is not None and not result.plan.commands and not result.plan.waiting and not self.refused
        )

    def in_vain_after(self, before: "Attempted | None") -> bool:
        """The very commands of the pass before were carried out again, and nothing is on its way: the next would do the same."""
        if before is None or before.result is None or self.result is None:
            return False
        done = self.result.done
        return bool(done) and done == before.result.done and not self.result.plan.waiting


class Attempts(Struct):
    """Makes passes; ``recorded`` is given every record that stands at the end of one."""

    fleet: Fleet
    links: Links
    recorded: Callable[[Record], None] | None = None
    wait: bool = False  # with all passes that follow until nothing is left to do and nothing is on its way

    async def beside(self, looking: Awaitable[T]) -> tuple[T, Stored | None]:
        """What ``looking`` at the branch gives, and the record: each is a way to a repository and back, and neither needs the
        other. None: it could not be read; the pass reads it again, and tells why."""
        return await asyncio.gather(looking, self._read())

    async def make(self, cause: Cause, *, number: int, halt: Halt, progress: Progress) -> Attempted:
        """Never raises, but for being cancelled: what went wrong stands in the answer."""
        clock, loop = self.fleet.clock, asyncio.get_running_loop()
        begun, since = clock.now(), loop.time()
        attempted = await self._made(cause, halt, progress)
        last = replace(attempted.last, number=number, begun=begun, seconds=loop.time() - since)
        return replace(attempted, last=last)

    async def _read(self) -> Stored | None:
        try:
            return await self.fleet.store.read()
        except Exception:  # noqa: BLE001 - a bug, too: whatever it is, the pass meets it again and tells it
            return None

    async def _ground(self, cause: Cause) -> tuple[Commit, Stored | None]:
        if cause.head is not None:
            return cause.head, cause.read
        return await self.beside(self.fleet.source.newest())

    async def _made(self, cause: Cause, halt: Halt, progress: Progress) -> Attempted:
        try:
            head, read = await self._ground(cause)
            try:
                settled = await self._pass(cause, head, halt, progress, read=read)
            except RecordError:
                raise  # it would be so with any commit
            except (InvalidError, StalledError) as refused:
                return await self._kept_up(cause, head, refused, halt, progress)
            return self._ended(cause, settled)
        except LlmgwError as failed:
            return self._failed(cause, failed)
        except Exception as broken:  # a bug in one pass must not end all that would come after it
            log.exception("a pass broke")
            return self._failed(cause, broken)

    async def _pass(
        self, cause: Cause, commit: Commit, halt: Halt, progress: Progress, *, read: Stored | None = None
    ) -> Settled:
        fleet = replace(self.fleet, trigger=cause.trigger)
        request = PassRequest(wish=Wish(commit=commit), recorded=self.recorded, read=read)
        if self.wait:
            return await settle(fleet, request, links=self.links, halt=halt, progress=progress)
        result = await one_pass(fleet, request, links=self.links, halt=halt, progress=progress)
        return Settled(last=result, passes=1, worked=bool(result.done))

    async def _kept_up(
        self, cause: Cause, head: Commit, refused: InvalidError | StalledError, halt: Halt, progress: Progress
    ) -> Attempted:
        """A pass about what was applied last, if it is the new commit that is at fault and not all commits are."""
        record = (await self.fleet.store.read()).record
        applied = record.commit if record is not None else None
        refusal = Refusal(commit=head, problems=_problems(refused), error=refused)
        if applied is None or applied == head:
            told = refusal if isinstance(refused, InvalidError) else None
            return replace(self._failed(cause, refused, commit=head), refused=told)
        settled = await self._pass(cause, applied, halt, progress)
        ended = self._ended(cause, settled)
        why = f"commit {head[:10]} is refused, and the fleet kept as {applied[:10]} asks"
        last = replace(
            ended.last,
            code=exitcode.worst((exitcode.ERROR, ended.last.code)),
            ended=INVALID if settled.last.outcome is None else ended.last.ended,
            sentence=f"{ended.last.sentence}; {why}",
        )
        return replace(ended, last=last, refused=refusal)

    def _ended(self, cause: Cause, settled: Settled) -> Attempted:
        told, result = verdict(settled), settled.last
        kinds = {step.id: step.kind for step in result.plan.steps}
        steps = Counter(
            (kinds[name].value, it.outcome.value)
            for name, it in result.results.items()
            if kinds[name] not in AWAITS
        )
        last = self._last(
            cause,
            ended=_word(settled),
            code=told.code,
            sentence=_sentence(settled, told),
            commit=result.prepared.desired.commit,
        )
        last = replace(last, serial=result.record.serial, errors=told.errors)
        return Attempted(last=last, result=result, steps=dict(steps), look=_look(result))

    def _failed(self, cause: Cause, error: Exception, *, commit: Commit | None = None) -> Attempted:
        match error:
            case HeldError():
                ended = HELD
            case InvalidError():
                ended = INVALID
            case _:
                ended = ERROR
        text = str(error) if isinstance(error, LlmgwError) else f"{type(error).__name__}: {error}"
        last = self._last(
            cause,
            ended=ended,
            code=exitcode.of(error),
            sentence=text.split("\n", 1)[0],
            commit=commit or cause.head,
        )
        return Attempted(last=replace(last, errors=_problems(error)))

    def _last(self, cause: Cause, *, ended: str, code: int, sentence: str, commit: Commit | None) -> LastPass:
        return LastPass(
            number=0,
            trigger=cause.trigger,
            why=cause.why,
            begun=self.fleet.clock.now(),
            seconds=0.0,
            ended=ended,
            code=code,
            commit=commit,
            serial=None,
            sentence=sentence,
        )


def _look(result: PassResult) -> float | None:
    """Seconds until something is to be looked at again; None: nothing is on its way."""
    plan = result.plan
    looks = []
    if plan.commands or plan.waiting or plan.due is not None:
        looks.append(next_look(result, patience=STANDS_BY))
    if plan.gate is not None and plan.gate.until is not None:
        looks.append(max((plan.gate.until - plan.created).total_seconds(), 1.0))
    return min(looks, default=None)


def _problems(error: Exception) -> tuple[str, ...]:
    if isinstance(error, InvalidError):
        return tuple(str(problem) for problem in error.problems)
    return (str(error),)


def _word(settled: Settled) -> str:
    if settled.last.outcome is not None:
        return settled.last.outcome.value
    return Outcome.DONE.value if settled.worked else NOTHING


def _sentence(settled: Settled, told: Verdict) -> str:
    """One line for people: what was done, and what is not as it should be."""
    result = settled.last
    done = [step for step in result.plan.commands if step.id in set(result.done)]
    parts = [sentence(done, past=True)] if done else []
    if result.halted:
        parts.append(f"halted: {result.halted}")
    wrong = sum(it.outcome in (StepOutcome.FAILED, StepOutcome.UNKNOWN) for it in result.results.values())
    if wrong:
        parts.append(f"{plural(wrong, 'step')} failed")
    if result.plan.blocked:
        parts.append(f"{plural(len(result.plan.blocked), 'change')} blocked")
    if not parts:
        passes = plural(settled.passes, "pass", "passes")
        nothing = f"everything is as it should be after {passes}" if settled.worked else "nothing to do"
        parts.append(nothing if not result.plan.commands else "nothing was done")
    if result.plan.waiting and not done:
        parts.append(f"on its way: {result.plan.waiting[0]}" + _more(result.plan.waiting))
    if told.errors and not (wrong or result.halted or result.plan.blocked):
        parts.append(told.errors[0])
    return "; ".join([parts[0], *(lower(part) for part in parts[1:])])


def _more(texts: tuple[str, ...]) -> str:
    return f" and {len(texts) - 1} more" if len(texts) > 1 else ""
