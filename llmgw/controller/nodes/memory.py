"""The fake transport: hands requests to agents in the same process, through real encoding and decoding, and can break the
line wherever a real one breaks. For tests and the simulation.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

from llmgw import __version__
from llmgw.controller.nodes.link import answered, greeted
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.problems import AgentError, NoAgentError, RetryError, UnknownOutcomeError
from llmgw.model.struct import Struct
from llmgw.wire import codec, rpc
from llmgw.wire.messages import PROTOCOL, HelloParams, HelloResult, Request, Response

T = TypeVar("T")
AGAIN: Final = timedelta(seconds=1)

Checkpoint = Callable[[str], Awaitable[None]]


async def no_checkpoint(_: str) -> None:
    """Where nobody wants to stop."""


class Service(Protocol):
    """What the transport needs of an agent; the real agent's service has it."""

    async def call(self, method: str, params: Mapping[str, Any]) -> Any: ...

    def stream(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[Any]: ...


class Cut(Enum):
    """Where the line breaks: a request that never arrives, or an answer that never does."""

    BEFORE = "before"
    AFTER = "after"


def _is_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True, kw_only=True)
class MemoryNode:
    """One pretended machine. ``start`` makes its agent when it is bootstrapped; ``cuts`` break the next requests, one
    each, first come first served. A request takes ``delay`` seconds and arrives even if nobody waits for it any more. While
    ``hears`` is not set none arrives, while ``speaks`` is not set no answer does, and no connection breaks of it; what was sent
    meanwhile comes late. With ``echo`` each command comes a second time so many seconds later, if its connection still holds."""

    start: Callable[[str], Awaitable[Service]]
    service: Service | None = None
    reachable: bool = True
    facts: Facts = Facts()
    cuts: list[Cut] = field(default_factory=list)
    delay: float = 0.0
    echo: float | None = None
    hears: asyncio.Event = field(default_factory=_is_set)
    speaks: asyncio.Event = field(default_factory=_is_set)
    broken: asyncio.Event = field(default_factory=asyncio.Event)

    def break_lines(self) -> None:
        """Ends every open connection; new ones can be made."""
        self.broken.set()
        self.broken = asyncio.Event()

    def go_down(self) -> None:
        """The machine can't be reached any more; whatever runs there runs on."""
        self.reachable = False
        self.break_lines()

    def come_back(self) -> None:
        self.reachable = True

    def replace_agent(self, service: Service | None) -> None:
        """Its agent has died (None), or another has taken its place."""
        self.service = service
        self.break_lines()


@dataclass(slots=True, kw_only=True)
class MemoryTransport:
    """``nodes`` by name. ``checkpoint`` is awaited before a request is sent and after its answer has come."""

    nodes: dict[str, MemoryNode]
    checkpoint: Checkpoint = no_checkpoint

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> "MemoryLink":
        machine = self._machine(node)
        if machine.service is None:
            raise NoAgentError(f"node {node.name}: no agent listens")
        line = _Line(machine=machine, node=node.name, broken=machine.broken, checkpoint=self.checkpoint)
        hello = HelloParams(protocol=PROTOCOL, tool_version=__version__, fleet=fleet)  # type: ignore[arg-type] # a FleetId is text
        try:
            response = await line.exchange("hello", hello)
        except UnknownOutcomeError as lost:
            raise RetryError(str(lost), after=AGAIN) from lost
        return MemoryLink(line, greeted(response, node=node.name))

    async def probe(self, node: DesiredNode) -> Facts:
        facts = self._machine(node).facts
        return facts.pretending(node.pretended) if node.pretended is not None else facts

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        machine = self._machine(node)
        await self.checkpoint("bootstrap")
        if machine.service is None:
            machine.service = await machine.start(fleet)
        await (await self.connect(node, fleet=fleet)).close()

    async def close(self) -> None:
        """Links are closed by whoever opened them."""

    def _machine(self, node: DesiredNode) -> MemoryNode:
        machine = self.nodes.get(node.name)
        if machine is None or not machine.reachable:
            raise RetryError(f"node {node.name}: the machine does not answer", after=AGAIN)
        return machine


class _Line(Struct):
    """One connection, good until ``broken``."""

    machine: MemoryNode
    node: str
    broken: asyncio.Event
    checkpoint: Checkpoint

    async def exchange(self, method: str, params: Any) -> Response:
        """Raises RetryError when the request never arrived, UnknownOutcomeError when its answer did not."""
        doing = f"node {self.node}: {method}"
        await self.checkpoint(f"send:{method}")
        service = self.machine.service
        if self.broken.is_set() or service is None:
            raise RetryError(f"{doing}: the connection was lost before it was sent", after=AGAIN)
        cut = self.machine.cuts.pop(0) if self.machine.cuts else None
        if cut is Cut.BEFORE:
            self.machine.break_lines()
            raise UnknownOutcomeError(f"{doing}: the connection was lost", after=AGAIN)
        request = rpc.read_request(rpc.encode(Request(method=method, id=1, params=codec.to_json(params))))
        work = _on_the_way(self._delivered(service, request))
        if self.machine.echo is not None and "command" in request.params:
            _on_the_way(self._again(service, request, self.machine.echo))
        await _first(work, self.broken)
        if not work.done() or work.cancelled() or cut is Cut.AFTER:
            # What the agent was told it goes on doing; only its answer is lost. One that is shut down drops what it was at.
            if cut is Cut.AFTER:
                self.machine.break_lines()
            raise UnknownOutcomeError(
                f"{doing}: the connection was lost: it may have been carried out", after=AGAIN
            )
        await self.checkpoint(f"answered:{method}")
        return work.result()

    async def _delivered(self, service: Service, request: Request) -> Response:
        await asyncio.sleep(self.machine.delay)
        await self.machine.hears.wait()
        response = await _answer(service, request)
        await self.machine.speaks.wait()
        return response

    async def _again(self, service: Service, request: Request, after: float) -> Response | None:
        await asyncio.sleep(after)
        return await _answer(service, request) if not self.broken.is_set() else None


def _on_the_way(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """In a context of its own: what is under way is the network's, and arrives though its sender has died."""
    task = asyncio.get_running_loop().create_task(work, context=Context())
    task.add_done_callback(_looked_at)
    return task


async def _answer(service: Service, request: Request) -> Response:
    """As the agent's server would, through the same bytes."""
    try:
        response = Response(id=request.id, result=await service.call(request.method, request.params))
    except AgentError as refused:
        response = Response(id=request.id, error=rpc.error_body(refused))
    told = rpc.read_answer(rpc.encode(response).strip())
    assert isinstance(told, Response)
    return told


async def _first(work: "asyncio.Future[Any]", broken: asyncio.Event) -> None:
    """Until the work is done or the line breaks."""
    breaking = asyncio.ensure_future(broken.wait())
    try:
        await asyncio.wait((work, breaking), return_when=asyncio.FIRST_COMPLETED)
    finally:
        breaking.cancel()
        # Not `suppress(CancelledError): await`: whoever is cancelled just here would never know.
        await asyncio.gather(breaking, return_exceptions=True)


def _looked_at(work: "asyncio.Future[Any]") -> None:
    if not work.cancelled():
        work.exception()


class MemoryLink:
    """The Link of transport.py."""

    def __init__(self, line: _Line, hello: HelloResult) -> None:
        self._line = line
        self._hello = hello
        self._closed = False

    @property
    def hello(self) -> HelloResult:
        return self._hello

    async def request(self, method: str, params: Any, result: type[T], *, timeout: float) -> T:
        doing = f"node {self._line.node}: {method}"
        if self._closed:
            raise RetryError(f"{doing}: this side closed the connection", after=AGAIN)
        try:
            async with asyncio.timeout(timeout):
                response = await self._line.exchange(method, params)
        except TimeoutError as late:
            raise UnknownOutcomeError(f"{doing}: no answer within {timeout:g} s", after=AGAIN) from late
        return answered(response, result, doing)

    async def stream(self, method: str, params: Any, item: type[T]) -> AsyncIterator[T]:
        line = self._line
        doing = f"node {line.node}: {method}"
        service = line.machine.service
        if service is None or line.broken.is_set():
            raise RetryError(f"{doing}: the connection was lost", after=AGAIN)
        sent = json.loads(json.dumps(codec.to_json(params)))
        items = service.stream(method, sent).__aiter__()
        try:
            while True:
                coming = asyncio.ensure_future(anext(items))
                try:
                    await _first(coming, line.broken)
                finally:
                    lost = not coming.done()
                    coming.cancel()  # also when whoever reads is cancelled: it must not run on beside the closing
                    await asyncio.gather(coming, return_exceptions=True)
                if lost:
                    raise RetryError(f"{doing}: the connection was lost", after=AGAIN)
                try:
                    told = coming.result()
                except StopAsyncIteration:
                    return
                received = rpc.read_answer(rpc.encode_item(1, told).strip())
                assert isinstance(received, rpc.Item)
                yield codec.from_json(item, received.item, strict=False)
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    async def close(self) -> None:
        self._closed = True
