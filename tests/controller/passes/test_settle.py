"""Waiting for an apply to settle, and the exit code it comes to."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest

from llmgw.cli.ended import as_json
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Wish
from llmgw.controller.passes.settle import FAILING_PASSES, Settled, settle
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.passes.verdict import verdict
from llmgw.model.plan import Plan, Step, StepKind, StepResult
from llmgw.model.problems import AgentError, HeldError, StalledError
from llmgw.model.record import Outcome
from llmgw.model.struct import replace
from llmgw.wire.messages import NO_SPACE, WatchEvent
from tests.controller.passes.pretend import Model, PretendAgent, World
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_virtual


class Reacts:
    """A progress that lets a test act when a pass begins, and keeps what it was told."""

    def __init__(self) -> None:
        self.passes = 0
        self.events: list[WatchEvent] = []
        self.on_pass: dict[int, Any] = {}

    def planned(self, plan: Plan) -> None:
        self.passes += 1
        act = self.on_pass.get(self.passes)
        if act is not None:
            act()

    def step(self, step: Step, result: StepResult | None) -> None:
        pass

    def seen(self, node: str, event: WatchEvent) -> None:
        self.events.append(event)

    def said(self, text: str) -> None:
        pass


async def settling(world: World, *, halt: Halt | None = None, **request: Any) -> Settled:
    links = Links({"local": world.transport})
    try:
        return await settle(
            world.fleet(),
            PassRequest(**request),
            links=links,
            halt=halt or Halt(),
            progress=world.progress,
        )
    finally:
        await links.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    """In pretended time: minutes of waiting pass at once, and a lost wake-up shows as time that went by."""
    run_virtual(main, VirtualLoop())


async def later(seconds: float, world: World, state: str, **how: Any) -> None:
    await asyncio.sleep(seconds)
    for agent in world.agents.values():
        agent.become(state, **how)


def test_it_waits_until_everything_is_ready_and_published() -> None:
    async def main() -> None:
        world = World(Model(replicas=2))
        world.progress = Reacts()
        getting_ready = asyncio.create_task(later(40, world, "ready"))
        settled = await settling(world)
        await getting_ready
        assert verdict(settled).code == 0
        assert settled.worked
        assert [it.state for it in settled.last.record.endpoints] == ["ready", "ready"]
        assert asyncio.get_running_loop().time() < 42, "a watch stream did not wake it up"
        assert world.progress.events

    run(main())


def test_what_each_pass_did_is_told_in_the_end() -> None:
    async def main() -> None:
        world = World(Model(replicas=2))
        world.progress = Reacts()
        getting_ready = asyncio.create_task(later(40, world, "ready"))
        settled = await settling(world)
        await getting_ready
        told = as_json(settled, verdict(settled))
        (first,) = told["earlier"]
        started = [name for name in first["steps"] if name.startswith("start chat-")]
        assert [first["steps"][name]["outcome"] for name in started] == ["done", "done"]
        assert (first["serial"], first["outcome"]) == (1, "accepted")
        assert not told["steps"], "the last pass had nothing left to do"
        assert told["passes"] > 2, "those that only looked are counted"

    run(main())


def test_what_happens_between_the_report_and_the_stream_is_not_missed() -> None:
    async def main() -> None:
        world = World()
        world.agents["gpu01"].ready_at_once = True
        settled = await settling(world)
        assert verdict(settled).code == 0
        assert asyncio.get_running_loop().time() < 2

    run(main())


def test_what_happens_while_a_slow_stream_begins_is_not_missed() -> None:
    """Over SSH a stream took longer to begin than was reckoned with: readiness was seen by the timer, 15 s later."""

    async def main() -> None:
        world = World()
        world.agents["gpu01"].stream_begins_after = 2
        getting_ready = asyncio.create_task(later(1, world, "ready"))
        settled = await settling(world)
        await getting_ready
        assert verdict(settled).code == 0
        assert asyncio.get_running_loop().time() < 4

    run(main())


def test_nothing_to_do_is_one_pass() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        settled = await settling(world)
        assert (settled.passes, settled.worked) == (1, False)
        assert verdict(settled).code == 0

    run(main())


def test_a_replica_that_fails_is_told_with_its_last_lines_and_exit_5() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models(Model(args=("--never-ready",)))
        failing = asyncio.create_task(
            later(5, world, "failed", lines=("loading weights", "CUDA out of memory"), error="exited with 1")
        )
        settled = await settling(world)
        await failing
        ended = verdict(settled)
        assert ended.code == 5
        assert "    CUDA out of memory" in "\n".join(ended.errors)
        again = verdict(await settling(world))
        assert again.code == 6

    run(main())


def test_a_node_that_refuses_for_good_ends_the_waiting_with_exit_1() -> None:
    async def main() -> None:
        world = World(Model(url=None))
        for method in ("install", "start"):
            world.agents["gpu01"].refuse[method] = AgentError("no space left", code=NO_SPACE)
        settled = await settling(world)
        ended = verdict(settled)
        assert settled.passes >= FAILING_PASSES
        assert settled.passes < 10
        assert ended.code in (1, 5)
        assert any("no space left" in error for error in ended.errors)

    run(main())


def test_an_agent_that_never_comes_up_again_ends_the_waiting_for_what_it_ran() -> None:
    """Its replicas are "known again once it has its agent": that was taken for something on its way, for ever."""

    async def main() -> None:
        world = World()
        await world.settle()
        machine = world.machines["gpu01"]
        machine.service = None

        async def broken(fleet: str) -> PretendAgent:
            raise StalledError("starting its agent: it ended with 1: state/owner.json can't be read")

        machine.start = broken
        settled = await settling(world)
        assert settled.passes == FAILING_PASSES
        ended = verdict(settled)
        assert ended.code == 6
        assert "state/owner.json" in ended.errors[0]
        assert asyncio.get_running_loop().time() < 20

    run(main())


def test_who_only_waited_while_somebody_else_began_exits_as_one_who_came_second() -> None:
    """It was exit 5, done in part, with nothing done at all."""

    async def main() -> None:
        world = World()
        await world.apply()

        async def rival() -> None:
            await asyncio.sleep(5)
            stored = await world.store.read()
            assert stored.record is not None
            assert stored.record.last_pass is not None
            lease = world.clock.now() + timedelta(hours=1)
            last = replace(stored.record.last_pass, holder="bob@laptop", outcome=None, lease_until=lease)
            await world.store.write(
                replace(stored.record, last_pass=last), after=stored.version, message="Begin\n"
            )

        other = asyncio.create_task(rival())
        with pytest.raises(HeldError, match="bob@laptop"):
            await settling(world)
        await other

    run(main())


def test_what_fails_once_is_tried_again() -> None:
    async def main() -> None:
        world = World()
        agent = world.agents["gpu01"]
        agent.ready_at_once = True
        agent.refuse["start"] = AgentError("the GPU was busy", code=NO_SPACE)
        progress = Reacts()
        progress.on_pass[2] = agent.refuse.clear
        world.progress = progress
        assert verdict(await settling(world)).code == 0

    run(main())


def test_an_interrupt_while_waiting_ends_it_in_order_with_exit_5() -> None:
    async def main() -> None:
        world = World()
        halt = Halt()
        asyncio.get_running_loop().call_later(20, halt.now, Outcome.INTERRUPTED, "it was interrupted")
        settled = await settling(world, halt=halt)
        ended = verdict(settled)
        assert ended.code == 5
        assert "interrupted" in ended.errors[0]
        record = (await world.store.read()).record
        assert record is not None
        assert record.last_pass is not None
        assert record.last_pass.outcome is Outcome.ACCEPTED, "the pass had told its outcome before"

    run(main())


def test_setting_an_agent_up_is_nothing_to_tell_unless_a_saved_plan_ends_there() -> None:
    async def main() -> None:
        two = World(agents=False, nodes=("gpu01", "gpu02"))
        alone = Settled(last=await two.apply(), passes=1, worked=True)
        assert verdict(alone).code == 0
        assert not verdict(alone).errors
        assert verdict(replace(alone, early=True)).code == 2

    run(main())


def test_another_commit_applied_meanwhile_ends_it() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models(Model(replicas=2))

        async def rival() -> None:
            await asyncio.sleep(5)
            world.branch.commit_models(Model(replicas=1))
            await world.apply("bob@laptop")

        other = asyncio.create_task(rival())
        settled = await settling(world)
        await other
        ended = verdict(settled)
        assert ended.code == 5
        assert "bob@laptop applied" in ended.errors[0]

    run(main())


def test_all_that_is_blocked_and_nothing_done_is_exit_6_with_the_numbers() -> None:
    async def main() -> None:
        world = World(Model(gpus=4))
        await world.apply()  # the node itself is recorded
        ended = verdict(await settling(world))
        assert ended.code == 6
        assert "not on gpu01" in ended.errors[0]
        assert "needs 4 whole GPUs" in ended.errors[0]

    run(main())


def test_an_emptied_fleet_is_exit_6() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models()
        assert verdict(await settling(world)).code == 6
        assert verdict(await settling(world, wish=Wish(allow_prune=True))).code == 0
        assert not world.states() or set(world.states().values()) == {"stopped"}

    run(main())


def test_an_agent_is_started_and_the_work_goes_on_at_once() -> None:
    async def main() -> None:
        world = World(agents=False)
        world.agents["gpu01"].ready_at_once = True
        settled = await settling(world)
        assert verdict(settled).code == 0
        assert asyncio.get_running_loop().time() < 3
        assert StepKind.BOOTSTRAP not in {step.kind for step in settled.last.plan.commands}

    run(main())
