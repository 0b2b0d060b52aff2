"""Servers that notices are sent to: they keep what comes and answer as they are told to, or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

HANGS = 0
"""Instead of a status: takes the request and never answers."""
DEADLINE = 30.0


@dataclass
class Heard:
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Hearer:
    """``answers`` are given one after the other, the last one for ever; ``extra`` are header lines of every answer."""

    answers: Sequence[int] = (200,)
    extra: str = ""
    heard: list[Heard] = field(default_factory=list)
    url: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, holds: Callable[[list[Heard]], bool]) -> list[Heard]:
        async with asyncio.timeout(DEADLINE):
            while not holds(self.heard):
                self._changed.clear()
                await self._changed.wait()
        return self.heard

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (it.partition(":") for it in head[1:] if it)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status = self.answers[min(len(self.heard), len(self.answers) - 1)]
        self.heard.append(Heard(head[0].split(" ")[1], headers, json.loads(body)))
        self._changed.set()
        if status == HANGS:
            await reader.read()  # until the other side gives up
            raise ConnectionError
        writer.write(f"HTTP/1.1 {status} X\r\n{self.extra}Content-Length: 2\r\n\r\n{{}}".encode())
        await writer.drain()


@asynccontextmanager
async def hearer(answers: Sequence[int] = (200,), extra: str = "") -> AsyncIterator[Hearer]:
    made = Hearer(answers=answers, extra=extra)
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(made.answer(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
