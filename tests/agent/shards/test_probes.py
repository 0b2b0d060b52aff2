"""The real probe against a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from llmgw.agent.seams import Answer
from llmgw.agent.shards.httpanswer import MAX_BODY
from llmgw.agent.shards.probes import HttpProber, sum_of
from llmgw.agent.shards.readiness import wrong_with
from llmgw.model.launch import HttpProbe, Metric
from tests.agent.shards.realnode import free_port

METRICS = """# HELP running Requests
running{model="a",x="b} c"} 2.0
running{model="b"} 1
waiting 3
other 100
running_total 5
"""


Handling = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine(handle: Handling, *, bound: str = "127.0.0.1") -> AsyncIterator[int]:
    """Its port. Left when everybody who asked has been served and is gone."""
    served: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over = asyncio.Event()
        served.append(over)
        await handle(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(serve, bound, 0) as server:
        yield server.sockets[0].getsockname()[1]
        for over in served:
            await over.wait()


def answering(reply: bytes, ask: Callable[[int], Awaitable[Answer]]) -> tuple[Answer, bytes]:
    """The answer, and what was asked."""
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply)
        await (writer.drain() if reply else reader.read())

    async def story() -> Answer:
        async with engine(handle) as port:
            return await ask(port)

    return asyncio.run(story()), asked[0]


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_key_goes_only_where_it_is_asked_for() -> None:
    prober = HttpProber()

    async def with_key(port: int) -> Answer:
        probe = HttpProbe(path="/v1/models", authorized=True)
        return await prober.ask("127.0.0.1", port, probe, key="k3y", timeout=5)

    async def without(port: int) -> Answer:
        return await prober.ask("127.0.0.1", port, HttpProbe(path="/health"), key="k3y", timeout=5)

    answer, asked = answering(ok(b"fine"), with_key)
    assert answer == Answer(status=200, text="fine")
    assert b"authorization: bearer k3y" in asked.lower()
    assert b"k3y" not in answering(ok(b""), without)[1]


async def health_of(port: int, *, host: str = "127.0.0.1", pause: float = 0.0, timeout: float = 5) -> Answer:
    """Looked at when it comes, or after a pause."""
    look_at = asyncio.get_running_loop().time() + pause if pause else 0.0
    return await HttpProber().ask(
        host, port, HttpProbe(path="/health"), key=None, timeout=timeout, look_at=look_at
    )


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_silence_refusal_and_nonsense_are_no_answers(pause: float) -> None:
    async def patient(port: int) -> Answer:
        return await health_of(port, pause=pause, timeout=0.2)

    assert answering(b"", patient)[0] == Answer(status=0, text="no answer within 0.2 s")
    assert answering(b"SSH-2.0-OpenSSH\r\n", patient)[0].status == 0
    assert answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", patient)[0] == Answer(
        status=0, text="Connection reset by peer"
    )
    assert asyncio.run(health_of(free_port(), pause=pause)) == Answer(status=0, text="Connection refused")
    assert not asyncio.run(HttpProber().port_open("127.0.0.1", free_port(), timeout=1))


def test_an_answer_that_is_looked_at_later_is_the_same_and_is_asked_for_once() -> None:
    async def story(after: float, pause: float) -> Answer:
        asked: list[bytes] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(ok(b"fine")[:20])
            await asyncio.sleep(after)
            writer.write(ok(b"fine")[20:])

        async with engine(handle) as port:
            answer = await health_of(port, pause=pause)
        assert len(asked) == 1
        return answer

    for after, pause in ((0.0, 0.0), (0.0, 0.1), (0.1, 0.001)):
        assert asyncio.run(story(after, pause)) == Answer(status=200, text="fine")


def test_nobody_looks_before_it_is_time() -> None:
    """So that one waking is enough for the answers of many."""

    async def waited(port: int) -> Answer:
        began = asyncio.get_running_loop().time()
        answer = await health_of(port, pause=0.3)
        assert asyncio.get_running_loop().time() - began >= 0.3
        return answer

    assert answering(ok(b"fine"), waited)[0] == Answer(status=200, text="fine")


def test_a_key_or_path_of_several_lines_is_no_question() -> None:
    prober = HttpProber()
    for probe, key in (
        (HttpProbe(path="/a HTTP/1.1\r\nX: y"), None),
        (HttpProbe(path="/", authorized=True), "k3y\r\nX: y"),
    ):
        answer = asyncio.run(prober.ask("127.0.0.1", free_port(), probe, key=key, timeout=5))
        assert answer.status == 0
        assert answer.text.startswith("no HTTP: its host, its path or its key")


def test_a_body_is_sent_with_its_length() -> None:
    async def ask(port: int) -> Answer:
        probe = HttpProbe(path="/v1/completions", method="POST", body='{"n": 1}')
        return await HttpProber().ask("127.0.0.1", port, probe, key=None, timeout=5)

    answer, asked = answering(ok(b"fine"), ask)
    assert answer.status == 200
    assert asked.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n" in asked


def test_a_body_without_end_is_cut() -> None:
    async def ask(port: int) -> Answer:
        return await HttpProber().ask("127.0.0.1", port, HttpProbe(path="/"), key=None, timeout=20)

    answer, _ = answering(ok(b"x" * (2 * MAX_BODY)), ask)
    assert len(answer.text) == MAX_BODY


def test_in_flight_is_the_sum_of_what_runs_and_waits() -> None:
    async def ask(port: int) -> Answer:
        metric = Metric(path="/metrics", names=("running", "waiting"))
        count = await HttpProber().in_flight("127.0.0.1", port, metric, key=None, timeout=5)
        return Answer(status=0, text=str(count))

    assert answering(ok(METRICS.encode()), ask)[0].text == "6.0"
    assert sum_of(METRICS, ("none",)) is None
    assert sum_of("running NaN-ish", ("running",)) is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(status=200, text='{"id": "chat"}'), None),
        (Answer(status=200, text='{"id": "other"}'), "/v1/models does not name chat"),
        (Answer(status=503, text="Loading\n model"), "/v1/models answered 503: Loading model"),
        (Answer(status=401, text=""), "/v1/models answered 401"),
        (Answer(status=0, text="connection refused"), "/v1/models: connection refused"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(answer: Answer, why: str | None) -> None:
    assert wrong_with(HttpProbe(path="/v1/models", contains="chat"), answer) == why


def test_a_host_may_be_a_name_or_an_address_of_either_kind() -> None:
    async def asked_of(host: str, bound: str, pause: float) -> Answer:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ok(b"fine"))

        async with engine(handle, bound=bound) as port:
            return await health_of(port, host=host, pause=pause)

    for host, bound in (("localhost", "127.0.0.1"), ("::1", "::1")):
        for pause in (0.0, 0.05):
            assert asyncio.run(asked_of(host, bound, pause)) == Answer(status=200, text="fine")
    nowhere = asyncio.run(
        HttpProber().ask("no-such-host.invalid", 80, HttpProbe(path="/"), key=None, timeout=10)
    )
    assert nowhere.status == 0
    assert nowhere.text.startswith("no-such-host.invalid: ")
