"""An open connection to an agent, over any byte stream: a local socket, an SSH channel. Correlates answers with requests
and says, when the line is lost, whether the command may have been carried out.

One channel carries commands; each stream gets a channel of its own, so that a slow reader never holds up a command and
closing the channel is how a stream is ended.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from llmgw import __version__
from llmgw.model.problems import AgentError, RetryError, StalledError, UnknownOutcomeError
from llmgw.wire import codec, rpc
from llmgw.wire.messages import (
    PROTOCOL,
    VERSION,
    WRONG_FLEET,
    HelloParams,
    HelloResult,
    Request,
    Response,
    compatible,
)

T = TypeVar("T")
Dial: TypeAlias = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens one more channel to the same agent."""

HELLO_TIMEOUT: Final = 20.0
GREET_TIMEOUT: Final = 10.0
"""Seconds for the first words once there is a connection. An agent does nothing before them but read; less than what a node has in a
pass, so that the pass can tell a hanging agent from a dead line."""
CHUNK: Final = 64 * 1024
AGAIN: Final = timedelta(seconds=1)


class _LostError(Exception):
    """The channel is gone; says why."""


class _Channel:
    """Lines in and out of one byte stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lines = rpc.Lines()
        self._ready: deque[bytes] = deque()

    async def send(self, request: Request) -> None:
        try:
            self._writer.write(rpc.encode(request))
            await self._writer.drain()
        except OSError as wrong:
            raise _LostError(wrong.strerror or str(wrong)) from wrong

    async def receive(self) -> Response | rpc.Item:
        while not self._ready:
            try:
                data = await self._reader.read(CHUNK)
                self._ready.extend(self._lines.feed(data))
            except OSError as wrong:
                raise _LostError(wrong.strerror or str(wrong)) from wrong
            except rpc.LineTooLongError as wrong:
                raise _LostError(str(wrong)) from wrong
            if not data:
                raise _LostError("the agent closed the connection")
        try:
            return rpc.read_answer(self._ready.popleft())
        except codec.CodecError as wrong:
            raise _LostError(f"what came is no answer of an agent: {wrong}") from wrong

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


async def greet(channel: _Channel, *, node: str, fleet: str | None) -> HelloResult:
    """The first words. Raises StalledError when this agent will never serve this controller."""
    hello = HelloParams(protocol=PROTOCOL, tool_version=__version__, fleet=fleet)  # type: ignore[arg-type] # a FleetId is text
    try:
        await channel.send(Request(method="hello", id=0, params=codec.to_json(hello)))
        answer = await channel.receive()
    except _LostError as wrong:
        raise RetryError(f"node {node}: greeting the agent: {wrong}", after=AGAIN) from wrong
    if not isinstance(answer, Response):
        raise StalledError(f"node {node}: greeting the agent: it answered with an item of a stream")
    return greeted(answer, node=node)


def greeted(answer: Response, *, node: str) -> HelloResult:
    """What a hello's answer means. Raises StalledError where trying again is no use, else RetryError."""
    if answer.error is not None:
        error = rpc.refusal(answer.error)
        if error.code in (WRONG_FLEET, VERSION):
            raise StalledError(f"node {node}: {error}") from error
        raise RetryError(f"node {node}: {error}", after=error.after or AGAIN) from error
    try:
        result = codec.from_json(HelloResult, answer.result, strict=False)
    except codec.CodecError as wrong:
        raise StalledError(f"node {node}: greeting the agent: {wrong}: upgrade the agent") from wrong
    if not compatible(result.protocol, PROTOCOL):
        raise StalledError(
            f"node {node}: its agent {result.agent_version} speaks protocol {result.protocol}, this llmgw {PROTOCOL}: bring"
            " both to the same version"
        )
    return result


class StreamLink:
    """The Link of transport.py. Make one with :func:`open_link`."""

    def __init__(
        self, channel: _Channel, hello: HelloResult, dial: Dial, *, node: str, fleet: str | None
    ) -> None:
        self._channel = channel
        self._hello = hello
        self._dial = dial
        self._node = node
        self._fleet = fleet
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._lost: str | None = None
        self._listening = asyncio.ensure_future(self._listen())

    @property
    def hello(self) -> HelloResult:
        return self._hello

    async def request(self, method: str, params: Any, result: type[T], *, timeout: float) -> T:
        doing = f"node {self._node}: {method}"
        if self._lost is not None:
            raise RetryError(
                f"{doing}: the connection was lost before it was sent: {self._lost}", after=AGAIN
            )
        self._number += 1
        number = self._number
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout):
                await self._channel.send(Request(method=method, id=number, params=codec.to_json(params)))
                response = await answer
        except rpc.LineTooLongError as wrong:
            raise StalledError(f"{doing}: {wrong}") from wrong
        except TimeoutError as late:
            raise UnknownOutcomeError(
                f"{doing}: no answer within {timeout:g} s: it may have been carried out", after=AGAIN
            ) from late
        except _LostError as lost:
            raise UnknownOutcomeError(
                f"{doing}: the connection was lost: {lost}: it may have been carried out", after=AGAIN
            ) from lost
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # looked at, even when the line was lost while we were sending
        return answered(response, result, doing)

    async def stream(self, method: str, params: Any, item: type[T]) -> AsyncIterator[T]:
        doing = f"node {self._node}: {method}"
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                channel = _Channel(*await self._dial())
                try:
                    await greet(channel, node=self._node, fleet=self._fleet)
                except BaseException:
                    await channel.close()
                    raise
        except TimeoutError as late:
            raise RetryError(f"{doing}: the agent does not greet", after=AGAIN) from late
        try:
            await channel.send(Request(method=method, id=1, params=codec.to_json(params)))
            while isinstance(told := await channel.receive(), rpc.Item):
                yield codec.from_json(item, told.item, strict=False)
            if told.error is not None:
                raise rpc.refusal(told.error)
        except _LostError as lost:
            raise RetryError(f"{doing}: the connection was lost: {lost}", after=AGAIN) from lost
        except codec.CodecError as wrong:
            raise StalledError(f"{doing}: {wrong}: upgrade the older side") from wrong
        finally:
            await channel.close()

    async def close(self) -> None:
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        self._lose("this side closed it")
        await self._channel.close()

    async def _listen(self) -> None:
        try:
            while True:
                told = await self._channel.receive()
                if isinstance(told, Response):
                    if told.id is None:
                        self._lose(told.error.message if told.error else "an answer without a request")
                        return
                    future = self._waiting.pop(told.id, None)
                    if future is not None and not future.done():
                        future.set_result(told)
        except _LostError as lost:
            self._lose(str(lost))

    def _lose(self, why: str) -> None:
        """Nothing more will come: whoever waits is told, and nothing more is sent."""
        self._lost = self._lost or why
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_LostError(why))
        self._waiting.clear()


def answered(response: Response, kind: type[T], doing: str) -> T:
    """What a response holds. Raises AgentError for a refusal."""
    if response.error is not None:
        refused = rpc.refusal(response.error)
        raise AgentError(f"{doing}: {refused}", code=refused.code, after=refused.after, data=refused.data)
    try:
        return codec.from_json(kind, response.result, strict=False)
    except codec.CodecError as wrong:
        raise StalledError(f"{doing}: {wrong}: upgrade the older side") from wrong


async def open_link(dial: Dial, *, node: str, fleet: str | None) -> StreamLink:
    """Dials and greets. Raises what ``dial`` raises, RetryError when the agent does not greet in time."""
    channel: _Channel | None = None
    try:
        async with asyncio.timeout(HELLO_TIMEOUT):
            channel = _Channel(*await dial())
        async with asyncio.timeout(GREET_TIMEOUT):
            hello = await greet(channel, node=node, fleet=fleet)
    except BaseException as wrong:
        if channel is not None:
            await channel.close()
        if isinstance(wrong, TimeoutError):
            why = (
                f"no connection to its agent within {HELLO_TIMEOUT:g} s"
                if channel is None
                else f"connected, but its agent does not greet within {GREET_TIMEOUT:g} s: it hangs, or its machine is overloaded"
            )
            raise RetryError(f"node {node}: {why}", after=AGAIN) from wrong
        raise
    return StreamLink(channel, hello, dial, node=node, fleet=fleet)
