"""A controller that dies at any call to the outside: the next one finishes the work, and nothing is started twice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest

from llmgw.controller.nodes.transport import Link, Transport
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.repo.records import HistoryEntry, RecordStore, Stored
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.record import Record
from llmgw.model.struct import replace
from llmgw.wire.messages import HelloResult
from tests.controller.passes.pretend import Model, World

T = TypeVar("T")


class KilledError(BaseException):
    """What kill -9 looks like from inside."""


class Fuse:
    """Blows at the ``number``-th call to the outside, before it or after it was carried out."""

    def __init__(self, number: int, *, after: bool) -> None:
        self.left = number
        self.after = after
        self.blown = False

    def before(self) -> None:
        if self.blown:
            raise KilledError
        self.left -= 1
        if self.left == 0 and not self.after:
            self.blown = True
            raise KilledError

    def done(self) -> None:
        if self.left == 0 and self.after:
            self.blown = True
            raise KilledError


class FusedStore:
    def __init__(self, store: RecordStore, fuse: Fuse) -> None:
        self._store = store
        self._fuse = fuse

    async def read(self) -> Stored:
        return await self._store.read()

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        self._fuse.before()
        version = await self._store.write(record, after=after, message=message, plan=plan)
        self._fuse.done()
        return version

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        return await self._store.history(limit)


class FusedLink:
    def __init__(self, link: Link, fuse: Fuse) -> None:
        self._link = link
        self._fuse = fuse

    @property
    def hello(self) -> HelloResult:
        return self._link.hello

    async def request(self, method: str, params: Any, result: type[T], *, timeout: float) -> T:
        self._fuse.before()
        answer = await self._link.request(method, params, result, timeout=timeout)
        self._fuse.done()
        return answer

    def stream(self, method: str, params: Any, item: type[T]) -> AsyncIterator[T]:
        return self._link.stream(method, params, item)

    async def close(self) -> None:
        await self._link.close()


class FusedTransport:
    def __init__(self, transport: Transport, fuse: Fuse) -> None:
        self._transport = transport
        self._fuse = fuse

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        return FusedLink(await self._transport.connect(node, fleet=fleet), self._fuse)

    async def probe(self, node: DesiredNode) -> Facts:
        return await self._transport.probe(node)

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        self._fuse.before()
        await self._transport.bootstrap(node, fleet=fleet)
        self._fuse.done()

    async def close(self) -> None:
        await self._transport.close()


async def dies(world: World, fuse: Fuse) -> bool:
    """One pass that may be killed; whether it was."""
    fleet = world.fleet()
    fleet = replace(
        fleet,
        store=FusedStore(world.store, fuse),
        transports={name: FusedTransport(it, fuse) for name, it in fleet.transports.items()},
    )
    links = Links(fleet.transports)
    try:
        await one_pass(fleet, PassRequest(), links=links, halt=Halt(), progress=Silent())
    except BaseException as end:
        if not killed(end):
            raise
        return True
    finally:
        await links.close()
    return False


def killed(end: BaseException) -> bool:
    inside: tuple[BaseException, ...] = getattr(end, "exceptions", ())  # of a group
    return all(killed(it) for it in inside) if inside else isinstance(end, KilledError)


Change = Callable[[World], object]

CHANGES: dict[str, Change] = {
    "first apply": lambda world: None,
    "scale up": lambda world: world.branch.commit_models(Model(replicas=2)),
    "replace": lambda world: world.branch.commit_models(Model(args=("--token-delay", "1"))),
    "scale down": lambda world: world.branch.commit_models(Model(replicas=0), Model(name="code", gpus=0)),
}


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_apply_finishes_what_a_killed_one_began(change: str, after: bool) -> None:  # noqa: FBT001 - a parameter
    async def main() -> None:
        number = 0
        while True:
            number += 1
            world = World(agents=change != "first apply")
            if change != "first apply":
                await world.settle()
            CHANGES[change](world)
            if not await dies(world, Fuse(number, after=after)):
                assert number > 2, "nothing was ever killed"
                return
            await world.settle()
            await check(world, number)

    asyncio.run(main())


async def check(world: World, number: int) -> None:
    stored = await world.store.read()
    assert stored.record is not None
    assert stored.record.last_pass is not None
    assert stored.record.last_pass.outcome is not None, f"a pass is still open after a death at call {number}"
    live = {shard for shard, state in world.states().items() if state == "ready"}
    recorded = {f"{replica}-r0" for replica in stored.record.replicas}
    assert live == recorded, f"death at call {number}"
    commands = [name for _, name in world.agents["gpu01"].commands]
    starts = [name for name in commands if "-start " in name]
    assert len(starts) == len(set(starts)), f"death at call {number}: a start was repeated under its own id"
    serials = [dict(it.trailers).get("Llmgw-Serial", "0") for it in await world.store.history(limit=500)]
    assert serials == sorted(serials, key=int, reverse=True), "serials only grow"
