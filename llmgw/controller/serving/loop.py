"""``llmgw serve``: passes without end. Decides when the next one is due, and what ends the one at work.

Everything is level-triggered: a hint only brings a pass forward, and one comes from time to time though nobody hints.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.story import intent_sentence
from llmgw.controller.passes.values import PassResult
from llmgw.controller.serving.attempt import Attempted, Attempts, Cause, Refusal
from llmgw.controller.serving.background import ended, kept
from llmgw.controller.serving.branch import Branch, Place
from llmgw.controller.serving.hints import Hints, Woken
from llmgw.controller.serving.pauses import Pace, Pauses, first_of
from llmgw.controller.serving.reach import KeptLinks
from llmgw.controller.serving.snapshot import (
    HELD,
    Applied,
    CommitRefused,
    Event,
    HeadMoved,
    LastPass,
    Observer,
    PassBegan,
    PassEnded,
    Snapshots,
)
from llmgw.controller.serving.streams import Streams
from llmgw.core.show.status import status
from llmgw.model.ids import Commit
from llmgw.model.plan import Action, Plan, Step, StepKind, StepResult
from llmgw.model.problems import LlmgwError
from llmgw.model.record import Outcome, Record
from llmgw.model.report import Observed
from llmgw.model.struct import replace
from llmgw.wire.messages import WatchEvent

log = logging.getLogger("llmgw.serve")

GATHER = 0.1
"""Seconds to wait after a hint from a node: ranks and replicas get ready, and fall, in groups."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a pass that failed is tried again."""
LONGEST_TURN = 10.0
"""Seconds between looks while somebody else is applying: a pass of theirs takes seconds."""
STOP_WITHIN = 5.0
"""Seconds that a pass which has commanded nothing yet may go on looking after it was told to stop."""


@dataclass(slots=True)
class _AtWork:
    """The pass of this moment, for whoever may end it. ``commit`` None: it has commanded nothing yet. ``head``: the newest
    commit when it began."""

    halt: Halt
    head: Commit | None
    commit: Commit | None = None
    comparing: "asyncio.Task[None] | None" = None


class Loop:
    """``run`` goes on until it is told to stop. ``observers`` are told what happens; ``recorded`` is given the record that
    stands at the end of each pass."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        pace: Pace,
        snapshots: Snapshots,
        hints: Hints,
        rng: Random,
        observers: Sequence[Observer] = (),
        recorded: Callable[[Record], None] | None = None,
        place: Place | None = None,
    ) -> None:
        self._fleet = fleet
        self._pace = pace
        self._snapshots = snapshots
        self._hints = hints
        self._rng = rng
        self._observers = observers
        self._links = KeptLinks(fleet.transports)
        self._streams = Streams(self._links, hints, rng=rng)
        self._attempts = Attempts(fleet=fleet, links=self._links, recorded=recorded)
        self._branch = Branch(
            fleet.source,
            snapshots,
            pace=pace,
            rng=rng,
            moved=self._head_moved,
            place=place,
        )
        self._pauses = Pauses(FIRST_PAUSE, LONGEST_PAUSE, rng)
        self._turns = Pauses(FIRST_PAUSE, LONGEST_TURN, rng)
        self._at_work: _AtWork | None = None
        self._before: Attempted | None = None
        self._refused: Commit | None = None
        self._errors: tuple[str, ...] = ()
        self._number = 0

    async def run(self, stop: Halt) -> None:
        """Until ``stop`` is called: then the commands in flight finish, the outcome is written, and all is closed."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._links.close)
            stack.push_async_callback(self._streams.close)
            duties = self._branch.duties().items()
            background = [asyncio.create_task(kept(doing, duty, self._rng)) for doing, duty in duties]
            stack.push_async_callback(ended, background)
            background.append(asyncio.create_task(self._stop_the_pass(stop)))
            await self._passes(stop)
            self._snapshots.change(stopping=True)

    # ---- when ------------------------------------------------------------------------------------------------

    async def _passes(self, stop: Halt) -> None:
        pause: float = 0.0
        while True:
            await self._woken(pause, stop)
            if stop.called:
                return
            cause = await self._cause(self._hints.take())
            if cause is None:
                continue
            attempted = await self._attempt(cause, stop)
            if attempted is not None:
                pause = self._pause_after(attempted)

    async def _woken(self, pause: float, stop: Halt) -> None:
        """Until a hint, or the end of the pause. After a failure only what may have mended it cuts the pause short."""
        urgent = self._pauses.failing or self._turns.failing
        if pause > 0:
            await first_of(self._hints.wait(urgent=urgent), stop.sleep(pause))
        if not stop.called and self._hints.heard_only("watch"):
            await stop.sleep(GATHER)

    async def _cause(self, woken: Woken) -> Cause | None:
        """Why there is to be a pass; None: a forge told of a push to something else."""
        timer = not woken.heard
        known, read = self._branch.head, None
        if timer or known is None or "webhook" in woken.heard:
            _, read = await self._attempts.beside(self._branch.look())
            more = self._hints.take()
            woken = Woken(
                heard=woken.heard | more.heard,
                text=", ".join(text for text in (woken.text, more.text) if text),
            )
        if woken.heard == {"webhook"}:
            return None
        trigger = "webhook" if "webhook" in woken.heard else "watch"
        why = woken.text or "from time to time"
        return Cause(trigger=trigger, why=why, head=self._branch.head, read=read)

    def _pause_after(self, attempted: Attempted) -> float:
        before, self._before = self._before, attempted
        if attempted.last.ended == HELD:
            return self._turns.next()
        self._turns.reset()
        if attempted.failed or attempted.in_vain_after(before):
            return self._pauses.next()
        self._pauses.reset()
        resync = self._pace.until_pass(self._rng)
        return resync if attempted.look is None else min(attempted.look, resync)

    # ---- one pass --------------------------------------------------------------------------------------------

    async def _attempt(self, cause: Cause, stop: Halt) -> Attempted | None:
        """None: it was told to stop before it had anything to tell."""
        self._number += 1
        self._at_work = _AtWork(Halt(), cause.head)
        halt = self._at_work.halt
        if stop.called:
            halt.now(Outcome.INTERRUPTED, stop.reason)
        work = asyncio.create_task(
            self._attempts.make(cause, number=self._number, halt=halt, progress=_Told(self, cause))
        )
        try:
            await _finished(work, halt, lambda: self._commanding)
        finally:
            self._at_work = None
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if work.cancelled():
            return None
        attempted = work.result()
        await self._learn(attempted)
        return attempted

    @property
    def _commanding(self) -> bool:
        return self._at_work is not None and self._at_work.commit is not None

    async def _stop_the_pass(self, stop: Halt) -> None:
        await stop.wait()
        if self._at_work is not None:
            self._at_work.halt.now(Outcome.INTERRUPTED, stop.reason)

    async def _learn(self, attempted: Attempted) -> None:
        last, result, now = attempted.last, attempted.result, self._fleet.clock.now()
        totals = self._snapshots.now.totals.plus(
            trigger=last.trigger, ended=last.ended, seconds=last.seconds, steps=attempted.steps
        )
        self._snapshots.change(totals=totals, last_pass=last)
        if result is not None:
            record, plan = result.record, result.plan
            if record.commit is not None:
                at = record.last_pass.started if record.last_pass is not None else None
                self._snapshots.change(applied=Applied(commit=record.commit, serial=record.serial, at=at))
            self._snapshots.change(
                same=_same(attempted),
                status=status(
                    record,
                    _as_it_is(result),
                    now=now,
                    desired=result.prepared.desired,
                    gate=plan.gate,
                ),
                looked=now,
                endpoints=record.endpoints,
                changes=sum(change.action is not Action.BLOCKED for change in plan.changes),
                blocked=len(plan.blocked),
                drift=len(plan.drift),
            )
            if not (attempted.failed or attempted.refused or result.halted):
                self._snapshots.change(last_good=now)
            await self._streams.follow(result.prepared.desired.nodes)
        self._tell_refusal(attempted.refused, last)
        self._log(last)
        self.told(PassEnded(last=last, settled=attempted.settled))

    def _tell_refusal(self, refused: Refusal | None, last: LastPass) -> None:
        """Once for a commit: it is looked at again and again, and what is wrong with it stays the same."""
        if refused is None:
            if last.commit == self._branch.head:
                self._refused = None
            return
        if refused.commit == self._refused:
            return
        self._refused = refused.commit
        for problem in refused.problems:
            log.error("refused commit=%s %s", refused.commit[:10], problem)
        self.told(CommitRefused(commit=refused.commit, problems=refused.problems))

    def _log(self, last: LastPass) -> None:
        log.info("%s", last.line)
        if last.errors != self._errors:
            for error in last.errors:
                log.error("pass=%d %s", last.number, error)
        self._errors = last.errors

    # ---- what happens meanwhile ------------------------------------------------------------------------------

    def planned(self, plan: Plan, cause: Cause) -> None:
        """The pass at work is about to command this."""
        if self._at_work is not None:
            self._at_work.commit = plan.basis.commit
            self._compare(self._at_work)
        told = intent_sentence(plan)
        self.told(PassBegan(commit=plan.basis.commit, trigger=cause.trigger, sentence=told))

    def _head_moved(self, old: Commit | None, new: Commit) -> None:
        self.told(HeadMoved(old=old, new=new))
        self._hints.hint("commit", f"commit {new[:10]}")
        if self._at_work is not None:
            self._compare(self._at_work)

    def _compare(self, at_work: _AtWork) -> None:
        """Whether the branch moved on while this pass was made; nothing to end before it commands."""
        new = self._branch.head
        if at_work.commit is not None and new is not None and new not in (at_work.head, at_work.commit):
            at_work.comparing = asyncio.create_task(self._supersede(at_work.halt, at_work.commit, new))

    async def _supersede(self, halt: Halt, old: Commit, new: Commit) -> None:
        """The newest commit wins, at the next step: but one that does not come after this one only comes next."""
        try:
            grew = await self._fleet.source.is_ancestor(old, new)
        except LlmgwError:
            return  # what can't be compared is looked at by the next pass
        if grew:
            halt.now(Outcome.SUPERSEDED, f"commit {new[:10]} is newer than {old[:10]}")

    def told(self, event: Event) -> None:
        for observer in self._observers:
            _tell(observer, event)


class _Told:
    """The progress of a pass that nobody watches on a terminal."""

    def __init__(self, loop: Loop, cause: Cause) -> None:
        self._loop = loop
        self._cause = cause

    def planned(self, plan: Plan) -> None:
        self._loop.planned(plan, self._cause)

    def step(self, step: Step, result: StepResult | None) -> None:
        if result is not None:
            log.debug("step %r %s %s", step.id, result.outcome.value, result.error)

    def seen(self, node: str, event: WatchEvent) -> None:
        pass

    def said(self, text: str) -> None:
        log.warning("%s", text)


def _same(attempted: Attempted) -> Commit | None:
    """The commit of a pass for which nothing had to be written: a change of a README, say, is never recorded."""
    result = attempted.result
    if result is None or result.outcome is not None or attempted.failed or attempted.refused:
        return None
    return None if result.plan.blocked or result.halted else result.prepared.desired.commit


def _as_it_is(result: PassResult) -> Observed:
    """What was seen, but for the machines that this very pass has set up: that no agent runs there is not so any more."""
    done = set(result.done)
    set_up = {step.node for step in result.plan.steps if step.kind is StepKind.BOOTSTRAP and step.id in done}
    observed = result.prepared.observed
    return replace(observed, nodes={name: it for name, it in observed.nodes.items() if name not in set_up})


def _tell(observer: Observer, event: Event) -> None:
    try:
        observer.told(event)
    except Exception:  # whoever is told must not end what tells
        log.exception("telling %s", type(event).__name__)


async def _finished(work: "asyncio.Task[Attempted]", halt: Halt, commanding: Callable[[], bool]) -> None:
    """Until the pass has ended. One that is told to stop while it only looks is not waited for very long."""
    await first_of(_quietly(work), halt.wait())
    if halt.called and not commanding():
        await asyncio.wait({work}, timeout=STOP_WITHIN)
        if not commanding():
            return
    await asyncio.wait({work})


async def _quietly(work: "asyncio.Task[Attempted]") -> None:
    await asyncio.wait({work})
