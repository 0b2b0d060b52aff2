"""The agent's socket: one line is one message. Knows connections and nothing of what the methods do.

Every connection says ``hello`` first. Requests of one connection run side by side, bounded; a connection that breaks the
protocol is told so and closed, the others never notice.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from llmgw.model.problems import AgentError, StalledError
from llmgw.wire import rpc
from llmgw.wire.doorway import SOCKET
from llmgw.wire.messages import BUSY, INTERNAL_ERROR, INVALID_REQUEST, ErrorBody, Request, Response

MAX_CONNECTIONS = 64
"""A controller opens one for commands and one for each stream."""
MAX_REQUESTS = 32
"""At once on one connection."""
CHUNK = 64 * 1024
GREETING = 30.0
"""Seconds a connection may take until its first hello."""
SLOW = 60.0
"""Seconds that a reader may take nothing of what is sent before it is dropped."""
LOOK_EVERY = 5.0
"""Seconds until a socket that was removed is missed."""
LOG = logging.getLogger("llmgw.agent")


class Answering(Protocol):
    """What the server needs of the service."""

    async def call(self, method: str, params: Mapping[str, Any]) -> Any: ...

    def stream(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[Any]: ...


class Server:
    """Listens on ``agent.sock`` of the work directory, mode 0600, and anew when somebody has removed it: an agent that runs and
    can't be reached would keep every other one from starting."""

    def __init__(self, service: Answering, *, look_every: float = LOOK_EVERY) -> None:
        self._service = service
        self._look_every = look_every
        self._keeping: asyncio.Task[None] | None = None
        self._file: tuple[int, int] | None = None
        self._server: asyncio.AbstractServer | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, work: Path) -> None:
        """The caller holds the agent's lock: a socket file that lies there is a dead agent's."""
        await self._listen(work)
        self._keeping = asyncio.ensure_future(self._keep(work))

    async def _keep(self, work: Path) -> None:
        while True:
            await asyncio.sleep(self._look_every)
            if _file(work) == self._file:
                continue
            LOG.warning("%s is gone: listening anew", work / SOCKET)
            before = self._server
            try:
                await self._listen(work)
            except StalledError as wrong:
                LOG.error("%s", wrong)  # noqa: TRY400 - the disk's word says it all
            else:
                if before is not None:
                    before.close()

    async def _listen(self, work: Path) -> None:
        try:
            listener = listen(work)
        except OSError as wrong:
            raise StalledError(
                f"listening on {work / SOCKET}: {wrong.strerror}: see to that directory"
            ) from wrong
        if sys.version_info >= (3, 13):
            # The socket's name is spelt through a descriptor that is closed by now: never look for it, let alone unlink it.
            self._server = await asyncio.start_unix_server(self._accept, sock=listener, cleanup_socket=False)
        else:
            self._server = await asyncio.start_unix_server(self._accept, sock=listener)
        self._file = _file(work)

    async def close(self) -> None:
        """Whatever streams are open: nobody is waited for."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                message = f"this agent holds {MAX_CONNECTIONS} connections: close some"
                writer.write(
                    rpc.encode(Response(error=ErrorBody(code=BUSY, message=message, data={"after": 5})))
                )
                return
            await _Connection(self._service, reader, writer).serve()
        except (OSError, asyncio.CancelledError):
            pass  # the peer is gone, or we are closing: either way this connection has ended
        except Exception:
            LOG.exception("serving a connection")
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), timeout=0.2)


def _file(work: Path) -> tuple[int, int] | None:
    """Which file it is, by device and number."""
    try:
        about = (work / SOCKET).stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


class _Connection:
    def __init__(
        self, service: Answering, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service = service
        self._reader = reader
        self._writer = writer
        self._greeted = False
        self._open: set[int] = set()  # requests without their last answer
        self._running: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def serve(self) -> None:
        lines = rpc.Lines()
        try:
            while data := await self._read():
                try:
                    complete = lines.feed(data)
                except rpc.LineTooLongError as wrong:
                    await self._refuse(None, ErrorBody(code=INVALID_REQUEST, message=str(wrong)))
                    return
                for line in complete:
                    await self._take(line)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _read(self) -> bytes:
        if self._greeted:
            return await self._reader.read(CHUNK)
        try:
            return await asyncio.wait_for(self._reader.read(CHUNK), timeout=GREETING)
        except asyncio.TimeoutError:
            return b""

    async def _take(self, line: bytes) -> None:
        try:
            request = rpc.read_request(line)
        except rpc.BadRequestError as wrong:
            await self._refuse(wrong.request, wrong.body)
            return
        assert request.id is not None
        if request.method == "hello":
            await self._answer(request)  # before anything else of this connection is looked at
        elif not self._greeted:
            await self._refuse(request.id, ErrorBody(code=INVALID_REQUEST, message="say hello first"))
        elif request.id in self._open or len(self._open) >= MAX_REQUESTS:
            message = (
                f"request {request.id} is under way already, or {MAX_REQUESTS} others are: wait for answers"
            )
            await self._send(
                rpc.encode(
                    Response(id=request.id, error=ErrorBody(code=BUSY, message=message, data={"after": 1}))
                )
            )
        else:
            self._open.add(request.id)
            task = asyncio.ensure_future(self._run(request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, request: Request) -> None:
        try:
            if request.method in rpc.STREAMS:
                await self._stream(request)
            else:
                await self._answer(request)
        except (OSError, asyncio.TimeoutError):
            self._writer.transport.abort()  # nobody reads: the reading side ends too

    async def _answer(self, request: Request) -> None:
        try:
            result = await self._service.call(request.method, request.params)
        except AgentError as wrong:
            await self._refuse(request.id, rpc.error_body(wrong))
            return
        self._greeted = self._greeted or request.method == "hello"
        await self._send_result(request.id, result)

    async def _stream(self, request: Request) -> None:
        assert request.id is not None
        items = self._service.stream(request.method, request.params)
        try:
            async for item in items:
                await self._send(rpc.encode_item(request.id, item))
        except AgentError as wrong:
            await self._refuse(request.id, rpc.error_body(wrong))
        else:
            await self._send_result(request.id, {})
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    async def _send_result(self, request: int | None, result: Any) -> None:
        try:
            line = rpc.encode(Response(id=request, result=result))
        except rpc.LineTooLongError as wrong:
            await self._refuse(
                request, ErrorBody(code=INTERNAL_ERROR, message=f"the answer is too large: {wrong}")
            )
            return
        await self._send_last(request, line)

    async def _refuse(self, request: int | None, body: ErrorBody) -> None:
        await self._send_last(request, rpc.encode(Response(id=request, error=body)))

    async def _send_last(self, request: int | None, line: bytes) -> None:
        """The request is over once its answer is on the way: its number may come again at once."""
        if request is not None:
            self._open.discard(request)
        await self._send(line)

    async def _send(self, line: bytes) -> None:
        async with self._writing:
            self._writer.write(line)
            await asyncio.wait_for(self._writer.drain(), timeout=SLOW)


def listen(work: Path) -> socket.socket:
    """A Unix socket's address holds 108 bytes, and work directories may be longer: the directory is named through an open
    descriptor. Bound under a tight umask, so that there is no moment in which others could connect."""
    folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    umask = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=folder)
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(umask)
        os.close(folder)
    return listener
