"""An apply that kills its own process at one point, by its seams: ``python -m tests.stories.dying POINT``.

Points: ``before-intent``, ``after-intent`` (on the state branch, nobody commanded), ``after-command`` (the first command
was carried out), ``before-outcome``, ``after-outcome``.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

from llmgw.controller.instance import instance_of
from llmgw.controller.nodes.transport import Link, Transport
from llmgw.controller.opening import opened
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.settle import settle
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.repo.records import HistoryEntry, RecordStore, Stored
from llmgw.controller.settings import load_settings
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.record import Record
from llmgw.model.struct import replace
from llmgw.redaction import Redactor
from llmgw.wire.messages import HelloResult

T = TypeVar("T")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStore:
    """See controller.repo.records.RecordStore."""

    def __init__(self, store: RecordStore, point: str) -> None:
        self._store = store
        self._point = point

    async def read(self) -> Stored:
        return await self._store.read()

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        what = "intent" if plan is not None else "outcome"
        if self._point == f"before-{what}":
            die()
        version = await self._store.write(record, after=after, message=message, plan=plan)
        if self._point == f"after-{what}":
            die()
        return version

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        return await self._store.history(limit)


class DyingLink:
    def __init__(self, link: Link, point: str) -> None:
        self._link = link
        self._point = point

    @property
    def hello(self) -> HelloResult:
        return self._link.hello

    async def request(self, method: str, params: Any, result: type[T], *, timeout: float) -> T:
        answer = await self._link.request(method, params, result, timeout=timeout)
        if self._point == "after-command" and method != "report":
            die()
        return answer

    def stream(self, method: str, params: Any, item: type[T]) -> AsyncIterator[T]:
        return self._link.stream(method, params, item)

    async def close(self) -> None:
        await self._link.close()


class DyingTransport:
    def __init__(self, transport: Transport, point: str) -> None:
        self._transport = transport
        self._point = point

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        return DyingLink(await self._transport.connect(node, fleet=fleet), self._point)

    async def probe(self, node: DesiredNode) -> Facts:
        return await self._transport.probe(node)

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        await self._transport.bootstrap(node, fleet=fleet)

    async def close(self) -> None:
        await self._transport.close()


async def main(point: str) -> None:
    environ = dict(os.environ)
    settings = load_settings(flags={}, environ=environ, cwd=Path.cwd())
    async with opened(settings, environ, redactor=Redactor()) as ready:
        fleet = replace(
            ready.fleet,
            instance=instance_of(settings.state_dir),
            store=DyingStore(ready.fleet.store, point),
            transports={
                name: DyingTransport(transport, point) for name, transport in ready.fleet.transports.items()
            },
        )
        links = Links(fleet.transports)
        await settle(fleet, PassRequest(), links=links, halt=Halt(), progress=Silent())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
