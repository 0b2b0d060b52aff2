"""The real probe against a real socket."""

import asyncio
from collections.abc import Awaitable, Callable

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


def answering(reply: bytes, ask: Callable[[int], Awaitable[Answer]]) -> tuple[Answer, bytes]:
    """The answer, and what was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply)
        if reply:
            await writer.drain()
            writer.close()
        else:
            await reader.read()
            writer.close()

    async def story() -> Answer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await ask(server.sockets[0].getsockname()[1])

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


def test_silence_refusal_and_nonsense_are_no_answers() -> None:
    prober = HttpProber()
    health = HttpProbe(path="/health")

    async def patient(port: int) -> Answer:
        return await prober.ask("127.0.0.1", port, health, key=None, timeout=0.2)

    assert answering(b"", patient)[0] == Answer(status=0, text="no answer within 0.2 s")
    assert answering(b"SSH-2.0-OpenSSH\r\n", patient)[0].status == 0
    refused = asyncio.run(prober.ask("127.0.0.1", free_port(), health, key=None, timeout=2))
    assert refused.status == 0
    assert not asyncio.run(prober.port_open("127.0.0.1", free_port(), timeout=1))


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
    async def asked_of(host: str, bound: str) -> Answer:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ok(b"fine"))
            writer.close()

        async with await asyncio.start_server(serve, bound, 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await HttpProber().ask(host, port, HttpProbe(path="/health"), key=None, timeout=5)

    for host, bound in (("localhost", "127.0.0.1"), ("::1", "::1")):
        assert asyncio.run(asked_of(host, bound)) == Answer(status=200, text="fine")
    nowhere = asyncio.run(
        HttpProber().ask("no-such-host.invalid", 80, HttpProbe(path="/"), key=None, timeout=10)
    )
    assert nowhere.status == 0
    assert nowhere.text.startswith("no-such-host.invalid: ")
