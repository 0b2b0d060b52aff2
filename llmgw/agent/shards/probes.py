"""The real Probe: questions to engines over HTTP, bounded in time and size. Never through a proxy."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Mapping

import h11

from llmgw.agent.seams import Answer
from llmgw.model.launch import HttpProbe, Metric

MAX_BODY = 1024 * 1024
MAX_REASON = 200
CHUNK = 64 * 1024
OK = 200


class HttpProber:
    async def ask(
        self,
        host: str,
        port: int,
        probe: HttpProbe,
        *,
        key: str | None,
        timeout: float,
    ) -> Answer:
        headers = _headers(key if probe.authorized else None)
        if probe.body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            return await asyncio.wait_for(_exchange(host, port, probe, headers), timeout)
        except asyncio.TimeoutError:
            return Answer(status=0, text=f"no answer within {timeout:g} s")
        except socket.gaierror as wrong:
            return Answer(status=0, text=f"{host}: {wrong.strerror}"[:MAX_REASON])
        except OSError as wrong:
            return Answer(status=0, text=os.strerror(wrong.errno) if wrong.errno else str(wrong)[:MAX_REASON])
        except h11.ProtocolError as wrong:
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


async def _exchange(host: str, port: int, probe: HttpProbe, headers: Mapping[str, str]) -> Answer:
    """One request, one answer, on a connection of its own: each engine is asked every few seconds for as long as it runs, and
    a whole HTTP client costs ten times as much CPU, asyncio's streams twice. A connection that is kept would hold one of
    the few threads of some engines."""
    body = (probe.body or "").encode()
    fixed = {"Host": f"{_bracketed(host)}:{port}", "Connection": "close", "Accept": "*/*"}
    if probe.method == "POST":
        fixed["Content-Length"] = str(len(body))
    http = h11.Connection(h11.CLIENT)
    asked = h11.Request(method=probe.method, target=probe.path, headers=list({**fixed, **headers}.items()))
    parts = (http.send(asked), http.send(h11.Data(data=body)), http.send(h11.EndOfMessage()))
    with await _connected(host, port) as connection:
        await asyncio.get_running_loop().sock_sendall(connection, b"".join(part or b"" for part in parts))
        return await _answer(http, connection)


async def _connected(host: str, port: int) -> socket.socket:
    """To the first of the host's addresses that takes it. Raises OSError."""
    loop = asyncio.get_running_loop()
    wrong = OSError(f"{host} has no address")
    try:  # a number is no question to anybody, and needs no thread
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
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


async def _answer(http: h11.Connection, connection: socket.socket) -> Answer:
    loop = asyncio.get_running_loop()
    status, data = 0, b""
    while len(data) < MAX_BODY:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await loop.sock_recv(connection, CHUNK))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            data += event.data
        elif isinstance(event, h11.EndOfMessage):
            break
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError(errno.ECONNRESET, "closed before it answered")
    return Answer(status=status, text=data[:MAX_BODY].decode(errors="replace"))


def _headers(key: str | None) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
