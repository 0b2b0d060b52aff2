"""One pass: observe, plan, command, record. Seconds, never minutes; interrupted anywhere, the next one finishes it."""

from datetime import datetime, timedelta
from functools import partial

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.aftermath import became_of
from llmgw.controller.passes.difference import any_news, sentences, weighty
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.keyring import drop_unneeded
from llmgw.controller.passes.lease import crashed_pass, wait_for_turn
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Prepared, Wish, plan_again, prepare
from llmgw.controller.passes.progress import Progress
from llmgw.controller.passes.saved import check_fresh
from llmgw.controller.passes.story import happened, news_message, recovered_message
from llmgw.controller.passes.values import PassRequest, PassResult, SupersededError
from llmgw.controller.passes.work import Work, pass_record
from llmgw.controller.repo.records import LostRaceError, Stored
from llmgw.core.record import recording
from llmgw.core.record.latecomers import expecting
from llmgw.model.ids import Commit
from llmgw.model.plan import StepKind
from llmgw.model.problems import HeldError, StalledError
from llmgw.model.record import Outcome, Record
from llmgw.model.struct import replace

TOO_OLD = timedelta(seconds=30)
"""A plan that could not be begun for so long, because this machine stood still, is made again: a replica that it would stop
because nobody uses it may serve by now."""
NEWS_EVERY = timedelta(minutes=5)
"""What happened by itself is recorded with the next pass that commands something, or this often at most."""


async def one_pass(
    fleet: Fleet, request: PassRequest, *, links: Links, halt: Halt, progress: Progress
) -> PassResult:
    """Raises HeldError (somebody else is applying), StaleError (a saved plan's world has moved), StalledError and
    RetryError (nothing was commanded). What goes wrong on nodes stands in the result."""
    if request.lock_timeout:
        await wait_for_turn(fleet, timeout=request.lock_timeout, halt=halt)
    async with fleet.lock(request.lock_timeout):
        try:
            result = await _attempt(fleet, request, links=links, halt=halt, progress=progress)
        except LostRaceError as lost:
            progress.said(f"{lost}: looking and planning again")
            result = await _second_attempt(fleet, request, links=links, halt=halt, progress=progress)
    if request.recorded is not None and result.record.last_pass is not None:
        request.recorded(result.record)
    if not result.unrecorded:
        for key in drop_unneeded(fleet, result.record):
            progress.said(f"every key is made from secret {result.record.key_id} now: {key} is removed")
    return result


async def _second_attempt(
    fleet: Fleet, request: PassRequest, *, links: Links, halt: Halt, progress: Progress
) -> PassResult:
    anew = replace(request, read=None)
    try:
        return await _attempt(fleet, anew, links=links, halt=halt, progress=progress)
    except LostRaceError as lost:
        raise HeldError(f"planned twice in vain: {lost}: try again in a moment") from lost


async def _attempt(
    fleet: Fleet, request: PassRequest, *, links: Links, halt: Halt, progress: Progress
) -> PassResult:
    check = partial(_check_turn, fleet, request)
    prepared = await prepare(fleet, request.wish, links, check=check, read=request.read)
    prepared = await _take_over(fleet, request.wish, prepared, progress)
    plan = prepared.plan
    if request.saved is not None:
        await check_fresh(fleet, request.saved, prepared)
        plan = prepared.plan if prepared.plan.frozen else request.saved.plan
    if request.instead is not None:
        plan = request.instead(prepared)
    if not plan.commands:
        record = await _note_news(fleet, prepared)
        return PassResult(prepared=prepared, plan=plan, record=record)
    await _check_commit(fleet, request, prepared)
    if request.approve is not None:
        request.approve(plan)
    if halt.called:
        return PassResult(
            prepared=prepared, plan=plan, record=prepared.record, outcome=halt.outcome, halted=halt.reason
        )
    if fleet.clock.now() - prepared.plan.created > TOO_OLD:
        raise LostRaceError("this machine stood still between looking at the nodes and acting")
    progress.planned(plan)
    passed = pass_record(fleet, prepared, plan)
    work = Work(fleet=fleet, request=request, prepared=prepared, plan=plan, passed=passed)
    if all(step.kind is StepKind.PUBLISH for step in plan.commands):
        return await work.record_only(progress)
    return await work.carry_out(links=links, halt=halt, progress=progress)


def _check_turn(fleet: Fleet, request: PassRequest, stored: Stored, commit: Commit | None) -> None:
    """Nobody else is at work, and nobody else has gone on with what this pass continues: known before a node is asked."""
    record = stored.record
    crashed_pass(record, holder=fleet.holder, now=fleet.clock.now(), instance=fleet.instance)
    if request.continues is None or record is None or record.serial <= request.continues:
        return
    if record.commit is not None and record.commit != commit:
        holder = record.last_pass.holder if record.last_pass else "somebody else"
        raise SupersededError(
            f"{holder} applied {record.commit[:10]} meanwhile (serial {record.serial}): that counts now"
        )


async def _take_over(fleet: Fleet, wish: Wish, prepared: Prepared, progress: Progress) -> Prepared:
    """Close a pass whose controller is gone, by what the agents report, and plan on from there."""
    now = fleet.clock.now()
    crashed = crashed_pass(prepared.record, holder=fleet.holder, now=now, instance=fleet.instance)
    if crashed is None:
        return prepared
    progress.said(
        f"{crashed.holder} did not finish serial {crashed.serial} (begun {crashed.started:%Y-%m-%d %H:%M:%S} UTC): "
        "asked the agents what became of it, and carrying on"
    )
    left = prepared.stored.pending_plan
    results = became_of(left, prepared.observed) if left else {}
    record = prepared.record
    if left is not None:
        known = recording.end(record, left, results, prepared.observed, now=now)
        record = expecting(known, before=record, by=fleet.holder, at=now)
    record = recording.observe(record, prepared.observed, now, grace=prepared.grace)
    ended = replace(
        crashed,
        outcome=Outcome.RECOVERED,
        ended=now,
        steps={name: result.outcome.value for name, result in results.items()},
        errors=(f"its controller did not finish; recovered by {fleet.holder}",),
    )
    record = replace(record, last_pass=ended)
    message = recovered_message(ended, left, results)
    version = await fleet.store.write(record, after=prepared.stored.version, message=message)
    stored = Stored(record=record, version=version)
    plan = await plan_again(
        fleet, wish, stored=stored, record=record, desired=prepared.desired, observed=prepared.observed
    )
    return replace(prepared, stored=stored, record=record, plan=plan)


async def _check_commit(fleet: Fleet, request: PassRequest, prepared: Prepared) -> None:
    """What can be planned can't always be applied."""
    commit = prepared.desired.commit
    if commit is None:
        raise StalledError("a work tree can be planned, never applied: commit it, then apply the commit")
    if not request.allow_unpushed and await fleet.source.unpushed(commit):
        raise StalledError(
            f"commit {commit[:10]} is not pushed to any remote, so the fleet would run what nobody else can read: "
            "push it, or apply with --allow-unpushed"
        )


async def _note_news(fleet: Fleet, prepared: Prepared) -> Record:
    """Nothing to command. What changes who serves is recorded at once; the rest now and then."""
    stored, before = prepared.stored, prepared.record
    if stored.record is None:
        return before
    now = fleet.clock.now()
    record = recording.observe(before, prepared.observed, now, grace=prepared.grace)
    journal = happened(prepared.observed)
    if not journal and not any_news(before, record):
        return before
    if not weighty(before, record) and await _told_lately(fleet, now):
        return before
    news = (*sentences(before, record), *journal)
    record, ended = _with_end(record, prepared, now)
    message = news_message(news, record.last_pass, ended=ended)
    try:
        await fleet.store.write(record, after=stored.version, message=message)
    except LostRaceError:
        return before  # somebody else has just written, and the agents can tell it all again
    return record


async def _told_lately(fleet: Fleet, now: datetime) -> bool:
    newest = await fleet.store.history(limit=1)
    return bool(newest and newest[0].at) and now - datetime.fromisoformat(newest[0].at) < NEWS_EVERY


def _with_end(record: Record, prepared: Prepared, now: datetime) -> tuple[Record, bool]:
    """When nothing is on its way any more, what the last pass set going has come to its end."""
    last = record.last_pass
    over = not prepared.plan.waiting and not prepared.plan.blocked
    if last is None or last.outcome is not Outcome.ACCEPTED or not over:
        return record, False
    return replace(record, last_pass=replace(last, outcome=Outcome.DONE, ended=now)), True
