"""What `serve` does and when: commits, nodes that tell, trouble, and the end."""

import asyncio
import logging
from typing import Any

import pytest

from llmgw.controller.nodes.transport import Link
from llmgw.controller.passes import observe
from llmgw.controller.repo.records import MemoryRecordStore, RecordError, Stored
from llmgw.controller.serving.loop import LONGEST_PAUSE, STOP_WITHIN
from llmgw.controller.serving.snapshot import (
    ERROR,
    HELD,
    INVALID,
    NOTHING,
    Event,
    HeadMoved,
    PassBegan,
    PassEnded,
)
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.problems import HeldError
from llmgw.model.record import Outcome, Record
from tests.controller.passes.pretend import Model, PretendAgent, World
from tests.controller.serving.looped import RESYNC, Looped, Moody, looped, looping, run, unreachable


def serving(it: Looped) -> set[str]:
    return {endpoint.model for endpoint in it.snapshots.now.endpoints if endpoint.state == "ready"}


# ---- commits ---------------------------------------------------------------------------------------------


def test_a_commit_is_applied_as_soon_as_it_is_seen_and_the_snapshot_tells_all_of_it() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.until(lambda: serving(it) == {"chat"})
            await it.rests()
            new = it.push(Model(), Model(name="embed"))
            took = await it.until(lambda: serving(it) == {"chat", "embed"})
            await it.rests()
            now = it.snapshots.now
            assert took < 1
            assert now.head == new
            assert now.ref == "main"
            assert now.applied is not None
            assert (now.applied.commit, now.applied.serial) == (new, now.status.serial if now.status else 0)
            assert (now.changes, now.blocked, now.drift, now.source_error) == (0, 0, 0, "")
            assert now.last_good is not None
            assert now.totals.passes["watch", "accepted"] >= 1
            assert sum(now.totals.passes.values()) == sum(now.totals.durations.counts) == len(it.passes)
            assert now.totals.steps["start", "done"] == 2
            assert it.passes[-1].ended == NOTHING
            began = [event for event in it.events if isinstance(event, PassBegan)]
            assert any("Start 1 replica of embed on gpu01" in event.sentence for event in began)
            assert [event.new for event in it.events if isinstance(event, HeadMoved)][-1] == new
        assert {dict(e.trailers).get("Llmgw-Trigger") for e in await it.history()} >= {"watch"}

    run(main())


def test_a_commit_that_changes_nothing_of_the_fleet_is_known_as_such() -> None:
    async def main() -> None:
        async with looped(Model()) as it:
            await it.until(lambda: serving(it) == {"chat"})
            commit = it.push(Model())
            await it.until(lambda: it.snapshots.now.same == commit)
            assert it.snapshots.now.applied is not None
            assert it.snapshots.now.applied.commit != commit
            it.push(Model(), bad=True)
            await it.until(lambda: it.snapshots.now.same is None)

    run(main())


def test_a_branch_that_nothing_tells_of_is_looked_at_from_time_to_time() -> None:
    async def main() -> None:
        async with looped(watched=False) as it:
            await it.rests()
            it.push(Model(), Model(name="embed"))
            assert await it.until(lambda: serving(it) == {"chat", "embed"}, within=40) > 1

    run(main())


def test_a_pass_is_made_from_time_to_time_though_nobody_hints() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            seen = len(it.passes)
            await asyncio.sleep(4 * RESYNC)
            assert 3 <= len(it.passes) - seen <= 5
            assert it.passes[-1].why == "from time to time"

    run(main())


def test_five_hundred_webhooks_make_a_handful_of_passes() -> None:
    async def main() -> None:
        async with looped(watched=False) as it:
            await it.rests()
            seen, asked = len(it.passes), it.branch.asked
            it.branch.commit_models(Model(), Model(name="embed"))
            for number in range(500):
                it.hints.hint("webhook", "webhook forge")
                if number % 50 == 0:
                    await asyncio.sleep(0.02)
            assert await it.until(lambda: "embed" in serving(it)) < 1
            await it.rests()
            assert len(it.passes) - seen <= 5
            assert it.branch.asked - asked < 20
        triggers = [dict(e.trailers).get("Llmgw-Trigger") for e in await it.history()]
        assert "webhook" in triggers

    run(main())


class _Far(MemoryRecordStore):
    """As far away as the branch: each answer takes as long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def read(self) -> Stored:
        await asyncio.sleep(self.seconds)
        return await super().read()


class _FarBranch(Moody):
    seconds = 0.0

    async def newest(self) -> Commit:
        await asyncio.sleep(self.seconds)
        return await super().newest()


def test_the_record_is_read_while_the_branch_is_looked_at() -> None:
    async def main() -> None:
        world = World()
        branch, store = _FarBranch(("gpu01",), Model()), _Far(0)
        world.branch, world.store = branch, store
        it = Looped(world, branch)
        async with looping(it, watched=False):
            await it.rests()
            branch.seconds = store.seconds = 10
            begun = len([event for event in it.events if isinstance(event, PassBegan)])
            it.branch.commit_models(Model(), Model(name="embed"))
            it.hints.hint("webhook", "webhook forge")
            took = await it.until(
                lambda: len([event for event in it.events if isinstance(event, PassBegan)]) > begun,
                within=30,
            )
            assert took < 15

    run(main())


def test_a_webhook_about_nothing_new_makes_no_pass() -> None:
    async def main() -> None:
        async with looped(watched=False) as it:
            await it.rests()
            seen, asked = len(it.passes), it.branch.asked
            it.hints.hint("webhook", "webhook forge")
            await it.until(lambda: it.branch.asked > asked)
            await asyncio.sleep(1)
            assert len(it.passes) == seen

    run(main())


def test_a_commit_that_cannot_be_applied_is_told_once_and_what_was_applied_is_kept_up() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            good = it.snapshots.now.head
            bad = it.push(Model(name="other"), bad=True)
            await it.until(lambda: it.refusals)
            await asyncio.sleep(3 * RESYNC)
            assert [event.commit for event in it.refusals] == [bad]
            assert it.refusals[0].problems == ("nonsense in 2: write sense",)
            now = it.snapshots.now
            assert now.last_pass is not None
            assert (now.last_pass.ended, now.last_pass.code, now.last_pass.commit) == (INVALID, 1, good)
            assert "is refused" in now.last_pass.sentence
            assert serving(it) == {"chat"}
            # Somebody stops a replica by hand: it is started again, as the commit before asks.
            agent = it.world.agents["gpu01"]
            agent.shards.clear()
            it.world.machines["gpu01"].break_lines()
            await it.until(lambda: [shard.state for shard in agent.shards.values()] == ["ready"], within=60)
            new = it.push(Model(name="other"))
            await it.until(lambda: serving(it) == {"other"}, within=60)
            await it.rests()
            assert it.snapshots.now.applied is not None
            assert it.snapshots.now.applied.commit == new
            assert it.passes[-1].code == 0

    run(main())


def test_a_commit_that_is_pushed_a_while_after_it_was_made_is_applied_soon_after() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            it.branch.is_pushed = False
            new = it.push(Model(), Model(name="embed"))
            await it.until(lambda: it.refusals)
            assert "is not pushed to any remote" in it.refusals[0].problems[0]
            await asyncio.sleep(20)
            it.branch.is_pushed = True
            await it.until(lambda: "embed" in serving(it), within=35)
            assert [event.commit for event in it.refusals] == [new]

    run(main())


class _Denied(MemoryRecordStore):
    """A state branch that the controller may not write any more."""

    denied = False

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        if self.denied:
            raise RecordError("pushing the record: this controller may not write llmgw/state")
        return await super().write(record, after=after, message=message, plan=plan)


def test_a_record_that_may_not_be_written_is_the_fault_of_no_commit() -> None:
    async def main() -> None:
        world, store = World(), _Denied()
        world.store = store
        branch = Moody(("gpu01",), Model())
        world.branch = branch
        it = Looped(world, branch)
        async with looping(it):
            await it.rests()
            store.denied = True
            new = it.push(Model(), Model(name="embed"))
            await it.until(lambda: it.passes[-1].ended == ERROR)
            last = it.passes[-1]
            assert (last.commit, last.code) == (new, 1)
            assert last.errors == ("pushing the record: this controller may not write llmgw/state",)
            assert not it.refusals
            store.denied = False
            await it.until(lambda: it.passes[-1].ended == "accepted", within=LONGEST_PAUSE)

    run(main())


def test_the_first_commit_may_be_one_that_cannot_be_applied() -> None:
    async def main() -> None:
        async with looped() as it:
            it.branch.bad.add(it.branch.tip)
            await it.until(lambda: it.refusals)
            await asyncio.sleep(2 * RESYNC)
            assert len(it.refusals) == 1
            assert 1 <= len(it.passes) <= 4
            it.push(Model())
            await it.until(lambda: serving(it) == {"chat"})

    run(main())


def test_a_newer_commit_supersedes_the_pass_at_work_at_the_next_step() -> None:
    async def main() -> None:
        async with looped(ready=False) as it:
            await it.until(lambda: it.world.agents["gpu01"].shards)
            it.world.agents["gpu01"].become("ready")
            await it.rests()
            it.world.machines["gpu01"].delay = 5.0  # each answer takes its time
            it.push(Model(), Model(name="embed"))
            await it.until(
                lambda: any("embed" in e.sentence for e in it.events if isinstance(e, PassBegan)), within=90
            )
            it.push(Model(), Model(name="other"))
            await it.until(lambda: any(last.ended == "superseded" for last in it.passes), within=120)
            it.world.machines["gpu01"].delay = 0.0
            it.world.agents["gpu01"].ready_at_once = True
            it.world.agents["gpu01"].become("ready")
            await it.until(lambda: serving(it) == {"chat", "other"}, within=200)

    run(main())


def test_a_commit_that_comes_while_a_pass_is_being_planned_supersedes_it_before_much_is_done() -> None:
    async def main() -> None:
        async with looped(ready=False) as it:
            await it.until(lambda: it.world.agents["gpu01"].shards)
            it.world.agents["gpu01"].become("ready")
            await it.rests()
            it.world.machines["gpu01"].delay = 5.0
            it.push(Model(), Model(name="embed"))
            await asyncio.sleep(2)  # it asks the node
            it.push(Model(), Model(name="other"))
            await it.until(lambda: any(last.ended == "superseded" for last in it.passes), within=120)

    run(main())


# ---- nodes -----------------------------------------------------------------------------------------------


def test_what_becomes_of_an_engine_leads_to_a_pass_at_once() -> None:
    async def main() -> None:
        async with looped(ready=False) as it:
            agent = it.world.agents["gpu01"]
            await it.until(lambda: agent.shards and agent.watchers)
            await it.rests(seconds=14)
            agent.become("ready")
            assert await it.until(lambda: serving(it) == {"chat"}) < 1
            await it.rests()
            seen = len(it.passes)
            name = next(iter(agent.shards))
            agent._set(name, "failed", error="it ended")
            assert await it.until(lambda: len(it.passes) > seen) < 1
            assert "failed" in it.passes[seen].why

    run(main())


def test_a_line_that_breaks_is_opened_again_and_what_happened_meanwhile_is_seen() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            agent, machine = it.world.agents["gpu01"], it.world.machines["gpu01"]
            machine.go_down()
            await it.until(lambda: it.snapshots.now.status and it.snapshots.now.status.nodes[0].reach != "ok")
            await asyncio.sleep(100)
            agent.shards.clear()
            machine.come_back()
            await it.until(lambda: [it.state for it in agent.shards.values()] == ["ready"], within=32)
            assert len(agent.watchers) == 1

    run(main())


class Hangs:
    """A transport to a machine that swallows everything, as behind a dead switch."""

    def __init__(self, world: World) -> None:
        self._transport = world.transport
        self.dead: set[str] = set()
        self.tries = 0

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        if node.name in self.dead:
            self.tries += 1
            await asyncio.sleep(10)
            raise unreachable()
        return await self._transport.connect(node, fleet=fleet)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def test_a_node_that_swallows_everything_does_not_hold_up_the_commits_for_others() -> None:
    async def main() -> None:
        world = World(Model(), nodes=("gpu01", "gpu02"))
        it = _over(world)
        hangs = Hangs(world)
        world.transport = hangs  # type: ignore[assignment] # stands in front of it
        async with looping(it):
            await it.rests()
            hangs.dead.add("gpu02")
            world.machines["gpu02"].break_lines()
            await it.until(lambda: _reach(it, "gpu02") == "unreachable", within=40)
            await it.rests(seconds=30)
            it.push(Model(), Model(name="embed"))
            assert await it.until(lambda: "embed" in serving(it)) < 1
            tries = hangs.tries
            await asyncio.sleep(400)
            assert hangs.tries - tries <= 16  # each takes 10 s, and is not tried at once again
            hangs.dead.clear()
            await it.until(lambda: _reach(it, "gpu02") == "ok", within=45)

    run(main())


def _over(world: World) -> Looped:
    branch = Moody(tuple(world.agents), *world.branch.commits[-1])
    world.branch = branch
    for agent in world.agents.values():
        agent.ready_at_once = True
    return Looped(world, branch)


def _reach(it: Looped, name: str) -> str:
    status = it.snapshots.now.status
    return next((row.reach for row in status.nodes if row.name == name), "") if status else ""


def test_a_machine_that_comes_back_without_its_agent_is_set_up_as_soon_as_it_answers() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            machine = it.world.machines["gpu01"]
            machine.go_down()
            await it.until(lambda: _reach(it, "gpu01") == "unreachable", within=40)
            await asyncio.sleep(100)
            machine.replace_agent(None)
            machine.come_back()
            await it.until(lambda: machine.service is not None, within=32)

    run(main())


# ---- trouble ---------------------------------------------------------------------------------------------


def test_a_repository_out_of_reach_is_told_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="llmgw.serve")

    async def main() -> None:
        async with looped() as it:
            await it.rests()
            seen = len(it.passes)
            it.branch.trouble = unreachable()
            await asyncio.sleep(2 * RESYNC)
            assert "does not answer" in it.snapshots.now.source_error
            assert len(it.passes) - seen <= 4  # the nodes are kept as the newest commit that is known asks
            assert it.passes[-1].code == 0
            it.branch.trouble = None
            it.push(Model(), Model(name="embed"))
            await it.until(lambda: "embed" in serving(it), within=40)
            assert it.snapshots.now.source_error == ""

    run(main())
    told = [record.getMessage() for record in caplog.records]
    assert sum("does not answer" in text for text in told) == 1
    assert sum("answers again" in text for text in told) == 1


def test_passes_that_fail_come_ever_more_slowly_and_never_end(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            broken: list[Exception] = [RuntimeError("a bug"), unreachable()]
            store, read = it.world.store, it.world.store.read

            async def fails() -> Stored:
                raise broken[0]

            store.read = fails  # type: ignore[method-assign] # the store is a fake of ours
            for error in broken:
                broken[0] = error
                seen = len(it.passes)
                it.hints.hint("commit", "something")
                await asyncio.sleep(600)
                made = len(it.passes) - seen
                assert 600 / LONGEST_PAUSE <= made <= 600 / LONGEST_PAUSE * 2 + 8
                assert it.passes[-1].ended == "error"
                assert str(error) in it.passes[-1].sentence
            store.read = read  # type: ignore[method-assign] # as it was
            await it.until(lambda: it.passes[-1].code == 0, within=LONGEST_PAUSE + 1)

    run(main())


def test_what_nodes_tell_does_not_hurry_passes_that_fail() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()

            async def fails() -> Stored:
                raise unreachable()

            it.world.store.read = fails  # type: ignore[method-assign] # the store is a fake of ours
            await asyncio.sleep(900)
            seen = len(it.passes)
            for _ in range(300):
                it.hints.hint("watch", "node gpu01: something")
                await asyncio.sleep(1)
            assert len(it.passes) - seen <= 12

    run(main())


def test_while_somebody_else_applies_it_waits_and_goes_on_when_they_have_ended() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            fleet = it.world.fleet("bob@laptop")
            stored = await it.world.store.read()
            assert stored.record is not None
            assert fleet.holder == "bob@laptop"
            read = it.world.store.read

            async def held() -> Stored:
                raise HeldError("bob@laptop is applying")

            it.world.store.read = held  # type: ignore[method-assign] # the store is a fake of ours
            it.push(Model(), Model(name="embed"))
            await it.until(lambda: it.passes[-1].ended == HELD)
            await asyncio.sleep(60)
            assert it.passes[-1].code == 4
            it.world.store.read = read  # type: ignore[method-assign] # as it was
            await it.until(lambda: "embed" in serving(it), within=12)

    run(main())


def test_an_observer_that_breaks_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def told(self, event: Event) -> None:
            raise RuntimeError(f"can't take {type(event).__name__}")

    async def main() -> None:
        world = World()
        it = _over(world)
        it.told = Broken().told  # type: ignore[method-assign] # the first of the observers
        async with looping(it):
            await it.until(lambda: serving(it) == {"chat"})

    run(main())
    assert "telling PassEnded" in caplog.text


# ---- the end ---------------------------------------------------------------------------------------------


def test_stopped_in_the_middle_of_a_pass_commands_in_flight_finish_and_the_outcome_is_written() -> None:
    async def main() -> None:
        async with looped(ready=False) as it:
            agent = it.world.agents["gpu01"]
            await it.until(lambda: agent.shards)
            agent.become("ready")
            await it.rests()
            it.world.machines["gpu01"].delay = 5.0
            it.push(Model(), Model(name="embed"))
            await it.until(
                lambda: any("embed" in e.sentence for e in it.events if isinstance(e, PassBegan)), within=60
            )
            it.stop.now(Outcome.INTERRUPTED, "it was interrupted")
            await it.until(lambda: it.snapshots.now.stopping, within=60)
        record = (await it.world.store.read()).record
        assert record is not None
        assert record.last_pass is not None
        assert record.last_pass.outcome is Outcome.INTERRUPTED
        assert record.last_pass.ended is not None

    run(main())


def test_stopped_while_it_only_looks_it_does_not_wait_for_who_does_not_answer() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            it.world.machines["gpu01"].delay = observe.NODE_TIMEOUT
            it.hints.hint("commit", "something")
            await asyncio.sleep(1)
            since = it.elapsed
            it.stop.now(Outcome.INTERRUPTED, "it was interrupted")
            await it.until(lambda: it.snapshots.now.stopping, within=STOP_WITHIN + 1)
            assert it.elapsed - since >= STOP_WITHIN

    run(main())


def test_stopped_while_it_waits_it_ends_at_once() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            it.stop.now(Outcome.INTERRUPTED, "it was interrupted")
            assert await it.until(lambda: it.snapshots.now.stopping) < 0.1

    run(main())


def test_an_agent_that_is_not_there_yet_is_set_up_and_then_watched() -> None:
    async def main() -> None:
        world = World(agents=False)
        it = _over(world)
        noted = Alerts(it)
        it.told = noted.told  # type: ignore[method-assign] # the first of the observers
        async with looping(it):
            await it.until(lambda: serving(it) == {"chat"}, within=60)
            assert noted.alerts == [[]] * len(noted.alerts), "a machine that was just set up has lost nothing"
            agent: PretendAgent = world.agents["gpu01"]
            assert await it.until(lambda: len(agent.watchers) == 1) < 5

    run(main())


class Alerts:
    """What those who are told of a pass see beside it."""

    def __init__(self, it: Looped) -> None:
        self._it = it
        self.alerts: list[list[str]] = []

    def told(self, event: Event) -> None:
        known = self._it.snapshots.now.status
        if isinstance(event, PassEnded) and known is not None:
            self.alerts.append([alert.id for alert in known.alerts])


def test_a_force_push_to_other_history_is_applied_and_one_to_older_history_is_not() -> None:
    async def main() -> None:
        async with looped() as it:
            await it.rests()
            it.push(Model(), Model(name="embed"))
            await it.until(lambda: "embed" in serving(it))
            await it.rests()
            applied = it.snapshots.now.applied
            del it.branch.commits[-1]  # back to the commit before
            it.moved.set()
            await it.until(lambda: it.snapshots.now.head == Commit(f"{1:040x}"))
            await it.rests()
            assert it.snapshots.now.applied == applied
            assert it.passes[-1].code in (1, 6)
            assert serving(it) == {"chat", "embed"}

    run(main())
