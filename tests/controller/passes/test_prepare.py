"""What a plan is made from: a record that is as new as what the nodes say."""

import asyncio
from collections.abc import Awaitable, Callable

from llmgw.controller.passes.prepare import Prepared, Wish, prepare
from llmgw.controller.repo.records import MemoryRecordStore, Stored
from llmgw.model.ids import Fence
from llmgw.model.plan import Plan
from llmgw.model.struct import replace
from tests.controller.passes.pretend import Model, World


class _Busy(MemoryRecordStore):
    """After each read something happens, before whoever has read goes on; what happens reads in peace."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: list[Callable[[], Awaitable[object]]] = []
        self.reads = 0

    async def read(self) -> Stored:
        self.reads += 1
        stored = await super().read()
        happens, self.happens = self.happens, []
        if happens:
            await happens[0]()
        self.happens = happens[1:]
        return stored


async def _prepared(world: World, *, read: Stored | None = None) -> Prepared:
    return await prepare(world.fleet(), Wish(), world.links, read=read)


def _blocked(plan: Plan) -> list[str]:
    return [change.keyword for change in plan.blocked]


async def _busy() -> tuple[World, _Busy]:
    world = World(gpus=4)
    store = _Busy()
    world.store = store
    await world.settle()
    store.reads = 0
    return world, store


def test_a_plan_that_somebody_elses_apply_has_overtaken_is_made_of_the_newer_record() -> None:
    async def main() -> None:
        world, store = await _busy()
        world.branch.commit_models(Model(replicas=2))
        store.happens = [world.apply]  # what `llmgw serve` does at once after the commit
        prepared = await _prepared(world)
        newest = await store.read()
        assert prepared.stored.version == newest.version
        assert not _blocked(prepared.plan)
        assert len(prepared.record.replicas) == 2

    asyncio.run(main())


def test_a_record_that_was_set_back_is_read_once_more_and_told() -> None:
    async def main() -> None:
        world, store = await _busy()
        fence = world.agents["gpu01"].fence
        assert fence is not None
        world.agents["gpu01"].fence = Fence(fleet=fence.fleet, serial=fence.serial + 5, intent=fence.intent)
        prepared = await _prepared(world)
        assert "newer-record" in _blocked(prepared.plan)
        assert store.reads == 2

    asyncio.run(main())


def test_a_record_that_keeps_moving_is_not_followed_for_ever() -> None:
    async def main() -> None:
        world, store = await _busy()
        agent = world.agents["gpu01"]

        async def another() -> None:
            world.branch.commit_models(Model(replicas=len(world.branch.commits) + 1))
            await world.apply()

        store.happens = [another] * 9
        prepared = await _prepared(world)
        assert "newer-record" in _blocked(prepared.plan)
        assert len(store.happens) == 9 - 3
        assert agent.fence is not None
        assert prepared.record.serial < agent.fence.serial

    asyncio.run(main())


def test_a_record_that_was_read_a_moment_ago_is_not_read_again() -> None:
    async def main() -> None:
        world, store = await _busy()
        just = await store.read()
        prepared = await _prepared(world, read=just)
        assert prepared.stored is just
        assert store.reads == 1

    asyncio.run(main())


def test_a_record_that_told_of_a_pass_at_work_a_moment_ago_is_read_again() -> None:
    """Whose pass it was may have ended while this one waited for its turn."""

    async def main() -> None:
        world, store = await _busy()
        now = await store.read()
        assert now.record is not None
        assert now.record.last_pass is not None
        open_pass = replace(now.record.last_pass, outcome=None, ended=None)
        at_work = Stored(record=replace(now.record, last_pass=open_pass), version=now.version)
        prepared = await _prepared(world, read=at_work)
        assert prepared.record == now.record
        assert store.reads == 2

    asyncio.run(main())
