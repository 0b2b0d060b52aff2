"""The real Probe: questions to engines over HTTP, bounded in time and size. Never through a proxy."""

import asyncio
import contextlib
from collections.abc import Mapping

import httpx

from llmgw.agent.seams import Answer
from llmgw.model.launch import HttpProbe, Metric

MAX_BODY = 1024 * 1024
MAX_REASON = 200


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
        url = f"http://{_bracketed(host)}:{port}{probe.path}"
        try:
            return await asyncio.wait_for(
                _request(probe.method, url, headers, probe.body, timeout=timeout), timeout
            )
        except (asyncio.TimeoutError, httpx.TimeoutException):
            return Answer(status=0, text=f"no answer within {timeout:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as wrong:
            return Answer(status=0, text=f"{type(wrong).__name__}: {wrong}"[:MAX_REASON])

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
        return sum_of(answer.text, metric.names) if answer.status == httpx.codes.OK else None

    async def port_open(self, host: str, port: int, *, timeout: float) -> bool:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
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


async def _request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: str | None,
    *,
    timeout: float,
) -> Answer:
    # No certificates are read: engines speak plain HTTP, and loading them would cost more than the question.
    async with (
        httpx.AsyncClient(trust_env=False, verify=False, timeout=timeout) as client,  # noqa: S501 - plain HTTP
        client.stream(method, url, headers=dict(headers), content=body) as response,
    ):
        data = b""
        async for part in response.aiter_bytes():
            data += part
            if len(data) >= MAX_BODY:
                break
        return Answer(status=response.status_code, text=data[:MAX_BODY].decode(errors="replace"))


def _headers(key: str | None) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
