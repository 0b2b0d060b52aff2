"""Two fleet secrets while one is rotated: which is planned with, which keys are sent and told, and when the old one goes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from llmgw.controller.passes.endpoints import reachable
from llmgw.controller.passes.keyring import drop_unneeded, keyring, needed, planning_key, unfinished
from llmgw.controller.secrets import replica_key
from llmgw.model.ids import FleetId, ReplicaId, key_id
from llmgw.model.problems import StalledError
from llmgw.model.record import Forgotten, Record
from llmgw.model.struct import replace
from tests.controller.passes.pretend import SECRET, START, Model, World

OLD = key_id(SECRET)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def recorded(world: World) -> Record:
    record = (await world.store.read()).record
    assert record is not None
    return record


async def keys_are_true(world: World) -> None:
    """Each published replica is told with the key that its agent was sent for it."""
    record = await recorded(world)
    sent = {shard: told["key"] for agent in world.agents.values() for shard, told in agent.secrets.items()}
    for each in reachable(record, keyring(world.fleet(), record)):
        assert sent[f"{each.endpoint.replica}-r0"] == each.key, each.endpoint


def test_a_rotation_replaces_every_replica_and_each_has_its_own_key_all_the_time() -> None:
    async def main() -> None:
        world = World(Model(name="chat"), Model(name="code"), gpus=4)
        await world.settle()
        new = world.secret.rotate()
        seen = set()
        for _ in range(12):
            await world.apply()
            await keys_are_true(world)
            record = await recorded(world)
            seen.add(frozenset(it.spec.key_id for it in record.replicas.values()))
            for agent in world.agents.values():
                agent.become("ready")
        await world.settle()
        await keys_are_true(world)
        record = await recorded(world)
        assert frozenset({OLD, new}) in seen, "old and new never lived side by side"
        assert record.key_id == new
        assert needed(record) == {new}
        assert dict(world.secret.kept()) == {}
        assert not (await world.apply()).plan.changes

    run(main())


def test_a_rotation_of_a_fleet_in_which_nothing_runs_comes_to_its_end() -> None:
    async def main() -> None:
        world = World(Model(name="chat", replicas=0))
        await world.settle()
        new = world.secret.rotate()
        await world.apply()
        record = await recorded(world)
        assert record.key_id == new
        assert not unfinished(world.fleet(), record)
        assert dict(world.secret.kept()) == {}
        assert not (await world.apply()).plan.commands

    run(main())


def test_a_secret_that_was_only_put_there_begins_no_rotation() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        world.secret.secret = b"another secret, long enough to be one"
        assert planning_key(world.fleet(), await recorded(world)) == OLD

    run(main())


def test_a_controller_without_the_recorded_secret_is_told_what_to_copy() -> None:
    world = World()
    world.secret.rotate()
    world.secret.drop(OLD)
    with pytest.raises(StalledError, match=f"copy the file or value named {OLD}"):
        keyring(world.fleet(), Record(fleet=FleetId("f"), key_id=OLD))


def test_the_earlier_secret_is_missed_by_name_while_replicas_need_it() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        record = await recorded(world)
        new = world.secret.rotate()
        world.secret.drop(OLD)
        with pytest.raises(StalledError, match=rf"fleet secret {OLD} is not on this machine.*memory\.{OLD}"):
            keyring(world.fleet(), replace(record, key_id=new))

    run(main())


def test_a_key_is_made_from_the_secret_that_the_replica_was_started_with() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        record = await recorded(world)
        world.secret.rotate()
        keys = keyring(world.fleet(), record)
        (replica,) = record.replicas
        assert keys.key(ReplicaId(replica), OLD) == replica_key(SECRET, ReplicaId(replica))
        with pytest.raises(StalledError, match="fleet secret 0badcafe is not on this machine"):
            keys.key(ReplicaId(replica), "0badcafe")

    run(main())


def test_a_forgotten_replica_keeps_its_secret_and_holds_no_rotation_up() -> None:
    async def main() -> None:
        world = World()
        await world.settle()
        record = await recorded(world)
        left = {
            name: Forgotten(replica=it, at=START, by="ann@desk", serial=1)
            for name, it in record.replicas.items()
        }
        new = world.secret.rotate()
        assert unfinished(world.fleet(), record) == {OLD}
        after = replace(record, key_id=new, replicas={}, forgotten=left)
        assert unfinished(world.fleet(), after) == set()
        assert needed(after) == {OLD, new}
        assert drop_unneeded(world.fleet(), after) == ()
        assert set(world.secret.kept()) == {OLD}

    run(main())
