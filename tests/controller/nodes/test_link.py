"""A link tells an answer, a refusal, a lost command that may have been carried out, and one that never went."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, cast

import pytest

from llmgw.controller.nodes.link import GREET_TIMEOUT, StreamLink, open_link
from llmgw.model.problems import AgentError, RetryError, StalledError, UnknownOutcomeError
from llmgw.wire.messages import (
    BUSY,
    FENCED,
    MAX_LINE,
    VERSION,
    WRONG_FLEET,
    Accepted,
    LogLine,
    ReportParams,
)
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_virtual

HELLO = {"protocol": "1.3", "agentVersion": "9", "node": "n1", "bootId": "b", "newer": True}
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def scripted(*scripts: Script) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], None]:
    """Runs a test against an agent whose connections follow the scripts, in order; the last one for all others."""

    def with_agent(test: Callable[..., Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            made = 0

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal made
                made += 1
                try:
                    await scripts[min(made, len(scripts)) - 1](reader, writer)
                except (OSError, asyncio.IncompleteReadError):
                    pass
                finally:
                    writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2 * MAX_LINE)
            port = server.sockets[0].getsockname()[1]

            async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                return await asyncio.open_connection("127.0.0.1", port)

            try:
                await test(lambda: open_link(dial, node="n1", fleet="f1"))
            finally:
                server.close()
                await server.wait_closed()

        asyncio.run(asyncio.wait_for(main(), timeout=20))

    return with_agent


Open = Callable[[], Awaitable[StreamLink]]


async def asked(reader: asyncio.StreamReader) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
    return found


def say(writer: asyncio.StreamWriter, **message: Any) -> None:
    writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


async def greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await asked(reader)
    assert request["params"]["fleet"] == "f1"
    say(writer, id=request["id"], result=HELLO)


def test_answers_find_their_requests_in_whatever_order_they_come() -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        first, second = await asked(reader), await asked(reader)
        say(writer, id=second["id"], result={"detail": second["method"], "newer": 1})
        say(writer, id=first["id"], result={"detail": first["method"]})
        await reader.read()

    @scripted(agent)
    async def _(open_: Open) -> None:
        link = await open_()
        assert link.hello.agent_version == "9"
        answers = await asyncio.gather(
            link.request("stop", ReportParams(), Accepted, timeout=5),
            link.request("drain", ReportParams(), Accepted, timeout=5),
        )
        assert [answer.detail for answer in answers] == ["stop", "drain"]
        await link.close()


def test_a_refusal_is_an_agent_error_with_what_steers_the_next_step() -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        request = await asked(reader)
        error = {"code": FENCED, "message": "too late", "data": {"after": 2, "fence": {"serial": 4}}}
        say(writer, id=request["id"], error=error)
        await reader.read()

    @scripted(agent)
    async def _(open_: Open) -> None:
        link = await open_()
        with pytest.raises(AgentError, match="node n1: stop: too late") as caught:
            await link.request("stop", ReportParams(), Accepted, timeout=5)
        assert (caught.value.code, caught.value.after) == (FENCED, timedelta(seconds=2))
        assert caught.value.data == {"fence": {"serial": 4}}
        await link.close()


def test_silence_is_an_unknown_outcome_and_a_late_answer_harms_nobody() -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        late, second = await asked(reader), await asked(reader)
        say(writer, id=late["id"], result={"detail": "late"})
        say(writer, id=second["id"], result={"detail": "in time"})
        await reader.read()

    @scripted(agent)
    async def _(open_: Open) -> None:
        link = await open_()
        with pytest.raises(UnknownOutcomeError, match="may have been carried out"):
            await link.request("stop", ReportParams(), Accepted, timeout=0.05)
        assert (await link.request("stop", ReportParams(), Accepted, timeout=5)).detail == "in time"
        await link.close()


@pytest.mark.parametrize(
    "garbage", [b"", b"noise\n", b'{"jsonrpc":"2.0","id":"x"}\n', b"x" * (MAX_LINE + 10)]
)
def test_a_line_that_breaks_is_an_unknown_outcome_for_what_was_sent_and_a_retry_for_what_was_not(
    garbage: bytes,
) -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        await asked(reader)
        writer.write(garbage)
        await writer.drain()

    @scripted(agent)
    async def _(open_: Open) -> None:
        link = await open_()
        with pytest.raises(UnknownOutcomeError, match="connection was lost"):
            await link.request("stop", ReportParams(), Accepted, timeout=10)
        with pytest.raises(RetryError, match="lost before it was sent") as caught:
            await link.request("stop", ReportParams(), Accepted, timeout=10)
        assert not isinstance(caught.value, UnknownOutcomeError)
        await link.close()


def test_everybody_who_waits_is_told_when_this_side_closes() -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        await reader.read()

    @scripted(agent)
    async def _(open_: Open) -> None:
        link = await open_()
        waiting = asyncio.ensure_future(link.request("stop", ReportParams(), Accepted, timeout=10))
        await asyncio.sleep(0.01)
        await link.close()
        with pytest.raises(UnknownOutcomeError):
            await waiting


def test_a_request_too_large_for_the_protocol_is_never_sent() -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        await reader.read()

    @scripted(agent)
    async def _(open_: Open) -> None:
        link = await open_()
        with pytest.raises(StalledError, match="at most"):
            await link.request("stop", ReportParams(meta={"x": "y" * MAX_LINE}), Accepted, timeout=10)
        await link.close()


@pytest.mark.parametrize(
    ("code", "error"), [(WRONG_FLEET, StalledError), (VERSION, StalledError), (BUSY, RetryError)]
)
def test_a_refused_hello_tells_whether_trying_again_makes_sense(code: int, error: type[Exception]) -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await asked(reader)
        say(writer, id=request["id"], error={"code": code, "message": "no"})

    @scripted(agent)
    async def _(open_: Open) -> None:
        with pytest.raises(error):
            await open_()


class _Nothing:
    """A line that takes everything and brings nothing."""

    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


def test_an_agent_that_does_not_greet_is_told_from_a_line_that_does_not_come() -> None:
    async def hangs() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return asyncio.StreamReader(), cast("asyncio.StreamWriter", _Nothing())

    async def never() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.Event().wait()  # type: ignore[return-value] # it does not return

    loop = VirtualLoop()
    with pytest.raises(RetryError, match="connected, but its agent does not greet within 10 s"):
        run_virtual(open_link(hangs, node="n1", fleet="f1"), loop)
    assert loop.time() == GREET_TIMEOUT
    with pytest.raises(RetryError, match="no connection to its agent within 20 s"):
        run_virtual(open_link(never, node="n1", fleet="f1"), VirtualLoop())


def test_an_agent_of_another_major_version_is_refused_by_this_side_too() -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await asked(reader)
        say(writer, id=request["id"], result={**HELLO, "protocol": "2.0"})

    @scripted(agent)
    async def _(open_: Open) -> None:
        with pytest.raises(StalledError, match=r"speaks protocol 2\.0"):
            await open_()


def test_a_stream_that_nobody_greets_leaves_no_connection() -> None:
    left = asyncio.Event()

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write_eof()
        assert await reader.read() == b""
        left.set()

    @scripted(greeting, ends)
    async def test(connect: Open) -> None:
        link = await connect()
        with pytest.raises(RetryError, match="greeting the agent"):
            await anext(link.stream("logs", ReportParams(), LogLine))
        await left.wait()
        await link.close()


def test_a_stream_has_a_channel_of_its_own_and_ends_with_the_agents_word() -> None:
    async def commands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        await reader.read()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        request = await asked(reader)
        for text in ("one", "two"):
            say(writer, method="item", params={"id": request["id"], "item": {"process": "", "text": text}})
        say(writer, id=request["id"], result={})
        await reader.read()

    @scripted(commands, stream)
    async def _(open_: Open) -> None:
        link = await open_()
        lines = [line.text async for line in link.stream("logs", ReportParams(), LogLine)]
        assert lines == ["one", "two"]
        await link.close()


@pytest.mark.parametrize("refused", [True, False])
def test_a_stream_that_is_refused_or_breaks_says_which(refused: bool) -> None:  # noqa: FBT001 - pytest's parameter
    async def commands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        await reader.read()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeting(reader, writer)
        request = await asked(reader)
        if refused:
            say(writer, id=request["id"], error={"code": BUSY, "message": "no"})
            await reader.read()

    @scripted(commands, stream)
    async def _(open_: Open) -> None:
        link = await open_()
        with pytest.raises(AgentError if refused else RetryError):
            _ = [line async for line in link.stream("logs", ReportParams(), LogLine)]
        await link.close()
