"""The lease: whose turn it is, and keeping it while the work goes on."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from llmgw.controller.instance import instance_of
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.lease import Tenure, crashed_pass, renew_after, wait_for_turn
from llmgw.controller.repo.records import LostRaceError, MemoryRecordStore
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.problems import HeldError, RetryError
from llmgw.model.record import LEASE, Outcome, PassRecord, Record
from llmgw.model.struct import replace
from tests.controller.passes.doubles import plan_of, start
from tests.controller.passes.pretend import FLEET, START, World
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_virtual

RENEW_AFTER = renew_after(LEASE)
PASS = PassRecord(
    serial=3,
    holder="ann@desk",
    trigger="manual",
    actor="ann@desk",
    commit=Commit("a" * 40),
    plan_digest="d",
    started=START,
    lease_until=START + LEASE,
)
OPEN = Record(fleet=FLEET, serial=3, last_pass=PASS)


def run(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main, VirtualLoop())


def test_an_ended_pass_holds_nothing() -> None:
    ended = replace(OPEN, last_pass=replace(PASS, outcome=Outcome.DONE))
    assert crashed_pass(ended, holder="bob@laptop", now=START) is None
    assert crashed_pass(None, holder="bob@laptop", now=START) is None


def test_a_live_lease_of_somebody_else_names_them_and_until_when() -> None:
    with pytest.raises(HeldError, match=r"ann@desk is applying aaaaaaaaaa \(serial 3.*until 12:02:00"):
        crashed_pass(OPEN, holder="bob@laptop", now=START + timedelta(seconds=119))


def test_an_expired_lease_and_our_own_are_crashed_passes() -> None:
    assert crashed_pass(OPEN, holder="bob@laptop", now=START + LEASE) == PASS
    assert crashed_pass(OPEN, holder="ann@desk", now=START) == PASS


def test_a_tenure_holds_its_lease_until_it_is_over_or_the_outcome_is_told() -> None:
    async def main() -> None:
        tenure = Tenure(MemoryRecordStore(), plan=None)
        assert not tenure.holds(START)
        await tenure.write(OPEN, after=None, message="open", open_intent=True)
        assert tenure.holds(START + LEASE - timedelta(seconds=1))
        assert not tenure.holds(START + LEASE)
        await tenure.finish(replace(OPEN, last_pass=replace(PASS, outcome=Outcome.DONE)), message="done")
        assert not tenure.holds(START)

    run(main())


def test_two_machines_of_one_name_are_not_taken_for_one() -> None:
    here = replace(OPEN, last_pass=replace(PASS, instance="one"))
    with pytest.raises(HeldError):
        crashed_pass(here, holder="ann@desk", now=START, instance="other")
    assert crashed_pass(here, holder="ann@desk", now=START, instance="one") is not None


def test_a_state_directory_keeps_its_name(tmp_path: Path) -> None:
    first = instance_of(tmp_path / "state")
    assert first
    assert instance_of(tmp_path / "state") == first
    assert instance_of(tmp_path / "other") != first
    assert sorted(it.name for it in (tmp_path / "state").iterdir()) == ["instance"]


def test_waiting_for_a_turn_ends_when_the_other_has_finished() -> None:
    async def main() -> None:
        world = World()
        version = await world.store.write(OPEN, after=None, message="open")

        async def finish() -> None:
            await asyncio.sleep(30)
            ended = replace(OPEN, last_pass=replace(PASS, outcome=Outcome.DONE))
            await world.store.write(ended, after=version, message="done")

        other = asyncio.create_task(finish())
        await wait_for_turn(world.fleet("bob@laptop"), timeout=60, halt=Halt())
        await other
        assert 30 <= asyncio.get_running_loop().time() < 34

    run(main())


def test_waiting_for_a_turn_gives_up_after_its_time_and_on_ctrl_c() -> None:
    async def main() -> None:
        world = World()
        await world.store.write(OPEN, after=None, message="open")
        with pytest.raises(HeldError):
            await wait_for_turn(world.fleet("bob@laptop"), timeout=20, halt=Halt())
        assert asyncio.get_running_loop().time() <= 20
        halt = Halt()
        halt.now(Outcome.INTERRUPTED, "enough")
        with pytest.raises(HeldError):
            await wait_for_turn(world.fleet("bob@laptop"), timeout=1000, halt=halt)

    run(main())


async def kept(store: MemoryRecordStore, halt: Halt, seconds: float) -> Tenure:
    world = World()
    world.store = store
    tenure = Tenure(store, plan=plan_of(start("s")))
    await tenure.write(OPEN, after=None, message="open", open_intent=True)
    task = asyncio.create_task(tenure.keep(world.fleet(), halt, message="still at work"))
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        world.clock.advance(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return tenure


def test_a_long_pass_renews_its_lease_and_keeps_its_plan_beside_it() -> None:
    async def main() -> None:
        store = MemoryRecordStore()
        halt = Halt()
        await kept(store, halt, 3 * RENEW_AFTER + 5)
        stored = await store.read()
        assert stored.record is not None
        assert stored.record.last_pass is not None
        assert stored.record.last_pass.lease_until > START + LEASE + timedelta(seconds=100)
        assert stored.pending_plan is not None
        assert len(await store.history()) == 4
        assert not halt.called

    run(main())


def test_a_lease_that_ran_out_while_its_machine_slept_is_not_renewed() -> None:
    async def main() -> None:
        world, halt = World(), Halt()
        tenure = Tenure(world.store, plan=plan_of(start("s")))
        await tenure.write(OPEN, after=None, message="open", open_intent=True)
        task = asyncio.create_task(tenure.keep(world.fleet(), halt, message="still at work"))
        await asyncio.sleep(1)
        world.clock.advance(LEASE.total_seconds() + 1)
        await asyncio.wait_for(task, timeout=RENEW_AFTER + 1)
        assert halt.outcome is Outcome.INTERRUPTED
        assert "stood still" in halt.reason
        assert len(await world.store.history()) == 1

    run(main())


class _Taken(MemoryRecordStore):
    """After the intent everybody else is faster, or nothing is reachable."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        if after is not None:
            raise self.error
        return await super().write(record, after=after, message=message, plan=plan)


def test_who_loses_the_lease_sends_nothing_more() -> None:
    async def main() -> None:
        halt = Halt()
        await kept(_Taken(LostRaceError("bob wrote")), halt, RENEW_AFTER + 5)
        assert halt.outcome is Outcome.SUPERSEDED

    run(main())


def test_a_lease_that_can_not_be_renewed_ends_the_pass_before_it_runs_out() -> None:
    async def main() -> None:
        halt = Halt()
        await kept(_Taken(RetryError("no route")), halt, RENEW_AFTER + 5)
        assert not halt.called, "there is time yet"
        halt = Halt()
        await kept(_Taken(RetryError("no route")), halt, LEASE.total_seconds() - 5)
        assert halt.outcome is Outcome.INTERRUPTED
        assert "could not be renewed" in halt.reason

    run(main())
