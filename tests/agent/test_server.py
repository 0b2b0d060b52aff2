"""The agent's socket stays where people look for it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from llmgw.agent.server import Server
from llmgw.wire.doorway import SOCKET


class Nobody:
    async def call(self, method: str, params: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def stream(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[Any]:
        raise NotImplementedError


async def connects(work: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(work / SOCKET))
    except OSError:
        return False
    writer.close()
    return True


def test_a_socket_that_somebody_removed_or_replaced_is_there_again_and_open_connections_stay(
    tmp_path: Path,
) -> None:
    async def again() -> None:
        for _ in range(500):
            if await connects(tmp_path):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the socket has not come back")

    async def main() -> None:
        server = Server(Nobody(), look_every=0.05)
        await server.start(tmp_path)
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET))
        (tmp_path / SOCKET).unlink()
        await again()
        (tmp_path / SOCKET).unlink()
        (tmp_path / SOCKET).write_text("a file")
        await again()
        assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600
        assert not reader.at_eof()
        writer.write(b"no message\n")
        assert await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        await server.close()

    asyncio.run(main())
