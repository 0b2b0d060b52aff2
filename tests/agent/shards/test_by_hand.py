"""What a person does to a shard on its node, and what the machine's own people forbid: the real shards on a pretended node."""

from dataclasses import dataclass

import pytest

from llmgw.agent.fakes import Script
from llmgw.agent.seams import Anything, JournalEvent
from llmgw.model.facts import Gpu
from llmgw.model.ids import ShardId
from llmgw.model.launch import LaunchSpec
from llmgw.model.problems import AgentError
from llmgw.wire.messages import CONFLICT, NOT_FOUND, POLICY, DrainParams, ManualParams
from tests.agent.shards.rig import COMMAND, Rig, on_node, spec, start, stop


@dataclass
class Forbidding(Anything):
    """Forbids every start with one reason; empty: allows it."""

    why: str = ""
    kept: int = 0

    def start(self, _: LaunchSpec, __: tuple[Gpu, ...]) -> str:
        return self.why

    def memory_kept(self) -> int:
        return self.kept


def by_hand(verb: str, launch: LaunchSpec) -> ManualParams:
    return ManualParams(verb=verb, shard=launch.shard, by="ann")  # type: ignore[arg-type] # one of the three


def manual(rig: Rig) -> list[str]:
    return [event.text for event in rig.events if isinstance(event, JournalEvent) and event.kind == "manual"]


def test_stopped_by_hand_it_stays_stopped_over_a_restart_of_the_agent() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        await shards.manual(by_hand("stop", launch))
        report = await rig.reaches(launch, "stopped", says="by hand by ann")
        await shards.close()
        await rig.agent()
        again = rig.report(launch)
        assert again.state == "stopped"
        assert again.by_hand == report.by_hand
        assert again.by_hand is not None
        assert (again.by_hand.verb, again.by_hand.by) == ("stopped", "ann")
        assert manual(rig) == ["stopped by hand by ann"]
        assert len(rig.node.starts) == 1

    on_node(story)


@pytest.mark.parametrize("command", ["start", "stop", "drain"])
def test_what_the_controller_commands_next_counts_instead(command: str) -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        await shards.manual(by_hand("stop", launch))
        await rig.reaches(launch, "stopped")
        await shards.manual(by_hand("start", launch))
        await rig.reaches(launch, "ready")
        assert rig.report(launch).by_hand is not None
        if command == "start":
            await shards.start(start(launch))
        elif command == "stop":
            await shards.stop(stop(launch))
        else:
            await shards.drain(DrainParams(command=COMMAND, shard=launch.shard, timeout=1))
        assert rig.report(launch).by_hand is None

    on_node(story)


def test_started_by_hand_it_runs_as_it_was_ordered_with_its_secrets() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch, key="k1"))
        await rig.reaches(launch, "ready")
        await shards.manual(by_hand("drain", launch))
        assert rig.report(launch).by_hand is not None
        await rig.reaches(launch, "stopped")
        await shards.close()
        shards = await rig.agent()
        await shards.manual(by_hand("start", launch))
        await rig.reaches(launch, "ready")
        assert [names for _, *names in rig.node.starts] == [[launch.shard, "engine"]] * 2
        assert "k1" in rig.learnt[1:]
        assert rig.report(launch).lost == ""
        assert manual(rig) == ["drained by hand by ann", "started by hand by ann"]

    on_node(story)


def test_by_hand_nothing_is_started_twice_or_out_of_nothing() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        with pytest.raises(AgentError, match="there is no such shard") as missing:
            await shards.manual(by_hand("start", launch))
        assert missing.value.code == NOT_FOUND
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        with pytest.raises(AgentError, match=r"by hand, starting shard .*: it is ready") as live:
            await shards.manual(by_hand("start", launch))
        assert live.value.code == CONFLICT
        assert rig.report(launch).by_hand is None

    on_node(story)


def test_a_start_that_the_machine_forbids_leaves_no_order() -> None:
    async def story(rig: Rig) -> None:
        rig.rules = Forbidding(why="agent.yaml:2: not here")
        shards = await rig.agent()
        launch = spec()
        with pytest.raises(AgentError, match=r"agent\.yaml:2: not here") as refused:
            await shards.start(start(launch))
        assert (refused.value.code, refused.value.after) == (POLICY, None)
        assert shards.reports() == ()
        assert rig.node.starts == []

    on_node(story)


def test_a_rule_that_comes_later_leaves_what_runs_and_holds_its_next_start_back() -> None:
    lives = iter([Script(exit_after=30), Script()])

    async def story(rig: Rig) -> None:
        rules = rig.rules = Forbidding()
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        rules.why = "agent.yaml:2: not here"
        report = await rig.reaches(launch, "backoff", says="agent.yaml:2", within=200)
        assert len(rig.node.starts) == 1
        assert report.last_error.startswith("mismatch: agent.yaml:2")
        rules.why = ""
        await rig.reaches(launch, "ready", within=400)

    on_node(story, behave=lambda _: next(lives))


def test_memory_kept_for_people_is_not_claimed() -> None:
    gib = 1024**3

    async def story(rig: Rig) -> None:
        rig.rules = Forbidding(kept=6 * gib)
        shards = await rig.agent()
        launch = spec()
        claims = launch.claims.__class__(ports=launch.claims.ports, memory=3 * gib)
        with pytest.raises(AgentError, match="do not fit"):
            await shards.start(start(spec(claims=claims)))

    on_node(story, memory=8 * gib)


def test_for_one_command_without_an_agent_the_others_are_only_known() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        one, other = spec(model="a"), spec(model="b", port=18001)
        for launch in (one, other):
            await shards.start(start(launch))
            await rig.reaches(launch, "ready")
        await shards.close()
        shards = await rig.agent(attending=one.shard)
        await shards.manual(by_hand("stop", one))
        await rig.reaches(one, "stopped")
        assert rig.report(other).state == "ready"
        with pytest.raises(AgentError, match="port 18001 is claimed by"):
            await shards.start(start(spec(model="c", port=18001)))
        assert len(rig.node.starts) == 2

    on_node(story)


@pytest.mark.parametrize("harm", ["broken", "gone"])
def test_without_an_agent_a_shard_is_stopped_whose_order_is_lost(harm: str) -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        await shards.close()
        file = f"shards/{launch.shard}.json"
        rig.disk.files[file] = b'{"spec": '
        if harm == "gone":
            del rig.disk.files[file]
        shards = await rig.agent(attending=launch.shard)
        assert rig.report(launch).state == "failed"
        await shards.manual(by_hand("stop", launch))
        await rig.reaches(launch, "stopped")
        assert not rig.node.living()

    on_node(story)


def test_an_unknown_shard_is_not_attended() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent(attending=ShardId("x-1f0c9a2b-0.1-r0"))
        assert shards.reports() == ()

    on_node(story)
