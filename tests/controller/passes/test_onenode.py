"""Passes about one node that a person asks for, over pretended agents: by the same record as an apply, and nothing else changed."""

import asyncio
from typing import Any

import pytest

from llmgw.controller.passes.links import Links
from llmgw.controller.passes.onenode import (
    bootstrapping,
    demands,
    evicting,
    forgetting,
    in_the_way,
    last_of_protected,
    replicas_on,
    strays,
)
from llmgw.controller.passes.prepare import Prepared, Wish, prepare
from llmgw.model.ids import ReplicaId, ShardId
from llmgw.model.manifest import PlacementRules
from llmgw.model.plan import StepKind, StepOutcome
from llmgw.model.problems import StalledError
from llmgw.model.record import Outcome, Record
from llmgw.model.struct import replace
from tests.controller.passes.pretend import Model, World

TWO = ("gpu01", "gpu02")


async def prepared(world: World, **wish: Any) -> Prepared:
    links = Links({"local": world.transport})
    try:
        return await prepare(world.fleet(), Wish(**wish), links)
    finally:
        await links.close()


async def record(world: World) -> Record:
    found = (await world.store.read()).record
    assert found is not None
    return found


def test_a_bootstrap_by_hand_is_recorded_and_counts_no_commit_as_applied() -> None:
    async def main() -> None:
        world = World(agents=False)
        result = await world.apply(instead=bootstrapping("gpu01", reason="asked for by hand"))
        assert result.done == ("bootstrap gpu01",)
        kept = await record(world)
        assert kept.serial == 1
        assert (kept.commit, dict(kept.models), dict(kept.replicas)) == (None, {}, {})
        assert set(kept.nodes) == {"gpu01"}
        assert kept.last_pass is not None
        assert kept.last_pass.outcome is Outcome.DONE
        first = await world.apply()
        assert [change.keyword for change in first.plan.changes if change.model] == ["new-model"]

    asyncio.run(main())


def test_a_bootstrap_by_hand_leaves_what_was_committed_since_to_the_next_apply() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        before = await record(world)
        world.branch.commit_models(Model(replicas=2, aliases=("fast",)))
        await world.apply(instead=bootstrapping("gpu01", reason="asked for"))
        after = await record(world)
        assert (after.commit, after.models, after.replicas) == (before.commit, before.models, before.replicas)
        assert after.serial == before.serial + 1
        result = await world.apply()
        assert {"replicas 1 -> 2"} <= {change.reason for change in result.plan.changes}

    asyncio.run(main())


def test_a_node_that_is_not_in_git_is_not_set_up() -> None:
    async def main() -> None:
        with pytest.raises(StalledError, match="not in the manifests"):
            await World().apply(instead=bootstrapping("gpu09", reason="x"))

    asyncio.run(main())


def test_a_drained_node_is_emptied_one_ready_successor_after_the_other() -> None:
    async def main() -> None:
        world = World(Model(replicas=2), nodes=TWO)
        await world.settle()
        here = replicas_on(await record(world), "gpu01")
        assert here
        for _ in range(10):
            await world.apply(wish=Wish(drained="gpu01"))
            for agent in world.agents.values():
                if any(it.state == "loading" for it in agent.shards.values()):
                    agent.become("ready")
        kept = await record(world)
        assert not replicas_on(kept, "gpu01")
        assert len(replicas_on(kept, "gpu02")) == 2
        assert [method for method, _ in world.agents["gpu01"].commands if method in ("drain", "stop")][
            :1
        ] == ["drain"]

    asyncio.run(main())


def test_what_keeps_a_node_from_being_emptied_is_told_with_its_reason() -> None:
    async def main() -> None:
        world = World(Model(replicas=4), nodes=TWO)  # 4 GPUs in all: every one is taken
        await world.settle()
        found = await prepared(world, drained="gpu01")
        told = in_the_way(found.plan, found.record, "gpu01")
        assert told
        assert all("no room" in line or "room for it" in line or "turn" in line for line in told), told
        assert not in_the_way((await prepared(world)).plan, found.record, "gpu01")

    asyncio.run(main())


def test_eviction_stops_everything_there_at_once_and_the_next_pass_starts_it_elsewhere() -> None:
    async def main() -> None:
        world = World(Model(replicas=2), nodes=TWO)
        await world.settle()
        here = replicas_on(await record(world), "gpu01")
        wish = Wish(drained="gpu01")
        result = await world.apply(wish=wish, instead=evicting("gpu01"))
        assert {step.kind for step in result.plan.steps} == {StepKind.STOP}
        assert all(it.outcome is StepOutcome.DONE for it in result.results.values())
        assert "drain" not in [method for method, _ in world.agents["gpu01"].commands]
        again = await world.apply(wish=wish)
        started = {step.node for step in again.plan.steps if step.kind is StepKind.START}
        assert started == {"gpu02"}
        kept = await record(world)
        assert not replicas_on(kept, "gpu01")
        assert len(kept.replicas) == 2
        assert {it.id for it in here}.isdisjoint(kept.replicas)

    asyncio.run(main())


def test_eviction_promises_to_come_back_only_what_git_asks_for() -> None:
    async def main() -> None:
        world = World(Model(replicas=2), nodes=TWO)
        await world.settle()
        ready = await prepared(world, drained="gpu01")
        told = [change.outage for change in evicting("gpu01")(ready).changes]
        assert told[0] == "requests in flight fail; it comes back elsewhere if there is room"
        without = replace(ready, desired=replace(ready.desired, models={}))
        told = [change.outage for change in evicting("gpu01")(without).changes]
        assert told[0] == "requests in flight fail; Git does not ask for it any more"

    asyncio.run(main())


def test_evicting_twice_commands_nothing_twice() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        await world.apply(wish=Wish(drained="gpu01"), instead=evicting("gpu01"))
        result = await world.apply(wish=Wish(drained="gpu01"), instead=evicting("gpu01"))
        assert not result.plan.commands

    asyncio.run(main())


def test_the_last_ready_replica_of_a_protected_model_is_seen() -> None:
    async def main() -> None:
        world = World(Model(protect=True), nodes=TWO)
        await world.settle()
        seen = await prepared(world)
        (replica,) = seen.record.replicas.values()
        there = replica.ranks[0].node
        other = next(name for name in TWO if name != there)
        assert last_of_protected(seen.record, seen.desired, seen.observed, there) == ("chat",)
        assert last_of_protected(seen.record, seen.desired, seen.observed, other) == ()

    asyncio.run(main())


def test_manifests_that_need_the_node_are_named() -> None:
    async def main() -> None:
        world = World(nodes=TWO)
        desired = (await prepared(world)).desired
        assert demands(desired, "gpu01") == ()
        model = desired.models["chat"]
        pinned = replace(model, spec=replace(model.spec, placement=PlacementRules(nodes=("gpu01",))))
        (told,) = demands(replace(desired, models={"chat": pinned}), "gpu01")
        assert "spec.placement.nodes" in told
        alone = World()
        (told,) = demands((await prepared(alone)).desired, "gpu01")
        assert "the last of pool default" in told
        none = replace(model, spec=replace(model.spec, replicas=0))
        lonely = (await prepared(alone)).desired
        assert demands(replace(lonely, models={"chat": none}), "gpu01") == ()

    asyncio.run(main())


def test_shards_that_no_record_knows_are_seen_and_ended_ones_are_not() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        seen = (await prepared(world)).observed.nodes["gpu01"]
        kept = await record(world)
        assert [shard.shard for shard in strays(seen, replace(kept, replicas={}))] == list(world.states())
        assert strays(seen, kept) == ()
        for shard in world.agents["gpu01"].shards:
            world.agents["gpu01"]._set(shard, "stopped")
        assert strays((await prepared(world)).observed.nodes["gpu01"], replace(kept, replicas={})) == ()

    asyncio.run(main())


def test_eviction_stops_also_what_no_record_knows_and_records_nothing_of_it() -> None:
    async def main() -> None:
        world = World(nodes=TWO)
        await world.settle()
        (replica,) = (await record(world)).replicas.values()
        there = replica.ranks[0].node
        agent = world.agents[there]
        (known,) = agent.shards.values()
        agent.shards["old-00000000-0.1-r0"] = replace(
            known, shard=ShardId("old-00000000-0.1-r0"), replica=ReplicaId("old-00000000-0.1"), model="old"
        )
        await world.apply(wish=Wish(drained=there), instead=evicting(there))
        assert {shard.state for shard in agent.shards.values()} == {"stopped"}
        assert set((await record(world)).replicas) == {replica.id}

    asyncio.run(main())


def test_orders_of_what_has_ended_are_forgotten() -> None:
    async def main() -> None:
        world = World(Model(replicas=1), nodes=TWO)
        await world.settle()
        (replica,) = (await record(world)).replicas.values()
        there = replica.ranks[0].node
        wish = Wish(drained=there)
        await world.apply(wish=wish, instead=evicting(there))
        await world.apply(wish=wish)
        await world.apply(wish=wish, instead=forgetting(there))
        assert not world.agents[there].shards

    asyncio.run(main())
