"""One pass from end to end, over pretended agents: what is commanded, what is recorded, and what happens when it dies."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.prepare import Wish
from llmgw.controller.passes.progress import Silent
from llmgw.controller.repo.records import LostRaceError, MemoryRecordStore
from llmgw.model.ids import Commit, FleetId
from llmgw.model.plan import Plan, StepKind
from llmgw.model.problems import (
    AgentError,
    HeldError,
    LlmgwError,
    RetryError,
    StaleError,
    StalledError,
    UnknownOutcomeError,
)
from llmgw.model.record import Outcome, Record
from llmgw.wire.messages import NO_SPACE
from tests.controller.passes.pretend import SECRET, Branch, Model, World


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_a_first_pass_starts_what_the_commit_asks_for_and_records_intent_and_outcome() -> None:
    async def main() -> None:
        world = World()
        result = await world.apply()
        assert result.outcome is Outcome.ACCEPTED
        assert sorted(world.commands[:2]) == ["fetch", "install"]
        assert world.commands[2:] == ["start"]
        intent, outcome = reversed(await world.store.history())
        assert outcome.subject == "Started 1 replica of chat on gpu01"
        assert dict(outcome.trailers)["Llmgw-Outcome"] == "accepted"
        assert intent.subject == "Start 1 replica of chat on gpu01"
        trailers = dict(intent.trailers)
        assert trailers["Llmgw-Serial"] == "1"
        assert trailers["Llmgw-Manifests"] == world.branch.tip
        assert trailers["Llmgw-Trigger"] == "manual"
        assert trailers["Llmgw-Actor"] == "ann@desk"
        assert "Llmgw-Outcome" not in trailers
        assert world.branch.kept == [world.branch.tip]

    run(main())


def test_the_replica_gets_its_key_and_no_record_holds_it() -> None:
    async def main() -> None:
        world = World()
        await world.apply()
        (secrets,) = world.agents["gpu01"].secrets.values()
        stored = await world.store.read()
        assert len(secrets["key"]) == 64
        assert secrets["key"] not in repr(stored)
        assert SECRET.decode() not in repr(stored)
        assert stored.record is not None
        assert stored.record.key_id == world.key_id

    run(main())


def test_a_machine_that_slept_before_it_acted_looks_and_plans_again() -> None:
    async def main() -> None:
        world = World()
        plans: list[Plan] = []

        def sleeps_once(plan: Plan) -> None:
            plans.append(plan)
            if len(plans) == 1:
                world.clock.advance(31)

        result = await world.apply(approve=sleeps_once)
        assert len(plans) == 2
        assert result.plan.created > plans[0].created
        assert result.outcome is Outcome.ACCEPTED

    run(main())


def test_a_pass_with_nothing_to_do_writes_nothing() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        before = await world.store.read()
        result = await world.apply()
        assert result.outcome is None
        assert not result.plan.commands
        assert (await world.store.read()).version == before.version

    run(main())


def test_what_got_ready_is_published_at_once_with_one_commit_and_no_command() -> None:
    async def main() -> None:
        world = World()
        await world.apply()
        commands, versions = len(world.commands), len(await world.store.history())
        world.agents["gpu01"].become("ready")
        result = await world.apply()
        assert len(world.commands) == commands
        history = await world.store.history()
        assert len(history) == versions + 1
        assert history[0].subject.startswith("chat/0 is ready on gpu01 and published")
        assert [it.state for it in result.record.endpoints] == ["ready"]

    run(main())


def test_who_reads_the_endpoints_hears_that_a_replica_goes_before_it_is_told() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models()
        before, told = len(world.commands), []

        def recorded(record: Record) -> None:
            told.append(([it.state for it in record.endpoints], world.commands[before:]))

        await world.apply(wish=Wish(allow_prune=True), recorded=recorded)
        assert told[0] == (["draining"], [])
        assert "drain" in told[-1][1]

    run(main())


def test_endpoints_that_can_not_be_written_before_the_commands_do_not_keep_them_from_being_sent() -> None:
    async def main() -> None:
        class Listens(Silent):
            lines: ClassVar[list[str]] = []

            def said(self, text: str) -> None:
                self.lines.append(text)

        world = World()
        world.progress = Listens()

        def recorded(record: Record) -> None:
            if record.last_pass is not None and record.last_pass.outcome is None:
                raise StalledError("could not write endpoints.json: No space left on device")

        result = await world.apply(recorded=recorded)
        assert result.outcome is Outcome.ACCEPTED
        assert any("No space left" in line for line in Listens.lines)

    run(main())


def test_a_node_without_an_agent_gets_one_first_and_the_rest_in_the_next_pass() -> None:
    async def main() -> None:
        world = World(agents=False)
        first = await world.apply()
        assert StepKind.BOOTSTRAP in {step.kind for step in first.plan.commands}
        assert world.machines["gpu01"].service is not None
        await world.settle()
        assert world.states() == {next(iter(world.states())): "ready"}

    run(main())


def test_a_node_that_is_down_does_not_hide_the_others() -> None:
    async def main() -> None:
        world = World(Model(replicas=2, gpus=2), nodes=("gpu01", "gpu02"))
        world.machines["gpu02"].go_down()
        result = await world.apply()
        assert "start" in [method for method, _ in world.agents["gpu01"].commands]
        assert result.plan.blocked

    run(main())


def test_a_refused_step_makes_the_pass_partial_and_the_next_one_tries_again() -> None:
    async def main() -> None:
        world = World()
        agent = world.agents["gpu01"]
        agent.refuse["start"] = AgentError("no space left on /data", code=NO_SPACE)
        result = await world.apply()
        assert result.outcome is Outcome.PARTIAL
        assert ["no space left" in error for error in result.errors] == [True]
        assert not result.record.replicas, "what was never started is not recorded as running"
        newest = (await world.store.history())[0]
        assert "not: start 1 replica of chat" in newest.subject
        assert "no space left" in newest.body
        agent.refuse.clear()
        await world.settle()
        assert list(world.states().values()) == ["ready"]

    run(main())


class _Dies(MemoryRecordStore):
    """The controller is killed in the middle: whatever it writes after the intent never arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.writes = 0

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        if self.armed and plan is None:
            raise KilledError
        return await super().write(record, after=after, message=message, plan=plan)


class KilledError(BaseException):
    """What kill -9 looks like from inside."""


def test_a_pass_that_died_before_its_outcome_is_taken_over_and_told() -> None:
    async def main() -> None:
        world = World()
        store = _Dies()
        world.store = store
        store.armed = True
        with pytest.raises(KilledError):
            await world.apply()
        store.armed = False
        stored = await store.read()
        assert stored.pending_plan is not None
        result = await world.apply()  # the same holder: its lock is free, so its process is gone
        assert result.outcome is None, "everything was carried out already"
        subjects = [entry.subject for entry in await store.history()]
        assert subjects[0] == "Take over from serial 1 of ann@desk, which did not finish"
        newest = (await store.history())[0]
        assert dict(newest.trailers)["Llmgw-Outcome"] == "recovered"
        assert "was carried out" in newest.body
        await world.settle()
        assert list(world.states().values()) == ["ready"]
        assert world.commands.count("start") == 1

    run(main())


def test_somebody_elses_live_lease_is_respected_and_named() -> None:
    async def main() -> None:
        world = World()
        store = _Dies()
        world.store = store
        store.armed = True
        with pytest.raises(KilledError):
            await world.apply("ann@desk")
        store.armed = False
        commands = len(world.commands)
        with pytest.raises(HeldError, match="ann@desk is applying"):
            await world.apply("bob@laptop")
        assert len(world.commands) == commands
        world.clock.advance(121)
        result = await world.apply("bob@laptop")
        assert result.record.last_pass is not None
        assert result.record.last_pass.outcome is Outcome.RECOVERED

    run(main())


class _Races(MemoryRecordStore):
    """Somebody else writes just before us, ``times`` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        if self.times and plan is not None:
            self.times -= 1
            raise LostRaceError("somebody else wrote first")
        return await super().write(record, after=after, message=message, plan=plan)


def test_who_loses_the_race_reads_and_plans_again_once() -> None:
    async def main() -> None:
        world = World()
        world.store = _Races(1)
        assert (await world.apply()).outcome is Outcome.ACCEPTED

    run(main())


def test_who_loses_twice_gives_way_and_has_commanded_nothing() -> None:
    async def main() -> None:
        world = World()
        world.store = _Races(2)
        with pytest.raises(HeldError):
            await world.apply()
        assert not world.commands

    run(main())


class _Refuses(MemoryRecordStore):
    def __init__(self, error: LlmgwError) -> None:
        super().__init__()
        self.error = error

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        raise self.error


@pytest.mark.parametrize(
    "error", [StalledError("you may not push"), RetryError("no route to the repository")]
)
def test_an_intent_that_can_not_be_recorded_means_that_nothing_is_commanded(error: LlmgwError) -> None:
    async def main() -> None:
        world = World()
        world.store = _Refuses(error)
        with pytest.raises(type(error), match=str(error)):
            await world.apply()
        assert not world.commands

    run(main())


def test_an_interrupt_before_the_intent_leaves_everything_as_it_was() -> None:
    async def main() -> None:
        world = World()
        halt = Halt()
        halt.now(Outcome.INTERRUPTED, "interrupted")
        result = await world.apply(halt=halt)
        assert result.outcome is Outcome.INTERRUPTED
        assert not world.commands
        assert not await world.store.history()

    run(main())


def test_an_unpushed_commit_is_refused_unless_allowed() -> None:
    async def main() -> None:
        world = World()
        world.branch.is_pushed = False
        with pytest.raises(StalledError, match="--allow-unpushed"):
            await world.apply()
        assert (await world.apply(allow_unpushed=True)).outcome is Outcome.ACCEPTED

    run(main())


def test_who_refuses_the_plan_has_written_nothing() -> None:
    async def main() -> None:
        world = World()

        def refuse(_: Plan) -> None:
            raise StaleError("not what was shown")

        with pytest.raises(StaleError):
            await world.apply(approve=refuse)
        assert not world.commands
        assert not await world.store.history()

    run(main())


def test_another_secret_is_refused_before_anything_is_commanded() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.secret.secret = b"another secret, long enough to be one"
        world.branch.commit_models(Model(replicas=2))
        commands = len(world.commands)
        with pytest.raises(StalledError, match="copy the"):
            await world.apply()
        world.secret.secret = None
        with pytest.raises(StalledError, match="not on this machine"):
            await world.apply()
        assert len(world.commands) == commands

    run(main())


def test_a_fleet_that_lost_its_record_starts_nothing_beside_what_runs() -> None:
    """Also not on a machine that no fleet has yet, which would become another one's."""

    async def main() -> None:
        world = World()
        await world.settle()
        bare = World(nodes=("gpu01", "gpu02"), agents=False)
        bare.transport.nodes["gpu01"] = world.machines["gpu01"]
        commands = len(world.commands)
        with pytest.raises(
            StalledError,
            match=r"chat of these manifests runs on gpu01 already, for fleet fleet-1.*llmgw recover",
        ):
            await bare.apply()
        assert len(world.commands) == commands
        assert bare.agents["gpu02"].fleet is None
        assert not await bare.store.history()

    run(main())


def test_a_machine_of_another_fleet_that_runs_nothing_of_ours_holds_nothing_up() -> None:
    async def main() -> None:
        world = World(nodes=("gpu01", "gpu02"))
        world.agents["gpu01"].fleet = FleetId("fleet-other")
        result = await world.apply()
        assert "belongs to fleet fleet-other" in result.prepared.observed.nodes["gpu01"].error
        assert world.agents["gpu02"].shards

    run(main())


def test_news_are_recorded_by_themselves_but_not_every_minute() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.clock.advance(600)
        world.agents["gpu01"].note("shard-exit", "chat", "exited with 137, restarted")
        before = len(await world.store.history())
        await world.apply()
        newest, *rest = await world.store.history()
        assert len(rest) == before
        assert "exited with 137" in newest.subject
        assert not any(name == "Llmgw-Outcome" for name, _ in newest.trailers)
        await world.apply()
        assert len(await world.store.history()) == before + 1

    run(main())


def test_going_back_behind_the_applied_commit_needs_to_be_allowed() -> None:
    async def main() -> None:
        world = World()
        first = world.branch.tip
        await world.settle()
        world.branch.commit_models(Model(replicas=2))
        await world.settle()
        with pytest.raises(StalledError, match="allow-rollback"):
            await world.apply(wish=Wish(commit=first))
        result = await world.apply(wish=Wish(commit=first, allow_rollback=True))
        assert result.outcome is not None

    run(main())


def test_history_that_was_rewritten_is_applied_and_told() -> None:
    class Rewritten(Branch):
        async def is_ancestor(self, older: Commit, newer: Commit) -> bool:
            return older == newer

    async def main() -> None:
        world = World()
        await world.settle()
        assert not (await world.apply()).plan.warnings
        before = world.branch.tip
        world.branch = Rewritten(world.branch.nodes, Model())
        world.branch.commit_models(Model(replicas=2))
        result = await world.apply()
        (notice,) = result.plan.warnings
        assert notice.text.startswith(f"commit {world.branch.tip[:12]} does not come after {before[:12]}")
        assert result.record.commit == world.branch.tip

    run(main())


def test_an_emptied_fleet_keeps_everything_unless_pruning_is_allowed() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.branch.commit_models()
        result = await world.apply()
        assert result.plan.blocked
        assert not result.plan.commands
        await world.apply(wish=Wish(allow_prune=True))
        assert "stop" in world.commands or "drain" in world.commands

    run(main())


def test_a_lost_answer_to_a_write_is_looked_up_before_anybody_is_commanded() -> None:
    async def main() -> None:
        class Loses(MemoryRecordStore):
            lost = 0

            async def write(
                self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
            ) -> Commit:
                version = await super().write(record, after=after, message=message, plan=plan)
                self.lost += 1
                if self.lost == 1:
                    raise UnknownOutcomeError("the line broke")
                return version

        world = World()
        world.store = Loses()
        result = await world.apply()
        assert result.outcome is Outcome.ACCEPTED
        assert "start" in world.commands
        assert not result.unrecorded

    run(main())


def test_the_lease_ends_two_minutes_after_the_intent() -> None:
    async def main() -> None:
        world = World()
        result = await world.apply()
        passed = result.record.last_pass
        assert passed is not None
        assert passed.lease_until - passed.started == timedelta(seconds=120)

    run(main())
