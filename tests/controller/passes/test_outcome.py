"""The commands are out and the outcome can't be recorded: it is tried for a while, and then the next pass finds it out."""

from collections.abc import Coroutine
from typing import Any

import pytest

from llmgw.controller.passes.settle import Settled
from llmgw.controller.passes.verdict import verdict
from llmgw.controller.passes.work import OUTCOME_TRIES
from llmgw.controller.repo.records import LostRaceError, MemoryRecordStore
from llmgw.model.exitcode import ERROR, PART
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan, StepOutcome, StepResult
from llmgw.model.problems import HeldError, LlmgwError, RetryError, StalledError
from llmgw.model.record import Outcome, Record
from llmgw.model.struct import replace
from tests.controller.passes.pretend import World
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_virtual


def run(main: Coroutine[Any, Any, None]) -> None:
    """In pretended time: half a minute of trying passes in none."""
    run_virtual(main, VirtualLoop())


class Refuses(MemoryRecordStore):
    """Takes every intent, and ``times`` times no outcome."""

    def __init__(self, error: LlmgwError, *, times: int) -> None:
        super().__init__()
        self.error, self.times, self.asked = error, times, 0

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        if plan is None:
            self.asked += 1
            if self.asked <= self.times:
                raise self.error
        return await super().write(record, after=after, message=message, plan=plan)


def test_a_remote_that_is_away_for_a_moment_gets_the_outcome_later() -> None:
    async def main() -> None:
        world = World()
        world.store = Refuses(RetryError("the remote does not answer"), times=3)
        result = await world.apply()
        assert not result.unrecorded
        newest = (await world.store.history())[0]
        assert dict(newest.trailers)["Llmgw-Outcome"] == "accepted"

    run(main())


def test_a_remote_that_stays_away_is_an_error_and_the_next_pass_finds_out_what_was_done() -> None:
    async def main() -> None:
        world = World()
        store = Refuses(RetryError("the remote does not answer"), times=OUTCOME_TRIES)
        world.store = store
        result = await world.apply("ann@desk")
        assert store.asked == OUTCOME_TRIES
        ended = verdict(Settled(last=result, passes=1, worked=True))
        assert ended.code == ERROR
        assert "the remote does not answer. Nothing is lost" in ended.errors[0]
        commands = list(world.commands)
        with pytest.raises(HeldError, match="ann@desk is applying"):
            await world.apply("bob@laptop")  # to others it may still be at work
        again = await world.apply("ann@desk")
        assert again.record.last_pass is not None
        assert again.record.last_pass.outcome is Outcome.RECOVERED
        assert world.commands == commands, "nothing was commanded twice"

    run(main())


def test_a_remote_that_refuses_is_not_asked_again() -> None:
    async def main() -> None:
        world = World()
        store = Refuses(StalledError("the remote refuses the push"), times=1)
        world.store = store
        result = await world.apply()
        assert store.asked == 1
        assert "refuses the push" in result.unrecorded

    run(main())


def test_an_outcome_that_comes_after_somebody_took_over_is_theirs_to_tell() -> None:
    async def main() -> None:
        world = World()
        store = Refuses(LostRaceError("the record moved"), times=1)
        world.store = store
        result = await world.apply()
        assert store.asked == 1
        assert "somebody else took over meanwhile" in result.unrecorded

    run(main())


def test_of_an_outcome_that_is_lost_and_an_interrupt_the_error_counts_and_both_are_told() -> None:
    async def main() -> None:
        world = World()
        result = replace(await world.apply(), halted="it was interrupted", unrecorded="the remote is away")
        ended = verdict(Settled(last=result, passes=1, worked=True))
        assert ended.code == ERROR
        assert ended.errors[:2] == ("the remote is away", "it was interrupted")

    run(main())


def test_an_interrupt_before_the_first_command_is_not_done_in_part() -> None:
    async def main() -> None:
        result = replace(await World().apply(), results={}, halted="it was interrupted")
        assert verdict(Settled(last=result, passes=1, worked=False)).code == ERROR
        lost = {result.plan.commands[0].id: StepResult(outcome=StepOutcome.UNKNOWN, error="the line was cut")}
        unsure = replace(result, results=lost)
        assert verdict(Settled(last=unsure, passes=1, worked=False)).code == PART

    run(main())
