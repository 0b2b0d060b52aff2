"""A record that was lost, rebuilt from what the agents say."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from llmgw.controller.passes.links import Links
from llmgw.controller.passes.recover import Before, Recovered, recover
from llmgw.controller.repo.records import MemoryRecordStore, Stored
from llmgw.core.record import custody
from llmgw.core.record.rebuilding import rebuilt
from llmgw.model.ids import FleetId
from llmgw.model.problems import StalledError
from llmgw.model.record import Outcome, Record
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from tests.controller.passes.pretend import Model, World
from tests.core.builders import FLEET, KEY, NOW, NodeState, desired, facts, model, node, profile
from tests.core.fleets import fleet


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def recovered(world: World, *, before: Before | None = None, **how: Any) -> Recovered:
    links = Links({"local": world.transport})
    try:
        return await recover(world.fleet(), links, commit=None, before=before or Before(), **how)
    finally:
        await links.close()


async def lost(*models: Model, **how: Any) -> World:
    """A fleet that runs, whose state branch is gone."""
    world = World(*models, **how)
    await world.settle()
    world.store = MemoryRecordStore()
    return world


def test_the_next_plan_has_nothing_to_do() -> None:
    async def main() -> None:
        world = await lost(Model(replicas=2))
        found = await recovered(world)
        assert found.record.fleet == world.agents["gpu01"].fleet
        assert found.record.serial == 2, "the agents' highest serial and one more"
        assert not found.left_alone
        assert [it.state for it in found.record.endpoints] == ["ready", "ready"]
        result = await world.apply()
        assert not result.plan.commands
        assert not result.plan.changes

    run(main())


def test_placement_numbers_go_on_where_they_were() -> None:
    async def main() -> None:
        world = await lost()
        await recovered(world)
        world.branch.commit_models(Model(args=("--token-delay", "1")))
        await world.settle()
        (shard,) = [name for name, state in world.states().items() if state == "ready"]
        assert shard.endswith("-0.2-r0")

    run(main())


def test_it_is_told_on_the_state_branch() -> None:
    async def main() -> None:
        world = await lost()
        await recovered(world)
        (entry,) = await world.store.history()
        assert entry.subject == "Rebuild the record from the agents: 1 replica on 1 node"
        assert dict(entry.trailers)["Llmgw-Outcome"] == Outcome.RECOVERED.value

    run(main())


def test_what_runs_and_stands_in_no_manifest_is_told_and_left_alone() -> None:
    async def main() -> None:
        world = World(Model(), Model(name="code"))
        await world.settle()
        world.store = MemoryRecordStore()
        world.branch.commit_models(Model())
        found = await recovered(world)
        assert len(found.left_alone) == 1
        assert "no model code in the manifests" in found.left_alone[0]
        await world.settle()
        assert list(world.states().values()) == ["ready", "ready"]

    run(main())


def test_a_spec_that_changed_meanwhile_is_replaced_by_the_next_apply() -> None:
    async def main() -> None:
        world = await lost()
        world.branch.commit_models(Model(args=("--token-delay", "1")))
        await recovered(world)
        result = await world.apply()
        assert [change.keyword for change in result.plan.changes if change.ordinal is not None]
        assert "start" in {method for method, _ in world.agents["gpu01"].commands[3:]}

    run(main())


def test_a_gang_of_which_a_rank_is_not_seen_is_left_alone_until_it_is() -> None:
    wanted = desired([node("gpu01"), node("gpu02")], [model("chat", profile(nodes=2))])
    pair = fleet(wanted, [NodeState(name, facts(name)) for name in ("gpu01", "gpu02")])
    pair.settle()
    record, left = rebuilt(wanted, pair.observe(), key_id=KEY, fleet=FLEET)
    (replica,) = record.replicas.values()
    assert ([rank.node for rank in replica.ranks], left) == (["gpu01", "gpu02"], ())
    assert [it.address for it in record.endpoints] == [wanted.nodes["gpu01"].address]
    pair.nodes["gpu02"].reach = Reach.UNREACHABLE
    record, left = rebuilt(wanted, pair.observe(), key_id=KEY, fleet=FLEET)
    assert not record.replicas
    assert "only 1 of its 2 ranks are seen" in left[0]


def test_a_node_that_is_silent_is_told() -> None:
    async def main() -> None:
        world = await lost(Model(replicas=2, gpus=2), nodes=("gpu01", "gpu02"))
        world.machines["gpu02"].go_down()
        found = await recovered(world)
        assert set(found.unreachable) == {"gpu02"}
        assert len(found.record.replicas) == 1

    run(main())


def test_nodes_of_two_fleets_are_refused() -> None:
    async def main() -> None:
        world = await lost(Model(replicas=2, gpus=2), nodes=("gpu01", "gpu02"))
        world.agents["gpu02"].fleet = FleetId("fleet-other")
        with pytest.raises(StalledError, match="different fleets"):
            await recovered(world)
        assert not await world.store.history()

    run(main())


def test_without_the_secret_there_is_no_recovery() -> None:
    async def main() -> None:
        world = await lost()
        world.secret.secret = None
        with pytest.raises(StalledError, match="secret is not on this machine"):
            await recovered(world)

    run(main())


def test_what_was_forgotten_is_left_out_by_name() -> None:
    """No agent knows it."""

    async def main() -> None:
        world = await lost(Model(replicas=2))
        found = await recovered(world, forget=["model/chat/1"])
        (name,) = found.record.forgotten
        assert name.endswith("-1.1")
        assert len(found.record.replicas) == len(found.record.endpoints) == 1
        world.branch.commit_models(Model())
        await world.settle()
        assert list(world.states().values()) == ["ready", "ready"], "no plan touches it"

    run(main())


def test_a_name_that_runs_nowhere_is_not_left_out() -> None:
    async def main() -> None:
        world = await lost()
        with pytest.raises(StalledError, match="nothing that is managed here is called model/code"):
            await recovered(world, forget=["model/code"])
        assert not await world.store.history()

    run(main())


def test_what_is_not_agreed_to_is_not_written() -> None:
    async def main() -> None:
        world = await lost()

        def refuse(found: Recovered) -> None:
            assert len(found.record.replicas) == 1
            raise StalledError("no")

        with pytest.raises(StalledError, match="no"):
            await recovered(world, approve=refuse)
        assert not await world.store.history()

    run(main())


def test_what_the_branch_held_when_it_was_last_read_still_counts() -> None:
    async def main() -> None:
        world = World(Model(replicas=2))
        await world.settle()
        last = await record_of(world)
        going = [name for name in last.replicas if name.endswith("-1.1")]
        last = custody.forgotten(last, going, by="ann@desk", at=NOW, why="handed over")
        world.store = MemoryRecordStore()
        found = await recovered(world, before=Before(record=last))
        assert list(found.record.forgotten) == going
        assert found.record.serial == last.serial + 1
        assert len(found.record.replicas) == 1

    run(main())


# ---- set back ----------------------------------------------------------------------------------------


async def set_back(world: World, old: Record) -> Stored:
    """As if somebody had pushed an older state of the branch by force."""
    await world.store.write(old, after=(await world.store.read()).version, message="Set back\n")
    return await world.store.read()


async def recovered_over(world: World, stored: Stored) -> Recovered:
    return await recovered(world, before=Before(version=stored.version, record=stored.record))


async def record_of(world: World) -> Record:
    record = (await world.store.read()).record
    assert record is not None
    return record


def test_a_record_that_was_set_back_by_many_versions_is_rebuilt_above_what_agents_obey() -> None:
    async def main() -> None:
        world = World(Model())
        await world.settle()
        old = await record_of(world)
        for delay in ("1", "2", "3"):
            world.branch.commit_models(Model(args=("--token-delay", delay)), Model(name="code"))
            await world.settle()
        newest = await record_of(world)
        before = world.states()
        found = await recovered_over(world, await set_back(world, old))
        assert found.record.serial > newest.serial
        assert set(found.record.replicas) == set(newest.replicas)
        assert found.record.models["chat"].placements == newest.models["chat"].placements
        result = await world.apply()
        assert not result.plan.commands
        assert world.states() == before

    run(main())


def test_what_only_the_older_record_knows_stands_as_it_was() -> None:
    async def main() -> None:
        world = World(Model(), Model(name="code", protect=True))
        await world.settle()
        old = await record_of(world)
        world.branch.commit_models(Model(args=("--token-delay", "1")))
        await world.settle()
        found = await recovered_over(world, await set_back(world, old))
        assert not found.left_alone
        assert found.record.models["code"].protect
        result = await world.apply()
        assert [(change.model, change.keyword) for change in result.plan.blocked] == [("code", "protected")]

    run(main())


def test_what_was_forgotten_stays_so() -> None:
    async def main() -> None:
        world = World(Model())
        await world.settle()
        old = await record_of(world)
        left = custody.forgotten(old, list(old.replicas), by="ann", at=NOW, why="")
        ahead = replace(left, serial=old.serial - 1)
        found = await recovered_over(world, await set_back(world, ahead))
        assert not found.record.replicas
        assert set(found.record.forgotten) == set(old.replicas)

    run(main())


def test_a_record_that_is_whole_and_new_is_not_written_anew() -> None:
    async def main() -> None:
        world = World(Model())
        await world.settle()
        stored = await world.store.read()
        with pytest.raises(StalledError, match="no agent obeys a newer one"):
            await recovered_over(world, stored)
        assert (await world.store.read()).version == stored.version

    run(main())
