"""Who may command: the lease that an open intent holds, how long it is ours, and keeping it while work goes on."""

import asyncio
from datetime import datetime, timedelta

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.halt import Halt
from llmgw.controller.repo.records import LostRaceError, RecordStore
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.problems import HeldError, LlmgwError, RetryError, UnknownOutcomeError
from llmgw.model.record import Outcome, PassRecord, Record
from llmgw.model.struct import replace

_RENEWED_AT = 3 / 8
"""Of a lease: early enough that a slow push still comes before it ends."""
ASK_AGAIN = 2.0
"""Seconds between looks at a lease that somebody else holds."""


def renew_after(lease: timedelta) -> float:
    """Seconds."""
    return lease.total_seconds() * _RENEWED_AT


def open_pass(record: Record | None) -> PassRecord | None:
    """The pass that has begun and has not told its outcome."""
    last = record.last_pass if record else None
    return last if last is not None and last.outcome is None else None


def crashed_pass(
    record: Record | None, *, holder: str, now: datetime, instance: str = ""
) -> PassRecord | None:
    """The open pass whose controller is gone: its lease is over, or it is our own (the lock of this state directory is
    held by whoever asks, so no other process of ours is at it). HeldError when its holder may still be at work."""
    last = open_pass(record)
    if last is None:
        return None
    ours = (last.holder, last.instance) == (holder, instance)
    if not ours and last.lease_until > now:
        raise HeldError(
            f"{last.holder} is applying {last.commit[:10]} (serial {last.serial}, since {last.started:%H:%M:%S} UTC, "
            f"lease until {last.lease_until:%H:%M:%S} UTC): try again when it has finished, or wait with --lock-timeout"
        )
    return last


async def wait_for_turn(fleet: Fleet, *, timeout: float, halt: Halt) -> None:
    """Wait while somebody else holds a live lease. HeldError when ``timeout`` seconds were not enough."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + timeout
    while True:
        stored = await fleet.store.read()
        try:
            crashed_pass(stored.record, holder=fleet.holder, now=fleet.clock.now(), instance=fleet.instance)
        except HeldError:
            if loop.time() + ASK_AGAIN > give_up or await halt.sleep(ASK_AGAIN):
                raise
        else:
            return


class Tenure:
    """The record while this pass holds its lease: what was written last, and the only way to write on."""

    def __init__(self, store: RecordStore, *, plan: Plan | None) -> None:
        self._store = store
        self._plan = plan
        self._turn = asyncio.Lock()
        self.record: Record | None = None
        self.version: Commit | None = None

    async def write(self, record: Record, *, after: Commit | None, message: str, open_intent: bool) -> Commit:
        """Compare-and-swap. An answer that never came is looked up: our own write may have arrived."""
        plan = self._plan if open_intent else None
        try:
            version = await self._store.write(record, after=after, message=message, plan=plan)
        except UnknownOutcomeError:
            stored = await self._store.read()
            if stored.record is None or stored.record.last_pass != record.last_pass or stored.version is None:
                raise
            version = stored.version
        self.record, self.version = record, version
        return version

    def holds(self, now: datetime) -> bool:
        """Whether the lease that was last written is still ours."""
        last = open_pass(self.record)
        return last is not None and now < last.lease_until

    async def finish(self, record: Record, *, message: str) -> Commit:
        async with self._turn:
            return await self.write(record, after=self.version, message=message, open_intent=False)

    async def keep(self, fleet: Fleet, halt: Halt, *, message: str) -> None:
        """Renew the lease until cancelled. When it can't be renewed, the pass is halted before it runs out. One that has run
        out is not renewed though nobody took over: what the pass saw and planned is too old to act on."""
        pause = renew_after(fleet.lease)
        while not await halt.sleep(pause):
            async with self._turn:
                if self.record is None or self.record.last_pass is None:
                    return
                now = fleet.clock.now()
                if not self.holds(now):
                    halt.now(Outcome.INTERRUPTED, "the lease ran out: this machine stood still for a while")
                    return
                renewed = replace(self.record.last_pass, lease_until=now + fleet.lease)
                try:
                    await self.write(
                        replace(self.record, last_pass=renewed),
                        after=self.version,
                        message=message,
                        open_intent=True,
                    )
                except LostRaceError as lost:
                    halt.now(Outcome.SUPERSEDED, str(lost))
                except RetryError as failed:
                    if self.record.last_pass.lease_until - now < timedelta(seconds=pause):
                        halt.now(Outcome.INTERRUPTED, f"the lease could not be renewed: {failed}")
                except LlmgwError as refused:
                    halt.now(Outcome.INTERRUPTED, f"the lease could not be renewed: {refused}")
