"""Knocking at another machine's port, as somebody without a key."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from llmgw.agent.doctor.knocking import knock
from llmgw.model.problems import AgentError
from llmgw.wire.messages import KnockParams
from tests.agent.processes import free_port

STATUSES = {"/health": "200 OK", "/v1/models": "401 Unauthorized", "/invocations": "405 Method Not Allowed"}


async def _serve(
    do: Callable[[int, list[str]], Awaitable[None]],
) -> None:
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65536)
        if data:
            asked.append(data.decode())
            status = STATUSES.get(data.split()[1].decode(), "404 Not Found")
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        await do(server.sockets[0].getsockname()[1], asked)


def test_each_path_is_asked_by_get_and_without_a_key() -> None:
    async def main(port: int, asked: list[str]) -> None:
        paths = ("/v1/models", "/health", "/invocations", "/nothing")
        found = await knock(KnockParams(host="127.0.0.1", port=port, paths=paths))
        assert found.port == "open"
        assert found.statuses == {"/v1/models": 401, "/health": 200, "/invocations": 405, "/nothing": 404}
        assert len(asked) == 4
        assert all(text.startswith("GET ") and "authorization" not in text.lower() for text in asked)

    asyncio.run(_serve(main))


def test_a_port_is_open_refused_or_out_of_reach() -> None:
    async def main(port: int, _: list[str]) -> None:
        assert (await knock(KnockParams(host="127.0.0.1", port=port))).port == "open"
        assert (await knock(KnockParams(host="127.0.0.1", port=free_port()))).port == "refused"
        # A link-local address without its link leads nowhere, and nothing is sent.
        assert (await knock(KnockParams(host="fe80::1", port=1))).port not in ("open", "refused")

    asyncio.run(_serve(main))


@pytest.mark.parametrize(
    "params",
    [
        KnockParams(host="127.0.0.1", port=0),
        KnockParams(host="127.0.0.1", port=70_000),
        KnockParams(host="127.0.0.1", port=1, paths=("/x",) * 65),
        KnockParams(host="127.0.0.1", port=1, paths=("x",)),
        KnockParams(host="127.0.0.1", port=1, paths=("/x y",)),
        KnockParams(host="127.0.0.1", port=1, paths=("/x\r\nX: y",)),
    ],
)
def test_what_is_no_question_is_refused(params: KnockParams) -> None:
    with pytest.raises(AgentError, match="knocking at"):
        asyncio.run(knock(params))
