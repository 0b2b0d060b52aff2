"""The real Probe: questions to engines over HTTP, bounded in time and size. Never through a proxy."""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Sequence
from typing import Any, TypeAlias

from llmgw.agent.seams import Answer
from llmgw.agent.shards import httpanswer
from llmgw.model.launch import HttpProbe, Metric

MAX_REASON = 200
CHUNK = 64 * 1024
OK = 200
PLAIN = re.compile(r"[!-~]+")
"""What stands in a line of HTTP by itself."""
Place: TypeAlias = tuple[int, int, int, str, Any]
"""What socket.getaddrinfo gives for each address of a host: family, kind, protocol, name, address."""


class HttpProber:
    async def ask(
        self,
        host: str,
        port: int,
        probe: HttpProbe,
        *,
        key: str | None,
        timeout: float,
        look_at: float = 0.0,
    ) -> Answer:
        try:
            question = _question(host, port, probe, key=key if probe.authorized else None)
            if look_at and (connection := _asked_at_once(host, port, question)) is not None:
                return await _looked(connection, look_at, timeout)
            return await asyncio.wait_for(_exchange(host, port, question), timeout)
        except asyncio.TimeoutError:
            return Answer(status=0, text=f"no answer within {timeout:g} s")
        except socket.gaierror as wrong:
            return Answer(status=0, text=f"{host}: {wrong.strerror}"[:MAX_REASON])
        except OSError as wrong:
            return Answer(status=0, text=os.strerror(wrong.errno) if wrong.errno else str(wrong)[:MAX_REASON])
        except httpanswer.NoHttpError as wrong:
            return Answer(status=0, text=f"no HTTP: {wrong}"[:MAX_REASON])

    async def in_flight(
        self,
        host: str,
        port: int,
        metric: Metric,
        *,
        key: str | None,
        timeout: float,
    ) -> float | None:
        probe = HttpProbe(path=metric.path, authorized=metric.authorized)
        answer = await self.ask(host, port, probe, key=key, timeout=timeout)
        return sum_of(answer.text, metric.names) if answer.status == OK else None

    async def port_open(self, host: str, port: int, *, timeout: float) -> bool:
        try:
            connection = await asyncio.wait_for(_connected(host, port), timeout)
        except (OSError, asyncio.TimeoutError):
            return False
        connection.close()
        return True


def sum_of(text: str, names: tuple[str, ...]) -> float | None:
    """Sum of all samples of these names in Prometheus text: running and waiting, of every model served. None: there
    is no sample."""
    found: list[float] = []
    for line in text.splitlines():
        name, _, rest = line.partition("{") if "{" in line.split(" ", 1)[0] else line.partition(" ")
        if name.strip() in names:
            value = rest.rpartition("}")[2].split()[:1]
            with contextlib.suppress(ValueError, IndexError):
                found.append(float(value[0]))
    return sum(found) if found else None


async def _exchange(host: str, port: int, question: bytes) -> Answer:
    """On a connection of its own: one that is kept would hold one of the few threads of some engines. Over a bare socket, because
    each engine is asked every few seconds for as long as it runs, and asyncio's streams cost twice as much."""
    loop = asyncio.get_running_loop()
    with await _connected(host, port) as connection:
        await loop.sock_sendall(connection, question)
        return await _answer(connection, b"")


async def _answer(connection: socket.socket, begun: bytes) -> Answer:
    loop, data = asyncio.get_running_loop(), begun
    while True:
        part = await loop.sock_recv(connection, CHUNK)
        data += part
        if (answer := httpanswer.read(data, closed=not part)) is not None:
            return answer


def _asked_at_once(host: str, port: int, question: bytes) -> socket.socket | None:
    """On a connection to this machine nothing has to be waited for until the answer, not even that it stands. None: it had to."""
    try:
        family, kind, protocol, _, address = _numbers(host, port)[0]
    except socket.gaierror:
        return None
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        connection.connect_ex(address)
        if connection.send(question) == len(question):
            return connection
    except BlockingIOError:
        pass
    except OSError:
        connection.close()
        raise
    connection.close()
    return None


async def _looked(connection: socket.socket, at: float, timeout: float) -> Answer:
    """Most answers are whole when they are looked at, and cost no timer, no task and no word with the selector."""
    begun = b""
    with connection:
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        with contextlib.suppress(BlockingIOError):
            begun = connection.recv(CHUNK)
            if (answer := httpanswer.read(begun, closed=not begun)) is not None:
                return answer
        return await asyncio.wait_for(_answer(connection, begun), timeout)


def _question(host: str, port: int, probe: HttpProbe, *, key: str | None) -> bytes:
    """Raises NoHttpError for what would be several lines."""
    if not all(PLAIN.fullmatch(text) for text in (host, probe.path, key or "none")):
        raise httpanswer.NoHttpError(
            "its host, its path or its key has characters that a question can't have"
        )
    lines = [
        f"{probe.method} {probe.path} HTTP/1.1",
        f"Host: {_bracketed(host)}:{port}",
        "Connection: close",
        "Accept: */*",
    ]
    body = (probe.body or "").encode()
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if probe.body is not None:
        lines.append("Content-Type: application/json")
    if probe.method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


async def _connected(host: str, port: int) -> socket.socket:
    """To the first of the host's addresses that takes it. Raises OSError."""
    loop = asyncio.get_running_loop()
    wrong = OSError(f"{host} has no address")
    try:
        places: Sequence[Place] = _numbers(host, port)
    except socket.gaierror:
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in places:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
        except OSError as refused:
            connection.close()
            wrong = refused
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise wrong


def _numbers(host: str, port: int) -> Sequence[Place]:
    """Of a host that is a number, which is no question to anybody and needs no thread. Raises gaierror for a name."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
