"""A plan that was decided on: its intent, its commands, its outcome.

The intent is on the state branch before the first command leaves, so that whatever happens afterwards, the next pass
knows what was meant and asks the agents what became of it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.builds import bringing
from llmgw.controller.passes.execute import Errand, execute
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.keyring import keyring
from llmgw.controller.passes.keys import secrets_for
from llmgw.controller.passes.lease import Tenure
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Prepared
from llmgw.controller.passes.progress import Progress
from llmgw.controller.passes.story import happened, intent_message, outcome_message
from llmgw.controller.passes.values import PassRequest, PassResult
from llmgw.controller.repo.records import LostRaceError
from llmgw.core.amounts import at
from llmgw.core.record import recording
from llmgw.model.ids import Fence, digest
from llmgw.model.plan import AWAITS, Plan, StepOutcome, StepResult
from llmgw.model.problems import LlmgwError, RetryError
from llmgw.model.record import Outcome, PassRecord, Record
from llmgw.model.struct import Struct, replace
from llmgw.wire.codec import to_json

NEWER_COMMIT_EVERY = 10.0
"""Seconds between looks whether a newer commit supersedes the pass at work."""
ERRORS_KEPT = 20
SPENT_KEPT = 100
"""Digests of applied plans that the record remembers: far more than anybody keeps files of."""


def plan_digest(plan: Plan) -> str:
    return digest(to_json(plan))


def pass_record(fleet: Fleet, prepared: Prepared, plan: Plan) -> PassRecord:
    now = fleet.clock.now()
    assert prepared.desired.commit is not None
    return PassRecord(
        serial=prepared.record.serial + 1,
        holder=fleet.holder,
        trigger=fleet.trigger,
        actor=fleet.actor,
        commit=prepared.desired.commit,
        plan_digest=plan_digest(plan),
        started=now,
        lease_until=now + fleet.lease,
        instance=fleet.instance,
        signer=plan.basis.signer,
        diverged_from=plan.basis.diverged_from,
        targets=plan.targets,
        replaced=tuple(sorted(plan.replaced)),
        override=plan.override,
    )


class Work(Struct):
    """A plan that was decided on, between its intent and its outcome."""

    fleet: Fleet
    request: PassRequest
    prepared: Prepared
    plan: Plan
    passed: PassRecord

    def _intent(self) -> Record:
        prepared = self.prepared
        nodes_only = self.request.instead is not None
        desired = replace(prepared.desired, models={}) if nodes_only else prepared.desired
        record = recording.begin(
            prepared.record, desired, self.plan, prepared.observed, pass_record=self.passed
        )
        if nodes_only:
            seen = recording.observe(
                prepared.record, prepared.observed, self.passed.started, grace=prepared.grace
            )
            before = prepared.record
            record = replace(
                record, models=seen.models, commit=before.commit, keeps_removed=before.keeps_removed
            )
        if self.request.amend is not None:
            record = self.request.amend(record, prepared)
        record = bringing(
            record,
            self.plan,
            build=self.fleet.agent_build(),
            instance=self.fleet.instance,
            insists=nodes_only,
        )
        spent = prepared.record.spent_plans
        if self.request.saved is not None:
            spent = (*spent, self.request.saved.digest)[-SPENT_KEPT:]
        return replace(record, spent_plans=spent)

    async def record_only(self, progress: Progress) -> PassResult:
        """No agent is commanded: one commit says it all."""
        results = {
            step.id: StepResult(outcome=StepOutcome.DEFERRED if step.kind in AWAITS else StepOutcome.DONE)
            for step in self.plan.steps
        }
        record, passed = self._ended(self._intent(), results, Halt())
        news = happened(self.prepared.observed)
        message = outcome_message(self.plan, passed, results, news=news)
        await Tenure(self.fleet.store, plan=None).write(
            record, after=self.prepared.stored.version, message=message, open_intent=False
        )
        for step in self.plan.steps:
            progress.step(step, results[step.id])
        return self._result(record, results, passed.outcome)

    async def carry_out(self, *, links: Links, halt: Halt, progress: Progress) -> PassResult:
        """Intent, commands, outcome."""
        fleet, prepared = self.fleet, self.prepared
        keys = keyring(fleet, prepared.record)
        intent = self._intent()
        message = intent_message(self.plan, self.passed, news=happened(prepared.observed))
        tenure = Tenure(fleet.store, plan=self.plan)
        version = await tenure.write(intent, after=prepared.stored.version, message=message, open_intent=True)
        links.fleet = intent.fleet
        self._publish(intent, progress)
        await fleet.source.keep(self.passed.commit)
        errand = Errand(
            fence=Fence(fleet=intent.fleet, serial=intent.serial, intent=version),
            nodes=prepared.desired.nodes,
            links=links,
            secrets=secrets_for(fleet, intent, prepared.desired, keys),
            holds_lease=lambda: tenure.holds(fleet.clock.now()),
        )
        async with _duties(self, tenure, halt):
            results = await execute(self.plan, errand, halt=halt, progress=progress)
        record, passed = self._ended(intent, results, halt)
        told = outcome_message(self.plan, passed, results)
        unrecorded = await _write_outcome(tenure, record, told, progress)
        result = self._result(record, results, passed.outcome)
        return replace(result, halted=halt.reason, unrecorded=unrecorded)

    def _publish(self, intent: Record, progress: Progress) -> None:
        """Who reads the endpoints stops asking what is to go before it is told so, however long the pass takes from here on."""
        if self.request.recorded is None:
            return
        try:
            self.request.recorded(intent)
        except LlmgwError as failed:
            progress.said(f"the endpoints are not told before the commands: {failed}")

    def _ended(
        self, intent: Record, results: Mapping[str, StepResult], halt: Halt
    ) -> tuple[Record, PassRecord]:
        now = self.fleet.clock.now()
        record = recording.end(intent, self.plan, results, self.prepared.observed, now=now)
        passed = replace(
            self.passed,
            outcome=outcome_of(self.plan, results, halt),
            ended=now,
            steps={name: result.outcome.value for name, result in results.items()},
            errors=tuple(
                f"{name}: {'nobody knows what came of it: ' if result.outcome is StepOutcome.UNKNOWN else ''}{result.error}"
                for name, result in results.items()
                if result.outcome in (StepOutcome.FAILED, StepOutcome.UNKNOWN)
            )[:ERRORS_KEPT],
        )
        return replace(record, last_pass=passed), passed

    def _result(
        self, record: Record, results: Mapping[str, StepResult], outcome: Outcome | None
    ) -> PassResult:
        return PassResult(
            prepared=self.prepared, plan=self.plan, record=record, outcome=outcome, results=results
        )

    async def superseded(self, halt: Halt) -> None:
        """Until cancelled: a newer commit ends this pass at the next step."""
        commit = self.passed.commit
        while not await halt.sleep(NEWER_COMMIT_EVERY):
            try:
                newest = await self.fleet.source.newest()
                if newest != commit:  # one that must not be used, or can't be, supersedes nothing
                    await self.fleet.source.desired(newest, key_id=self.prepared.record.key_id)
            except LlmgwError:
                continue  # or not reachable now: the commit at hand stands
            if newest != commit and await self.fleet.source.is_ancestor(commit, newest):
                halt.now(Outcome.SUPERSEDED, f"commit {newest[:10]} is newer than {commit[:10]}")

    async def closed(self, halt: Halt, until: datetime) -> None:
        """Ends this pass at the next step when the time for changes is over."""
        if not await halt.sleep(max((until - self.fleet.clock.now()).total_seconds(), 0)):
            halt.now(
                Outcome.INTERRUPTED,
                f"the time for changes ended at {at(until)}: what is left waits for the next window",
            )


@asynccontextmanager
async def _duties(work: Work, tenure: Tenure, halt: Halt) -> AsyncIterator[None]:
    """While commands are out: keep the lease, and look whether a newer commit supersedes this one."""
    duties = [tenure.keep(work.fleet, halt, message=_renewal(work.plan, work.passed))]
    pinned = work.request.wish.commit is not None or work.request.saved is not None
    if not pinned:
        duties.append(work.superseded(halt))
    if (gate := work.plan.gate) is not None and gate.open and gate.until is not None:
        duties.append(work.closed(halt, gate.until))
    tasks = [asyncio.create_task(duty) for duty in duties]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _renewal(plan: Plan, passed: PassRecord) -> str:
    return intent_message(plan, passed).replace("\n", f" (serial {passed.serial} is still at work)\n", 1)


def outcome_of(plan: Plan, results: Mapping[str, StepResult], halt: Halt) -> Outcome:
    """One word for a pass."""
    if halt.outcome is not None:
        return halt.outcome
    commands = [results[step.id].outcome for step in plan.commands if step.id in results]
    wrong = any(it in (StepOutcome.FAILED, StepOutcome.UNKNOWN) for it in commands)
    if wrong:
        return Outcome.PARTIAL if StepOutcome.DONE in commands else Outcome.FAILED
    waits = any(result.outcome is StepOutcome.DEFERRED for result in results.values())
    return Outcome.ACCEPTED if waits else Outcome.DONE


OUTCOME_TRIES = 6
FIRST_PAUSE = 1.0
"""Seconds before the second try, doubled each time: half a minute in all, well within the lease."""


async def _write_outcome(tenure: Tenure, record: Record, message: str, progress: Progress) -> str:
    """The commands are out: telling the outcome is tried for a while. Why it failed; empty: it is written."""
    lost = "Nothing is lost: the next apply asks the agents what became of the commands"
    failed: LlmgwError | None = None
    for attempt in range(OUTCOME_TRIES):
        if failed is not None:
            progress.said(f"the outcome could not be recorded yet, trying again: {failed}")
            await asyncio.sleep(FIRST_PAUSE * 2 ** (attempt - 1))
        failed = await _finish(tenure, record, message)
        if failed is None:
            return ""
        if isinstance(failed, LostRaceError):
            return f"the outcome was not recorded, somebody else took over meanwhile: {failed}"
        if not isinstance(failed, RetryError):
            break
    return f"the outcome could not be recorded: {failed}. {lost}"


async def _finish(tenure: Tenure, record: Record, message: str) -> LlmgwError | None:
    try:
        await tenure.finish(record, message=message)
    except LlmgwError as failed:
        return failed
    return None
