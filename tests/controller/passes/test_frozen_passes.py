"""Passes while changes are frozen, and one under which a window closes."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.prepare import Wish
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.passes.work import Work, pass_record
from llmgw.model.plan import Gate
from llmgw.model.record import Outcome
from llmgw.model.struct import replace
from tests.controller.passes.pretend import World


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_a_window_that_closes_under_a_pass_ends_it_at_the_next_step() -> None:
    async def main() -> None:
        world = World()
        result = await world.apply()
        until = world.clock.now() + timedelta(milliseconds=20)
        open_until = Gate(open=True, text="open until then", until=until)
        plan = replace(result.plan, gate=open_until)
        fleet = world.fleet()
        passed = pass_record(fleet, result.prepared, plan)
        work = Work(fleet=fleet, request=PassRequest(), prepared=result.prepared, plan=plan, passed=passed)
        halt = Halt()
        async with asyncio.timeout(30):
            await work.closed(halt, until)
        assert halt.outcome is Outcome.INTERRUPTED
        assert "the time for changes ended at" in halt.reason

    run(main())


def test_a_pass_that_is_halted_before_leaves_the_window_alone() -> None:
    async def main() -> None:
        world = World()
        result = await world.apply()
        fleet = world.fleet()
        passed = pass_record(fleet, result.prepared, result.plan)
        work = Work(
            fleet=fleet, request=PassRequest(), prepared=result.prepared, plan=result.plan, passed=passed
        )
        halt = Halt()
        halt.now(Outcome.SUPERSEDED, "something newer")
        await work.closed(halt, world.clock.now() + timedelta(hours=1))
        assert halt.reason == "something newer"

    run(main())


def test_targets_replacements_and_overrides_stand_in_the_trailers() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        wish = Wish(targets=("model/chat",), replaced=("model/chat",), override="because")
        await world.apply(wish=wish)
        trailers = dict((await world.store.history())[0].trailers)
        assert trailers["Llmgw-Targets"] == "model/chat"
        assert trailers["Llmgw-Replaced"] == "model/chat"
        assert trailers["Llmgw-Override"] == "because"

    run(main())
