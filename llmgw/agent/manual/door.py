"""The way of a person on the node to the agent: its socket, greeted, one request at a time, and its streams."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from llmgw import __version__
from llmgw.agent.dialing import dial
from llmgw.model.problems import NoAgentError, RetryError
from llmgw.wire import codec, rpc
from llmgw.wire.messages import PROTOCOL, HelloParams, HelloResult, Request, Response

DEADLINE = 30.0
CHUNK = 64 * 1024
T = TypeVar("T")


class Door:
    """Open one with :func:`open_door`."""

    def __init__(self, work: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._work = work
        self._reader = reader
        self._writer = writer
        self._lines = rpc.Lines()
        self._ready: deque[bytes] = deque()
        self._number = 0

    async def ask(self, method: str, params: Any, kind: type[T]) -> T:
        """Raises AgentError for a refusal, RetryError when no answer comes."""
        return codec.from_json(kind, await self.ask_plain(method, params), strict=False)

    async def ask_plain(self, method: str, params: Any) -> Any:
        """The answer as it came, in JSON types."""
        try:
            return await asyncio.wait_for(self._asked(method, params), timeout=DEADLINE)
        except asyncio.TimeoutError:
            raise RetryError(
                f"asking the agent in {self._work} for its {method}: no answer within {DEADLINE:.0f} s: when it hangs, end it"
                " (engines run on) and try again: without an agent this is done past it"
            ) from None

    async def stream(self, method: str, params: Any, kind: type[T]) -> AsyncGenerator[T, None]:
        """Its items, until the agent ends it or the reader goes away."""
        self._send(method, params)
        while isinstance(answer := await self._receive(method), rpc.Item):
            yield codec.from_json(kind, answer.item, strict=False)
        if answer.error is not None:
            raise rpc.refusal(answer.error)

    async def _asked(self, method: str, params: Any) -> Any:
        self._send(method, params)
        while not isinstance(answer := await self._receive(method), Response):
            continue
        if answer.error is not None:
            raise rpc.refusal(answer.error)
        return answer.result

    def _send(self, method: str, params: Any) -> None:
        self._number += 1
        self._writer.write(rpc.encode(Request(method=method, id=self._number, params=codec.to_json(params))))

    async def _receive(self, method: str) -> Response | rpc.Item:
        while not self._ready:
            data = await self._reader.read(CHUNK)
            if not data:
                raise RetryError(
                    f"asking the agent in {self._work} for its {method}: it closed the connection: see agent.log"
                )
            self._ready.extend(self._lines.feed(data))
        return rpc.read_answer(self._ready.popleft())


@asynccontextmanager
async def open_door(work: Path) -> AsyncIterator[Door]:
    """Raises NoAgentError when nobody listens."""
    try:
        connection = dial(work)
    except OSError as wrong:
        fix = (
            "run this as root, or as the agent's user"
            if isinstance(wrong, PermissionError)
            else f"start it with `llmgw-agent daemon --work {work}`, or as its service"
        )
        raise NoAgentError(f"asking the agent in {work}: {wrong.strerror}: {fix}") from wrong
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        door = Door(work, reader, writer)
        await door.ask("hello", HelloParams(protocol=PROTOCOL, tool_version=__version__), HelloResult)
        yield door
    finally:
        writer.close()
