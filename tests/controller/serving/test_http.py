"""What serve answers over HTTP, by real connections: well-behaved clients, slow ones, greedy ones and liars."""

import asyncio
import json
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import psutil
import pytest
import trustme

from llmgw.clock import FakeClock
from llmgw.controller.passes.endpoints import prometheus_sd
from llmgw.controller.serving.configuration import Serving, Tls
from llmgw.controller.serving.http import Surroundings, http_server
from llmgw.controller.serving.listening import Certificate, Limits, address, is_local
from llmgw.controller.serving.webhooks import MAX_BODY, Watched
from llmgw.manifests import schema
from llmgw.model.manifest import Secret
from llmgw.model.problems import StalledError
from llmgw.model.struct import replace
from tests.controller.serving.deliveries import Delivery, push, signed
from tests.controller.serving.surroundings import (
    ENDPOINTS,
    NOW,
    TOKEN,
    last_pass,
    snapshot,
    surroundings,
    webhook,
)

DEADLINE = 30.0
"""Seconds; everything here takes milliseconds on a quiet machine."""
QUICK = Limits(head=0.3, whole=0.6)


@asynccontextmanager
async def served(
    around: Surroundings | None = None, *, limits: Limits | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        http_server(around or surroundings(), "127.0.0.1:0", limits=limits) as where,
        httpx.AsyncClient(base_url=where, timeout=DEADLINE, trust_env=False, verify=False) as client,
    ):
        yield client


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE * 2):
            await test()

    asyncio.run(bounded())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110 - of what the kernel knows nobody tells
            await asyncio.sleep(0.05)


async def deliver(client: httpx.AsyncClient, sent: Delivery, name: str = "forge") -> httpx.Response:
    return await client.post(f"/hook/{name}", content=sent.body, headers=dict(sent.headers))


# ---- how it is ---------------------------------------------------------------------------------------


def test_health_is_that_it_answers_and_readiness_says_why_not() -> None:
    async def test() -> None:
        clock = FakeClock(NOW)
        around = surroundings(clock=clock)
        async with served(around) as client:
            assert (await client.get("/healthz")).text == "ok\n"
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.text) == (200, "ready\n")
            around.snapshots.change(
                source_error="fetching https://ann:pw@git.example/fleet: no answer in 30 s"
            )
            unread = await client.get("/readyz")
            assert unread.status_code == 503
            assert unread.text == (
                "not ready: the repository can't be read: fetching https://***@git.example/fleet: no answer in 30 s\n"
            )
            around.snapshots.change(
                source_error="", last_pass=last_pass(code=1, sentence="Nothing could be done")
            )
            clock.advance(60 * 16)
            late = (await client.get("/readyz")).text
            assert late == (
                "not ready: the last pass that succeeded is 17 minutes old\nnot ready: the last pass: Nothing could be done\n"
            )
            around.snapshots.change(last_good=None, stopping=True, last_pass=None)
            assert (await client.get("/readyz")).text == (
                "not ready: it is ending\nnot ready: no pass has succeeded yet\n"
            )
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.head("/healthz")).status_code == 200

    run(test)


def test_status_is_the_same_json_as_the_commands_with_serves_own_beside() -> None:
    async def test() -> None:
        around = surroundings()
        async with served(around) as client:
            response = await client.get("/status")
            told = response.json()
            assert response.headers["cache-control"] == "no-store"
            assert told["formatVersion"] == 1
            assert told["name"] == "lab-0a1b2c3d"
            assert told["serve"]["applied"]["serial"] == 12
            assert told["serve"]["lastPass"]["sentence"] == "Started chat-1f0c9a2b-0.1"
            jsonschema_rs.Draft202012Validator(schema.schema("status")).validate(told["fleet"])
            assert "hunter22" not in response.text
            around.snapshots.change(status=None)
            assert (await client.get("/status")).json()["fleet"] is None

    run(test)


def test_discovery_is_what_the_command_prints() -> None:
    async def test() -> None:
        async with served() as client:
            response = await client.get("/sd")
            assert response.headers["content-type"] == "application/json"
            assert response.text == prometheus_sd(ENDPOINTS)
            assert response.json()[0]["targets"] == ["10.0.0.11:18000"]

    run(test)


def test_readers_need_the_access_token_where_there_is_one(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "token"
        file.write_text(f"{TOKEN}\n")
        around = surroundings(
            serving=Serving(webhooks=(webhook(),), access_token=Secret(from_file=str(file)))
        )
        async with served(around) as client:
            for path in ("/status", "/metrics", "/sd", "/readyz"):
                wrong = ("", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff\xfe", TOKEN)
                for given in [{}, *({b"Authorization": it.encode("latin-1")} for it in wrong)]:
                    refused = await client.get(path, headers=given)
                    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert (
                    await client.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
                ).status_code == 200
            assert (await client.get("/healthz")).status_code == 200
            assert (await deliver(client, push("github"))).status_code == 202, "a hook has its own secret"
            file.write_text("the-next-access-token")
            assert (await client.get("/sd", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 401
            assert (
                await client.get("/sd", headers={"Authorization": "Bearer the-next-access-token"})
            ).status_code == 200
            file.unlink()
            assert (await client.get("/sd", headers={"Authorization": "Bearer x"})).status_code == 503

    run(test)


# ---- webhooks ----------------------------------------------------------------------------------------


def test_a_hook_becomes_a_hint_at_once_and_its_answer_says_what_it_led_to() -> None:
    async def test() -> None:
        around = surroundings()
        async with served(around) as client:
            answer = await deliver(client, push("github", delivery="d-1"))
            assert (answer.status_code, answer.text) == (202, "looking\n")
            woken = around.hints.take()
            assert woken.heard == frozenset({"webhook"})
            assert woken.text == "webhook forge"
            again = await deliver(client, push("github", delivery="d-1"))
            assert (again.status_code, again.text) == (202, "seen before\n")
            for status, sent in (
                (200, push("github", ref="refs/heads/llmgw/state")),
                (200, push("github", repository="ben/other")),
                (200, signed("github", b"{}", event="ping")),
                (401, push("github", secret=b"a wrong one")),
                (415, Delivery({**push("github").headers, "Content-Type": "text/plain"}, b"")),
            ):
                assert (await deliver(client, sent)).status_code == status
            assert (await client.post("/hook/other")).status_code == 404
            assert (await client.get("/hook/forge")).status_code == 405
            assert around.hints.take().text == ""
            assert around.counts.webhooks == {
                ("forge", 202): 2,
                ("forge", 200): 3,
                ("forge", 401): 1,
                ("forge", 415): 1,
            }

    run(test)


def test_a_delivery_that_is_replayed_makes_it_look_once_more_at_most() -> None:
    """The id is not signed, so a replay under another one is believed: it looks, finds nothing new, and does nothing."""

    async def test() -> None:
        around = surroundings()
        async with served(around) as client:
            sent = push("github", delivery="d-1")
            assert (await deliver(client, sent)).text == "looking\n"
            around.hints.take()
            assert (await deliver(client, sent)).text == "seen before\n"
            assert around.hints.take().text == ""
            renamed = Delivery({**sent.headers, "X-GitHub-Delivery": "d-2"}, sent.body)
            assert (await deliver(client, renamed)).text == "looking\n"
            assert around.hints.take().text == "webhook forge", "what it holds leads nowhere by itself"

    run(test)


def test_a_body_may_come_in_chunks_and_an_empty_one_proves_nothing() -> None:
    async def test() -> None:
        around = surroundings()
        async with served(around) as client:
            sent = push("github")

            async def pieces() -> AsyncIterator[bytes]:
                for at in range(0, len(sent.body), 7):
                    yield sent.body[at : at + 7]

            chunked = await client.post("/hook/forge", content=pieces(), headers=dict(sent.headers))
            assert "content-length" not in chunked.request.headers
            assert chunked.status_code == 202
            around.hints.take()
            assert (await client.post("/hook/forge")).status_code == 415
            assert (await deliver(client, Delivery(sent.headers, b""))).status_code == 401
            assert (await deliver(client, signed("github", b""))).status_code == 400
            assert around.hints.take().text == ""

    run(test)


def test_a_sender_that_asks_first_is_told_to_go_on_and_a_greedy_one_is_not() -> None:
    async def test() -> None:
        around = surroundings()
        sent = push("github")
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items()).encode()
        head = b"POST /hook/forge HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n" + lines
        async with served(around) as client:
            reader, writer = await raw(client)
            writer.write(head + f"Content-Length: {len(sent.body)}\r\n\r\n".encode())
            async with asyncio.timeout(DEADLINE):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
                writer.write(sent.body)
                assert (await reader.readuntil(b"looking\n")).startswith(b"HTTP/1.1 202 ")
            writer.close()
            reader, writer = await raw(client)
            writer.write(head + f"Content-Length: {MAX_BODY + 1}\r\n\r\n".encode())
            assert (await until_cut_off(reader, writer)).startswith(b"HTTP/1.1 413 ")

    run(test)


def test_while_nobody_named_a_branch_the_one_that_is_seen_counts() -> None:
    async def test() -> None:
        around = surroundings(known=snapshot(ref="trunk"))
        around = replace(around, watched=Watched(repository="ann/fleet"))
        async with served(around) as client:
            assert (await deliver(client, push("github", ref="refs/heads/main"))).status_code == 200
            assert (await deliver(client, push("github", ref="refs/heads/trunk"))).status_code == 202

    run(test)


def test_a_storm_of_hooks_is_one_hint_argocd_25462() -> None:
    async def test() -> None:
        around = surroundings()
        async with served(around) as client:

            async def send(deliveries: range) -> list[bytes]:
                """One after the other on one connection, as a forge's worker does."""
                reader, writer = await raw(client)
                answers = []
                for number in deliveries:
                    sent = push("github", delivery=f"d-{number}")
                    lines = [f"{name}: {value}" for name, value in sent.headers.items()]
                    head = "\r\n".join(
                        ["POST /hook/forge HTTP/1.1", "Host: x", *lines, f"Content-Length: {len(sent.body)}"]
                    )
                    writer.write(head.encode() + b"\r\n\r\n" + sent.body)
                    answers.append((await reader.readuntil(b"looking\n")).split(b" ")[1])
                writer.close()
                return answers

            answers = await asyncio.gather(*(send(range(first, first + 20)) for first in range(0, 500, 20)))
            assert [answer for each in answers for answer in each] == [b"202"] * 500
            assert around.hints.take().text == "webhook forge"
            assert around.hints.take().text == ""
            assert around.counts.webhooks == {("forge", 202): 500}

    run(test)


def test_a_secret_that_is_replaced_in_its_file_counts_without_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "secret"
        file.write_text("the secret of until now\n")
        hook = webhook(secrets=(Secret(from_file=str(file)),))
        async with served(surroundings(serving=Serving(webhooks=(hook,)))) as client:
            assert (
                await deliver(client, push("github", secret=b"the secret of until now"))
            ).status_code == 202
            file.write_text("the secret from now on")
            assert (
                await deliver(client, push("github", secret=b"the secret of until now"))
            ).status_code == 401
            assert (
                await deliver(client, push("github", secret=b"the secret from now on"))
            ).status_code == 202
            file.unlink()
            assert (
                await deliver(client, push("github", secret=b"the secret from now on"))
            ).status_code == 503

    run(test)


@pytest.mark.parametrize("environ", [{}, {"HOOK": ""}, {"HOOK": "short"}])
def test_without_a_usable_secret_nothing_is_listened_to(environ: dict[str, str]) -> None:
    async def test() -> None:
        with pytest.raises(StalledError, match="fromEnv: HOOK"):
            async with served(surroundings(environ=environ)):
                pass

    run(test)


def test_nothing_of_a_hook_gets_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        canary = "c4n4ryC4n4ry"
        around = surroundings()
        clock = around.clock
        assert isinstance(clock, FakeClock)
        async with served(around) as client:
            headers = {"X-Other": canary, "User-Agent": canary}
            for sent in (
                push("github", delivery="d-7"),
                push("github", ref=f"refs/heads/{canary}"),
                push("github", secret=canary.encode(), delivery=canary),
                signed("github", canary.encode()),
                Delivery({"Content-Type": canary, "X-Hub-Signature-256": canary}, canary.encode()),
            ):
                both = Delivery({**sent.headers, **headers}, sent.body)
                await deliver(client, both)
                await deliver(client, both)
        told = [record.getMessage() for record in caplog.records if record.name == "llmgw.serve.http"]
        assert canary not in caplog.text
        assert SECRET_TEXT not in caplog.text
        assert any("d-7" in line for line in told)
        refused = [line for line in told if "refused" in line]
        assert len(refused) == len({line.split(":")[1] for line in refused}) == 3, (
            "one line a kind and minute"
        )

    with caplog.at_level(logging.DEBUG):
        run(test)


SECRET_TEXT = "It's a Secret to Everybody"


def test_pings_that_prove_nothing_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        around = surroundings(serving=Serving(webhooks=(webhook("bitbucket-server"),)))
        ping = Delivery({"Content-Type": "application/json", "X-Event-Key": "diagnostics:ping"}, b"{}")
        async with served(around) as client:
            for _ in range(20):
                assert (await deliver(client, ping)).status_code == 200
        told = [record for record in caplog.records if record.name == "llmgw.serve.http"]
        assert len(told) == 1

    with caplog.at_level(logging.DEBUG):
        run(test)


def test_a_secret_that_is_gone_lets_strangers_write_one_line_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET_TEXT)
    reference = Secret(from_file=str(secret))

    async def test() -> None:
        serving = Serving(webhooks=(webhook(secrets=(reference,)),), access_token=reference)
        async with served(surroundings(serving=serving)) as client:
            secret.unlink()
            for _ in range(10):
                assert (await deliver(client, push("github"))).status_code == 503
                assert (await client.get("/status")).status_code == 503
        told = [record.getMessage() for record in caplog.records if record.name == "llmgw.serve.http"]
        assert len(told) == 3, "the webhook's secret, its refusal, the access token"

    with caplog.at_level(logging.DEBUG):
        run(test)


# ---- greedy, lying and slow clients ------------------------------------------------------------------


async def raw(where: httpx.AsyncClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(where.base_url.host, where.base_url.port)


async def still_answers(client: httpx.AsyncClient) -> None:
    """Others than the one that was cut off. With limits as short as in these tests a busy machine may cut off anybody."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                if (await client.get("/healthz")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)


HEAD = b"POST /hook/forge HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def until_cut_off(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, dribble: bytes = b""
) -> bytes:
    """What was answered until the server ended the connection, while we go on sending a byte now and then."""
    got = bytearray()

    async def listen() -> None:
        try:
            while data := await reader.read(65536):
                got.extend(data)
        except ConnectionError:
            pass

    listening = asyncio.ensure_future(listen())
    async with asyncio.timeout(DEADLINE):
        while not listening.done():
            if dribble:
                try:
                    writer.write(dribble)
                    await writer.drain()
                except ConnectionError:
                    pass
            await asyncio.wait([listening], timeout=0.05)
    await listening
    writer.close()
    return bytes(got)


def test_more_than_a_mebibyte_is_refused_however_it_comes() -> None:
    async def test() -> None:
        around = surroundings()
        async with served(around) as client:
            exactly = signed("github", b" " * MAX_BODY)
            assert (await deliver(client, exactly)).status_code == 400, "read, believed, and no push"

            reader, writer = await raw(client)
            writer.write(HEAD + b"Content-Length: 1048577\r\n\r\n")
            assert (await until_cut_off(reader, writer)).startswith(b"HTTP/1.1 413 ")

            reader, writer = await raw(client)
            writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            assert (await until_cut_off(reader, writer, dribble=chunk)).startswith(b"HTTP/1.1 413 ")

            for wrong in (b"-1", b"1e3", b"99999999999999999999999999", b"1, 2"):
                reader, writer = await raw(client)
                writer.write(HEAD + b"Content-Length: " + wrong + b"\r\n\r\n")
                assert (await until_cut_off(reader, writer))[9:12] in (b"400", b"413"), wrong
            assert (await client.get("/healthz")).status_code == 200
            assert around.hints.take().text == ""

    run(test)


def test_a_content_length_that_lies_leads_to_nothing() -> None:
    async def test() -> None:
        around = surroundings()
        sent = push("github")
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items()).encode()
        head = b"POST /hook/forge HTTP/1.1\r\nHost: x\r\n" + lines
        async with served(around, limits=QUICK) as client:
            reader, writer = await raw(client)
            writer.write(head + b"Content-Length: 999999\r\n\r\n" + sent.body)
            assert await until_cut_off(reader, writer) == b"", "the rest never comes"
        async with served(around) as client:
            reader, writer = await raw(client)
            writer.write(head + b"Content-Length: 5\r\n\r\n" + sent.body + b"\r\n\r\n")
            answered = await until_cut_off(reader, writer)
            assert answered.startswith(b"HTTP/1.1 401 ")
            assert answered.count(b"HTTP/1.1 400 ") == 1, "what follows is no request"
            assert around.hints.take().text == ""

    run(test)


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"", b""),
        (b"G", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n"),
        (HEAD + b"Content-Length: 1000\r\n\r\n", b"x"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /hea", b""),
    ],
    ids=["silent", "one-letter", "head", "body", "chunks", "kept-alive", "second-head"],
)
def test_a_slow_client_is_cut_off(begins: bytes, goes_on: bytes) -> None:
    async def test() -> None:
        async with served(limits=QUICK) as client:
            reader, writer = await raw(client)
            writer.write(begins)
            await until_cut_off(reader, writer, dribble=goes_on)
            await still_answers(client)

    run(test)


def test_a_client_whose_head_came_in_time_has_longer_for_the_rest() -> None:
    """Each deadline by itself: were the listener's protocol another than the one that is built upon, this would show it."""

    async def test() -> None:
        sent = push("github")
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items()).encode()
        head = b"POST /hook/forge HTTP/1.1\r\nHost: x\r\n" + lines
        async with served(limits=Limits(head=2, whole=DEADLINE * 4)) as client:
            reader, writer = await raw(client)
            writer.write(head + f"Content-Length: {len(sent.body)}\r\n\r\n".encode() + sent.body[:1])
            async with asyncio.timeout(DEADLINE):
                later = await raw(client)
                assert await until_cut_off(*later) == b"", "who sends no head is cut off by now"
                writer.write(sent.body[1:])
                assert (await reader.readuntil(b"looking\n")).startswith(b"HTTP/1.1 202 ")
                writer.write(b"GET /hea")
                assert await until_cut_off(reader, writer) == b"", (
                    "the next head has no longer than the first"
                )

    run(test)


def test_who_does_not_take_the_answer_is_cut_off() -> None:
    async def test() -> None:
        long = "." * 20_000_000
        async with served(surroundings(known=snapshot(holder=long)), limits=QUICK) as client:
            ours = None
            while ours is None:  # where the machine is so busy that even the request was too slow, again
                reader, writer = await raw(client)
                writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
                try:
                    assert (await reader.readexactly(12)).endswith(b"200"), (
                        "it answers, and we read no further"
                    )
                except (asyncio.IncompleteReadError, ConnectionError):
                    writer.close()
                else:
                    ours = writer.get_extra_info("sockname")
            await until(lambda: not any(it.raddr == ours for it in psutil.Process().net_connections("tcp")))
            writer.transport.abort()

    run(test)


def test_a_head_that_does_not_end_is_refused() -> None:
    async def test() -> None:
        async with served() as client:
            reader, writer = await raw(client)
            writer.write(b"GET /healthz HTTP/1.1\r\nX-Long: ")
            answered = await until_cut_off(reader, writer, dribble=b"y" * 8192)
            assert answered.startswith(b"HTTP/1.1 400 ") or answered == b""
            assert (await client.get("/healthz")).status_code == 200

    run(test)


def test_a_crowd_of_silent_connections_keeps_nobody_out() -> None:
    async def test() -> None:
        async with served(limits=Limits(head=DEADLINE * 2, whole=DEADLINE * 2, connections=5)) as client:
            crowd = [await raw(client) for _ in range(12)]
            assert (await client.get("/healthz")).status_code == 200
            for reader, writer in crowd[:6]:
                assert await until_cut_off(reader, writer) == b"", "the oldest made room"
            for _, writer in crowd[6:]:
                writer.close()

    run(test)


# ---- TLS, places, ending -----------------------------------------------------------------------------


def _issue(authority: trustme.CA, folder: Path, name: str = "localhost") -> trustme.LeafCert:
    made = authority.issue_cert(name, "127.0.0.1")
    made.private_key_pem.write_to_path(str(folder / "tls.key"))
    (folder / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return made


def test_tls_with_a_certificate_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    async def test() -> None:
        authority = trustme.CA()
        context = ssl.create_default_context()
        authority.configure_trust(context)
        _issue(authority, tmp_path)
        tls = Tls(cert="~/tls.crt", key=str(tmp_path / "tls.key"))
        around = surroundings(serving=Serving(webhooks=(webhook(),), tls=tls), home=tmp_path)
        async with http_server(around, "127.0.0.1:0") as where:
            assert where.startswith("https://127.0.0.1:")

            async def serial() -> str:
                url = httpx.URL(where)
                _, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
                peer: dict[str, Any] = writer.get_extra_info("peercert")
                writer.close()
                return str(peer["serialNumber"])

            async with httpx.AsyncClient(verify=context, base_url=where, trust_env=False) as client:
                assert (await deliver(client, push("github"))).status_code == 202
            first = await serial()
            (tmp_path / "tls.key").write_text("half-written")
            assert await serial() == first, "the old one stays until the new one is whole"
            _issue(authority, tmp_path)
            assert await serial() != first

    run(test)


def test_a_certificate_that_can_not_be_used_is_told_at_once(tmp_path: Path) -> None:
    authority = trustme.CA()
    _issue(authority, tmp_path)
    (tmp_path / "other").mkdir()
    _issue(authority, tmp_path / "other")
    cases = {
        "No such file": (tmp_path / "no.crt", tmp_path / "tls.key"),
        "key values mismatch": (tmp_path / "tls.crt", tmp_path / "other" / "tls.key"),
    }
    for reason, (cert, key) in cases.items():
        with pytest.raises(StalledError, match=rf"(?i)loading the certificate .*{reason}.*belong together"):
            Certificate(cert, key)


def test_a_place_that_can_not_be_had_is_told() -> None:
    async def test() -> None:
        async with http_server(surroundings(), "127.0.0.1:0") as where:
            with pytest.raises(StalledError, match=r"in use.*--listen"):
                async with http_server(surroundings(), where.removeprefix("http://")):
                    pass

    run(test)
    assert address("[::1]:9470") == ("::1", 9470)
    assert [is_local(it) for it in ("127.0.0.1:1", "[::1]:1", "localhost:1")] == [True] * 3
    assert [is_local(it) for it in (":1", "0.0.0.0:1", "[::]:1", "10.0.0.1:1", "ops.example:1")] == [
        False
    ] * 5
    for wrong in ("", "9470", "host", "host:port", "host:70000", "::1:80", ":"):
        with pytest.raises(StalledError, match="host and port"):
            address(wrong)


def test_a_port_alone_means_every_address_of_the_machine() -> None:
    async def test() -> None:
        async with (
            http_server(surroundings(), ":0") as where,
            httpx.AsyncClient(verify=False, trust_env=False) as client,
        ):
            port = httpx.URL(where).port
            assert (await client.get(f"http://127.0.0.1:{port}/healthz")).text == "ok\n"

    run(test)


def test_it_leaves_signals_alone_and_ends_with_its_answers_given() -> None:
    async def test() -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        async with served() as client:
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
            assert (await client.get("/healthz")).status_code == 200
        with pytest.raises(httpx.TransportError):
            async with httpx.AsyncClient(trust_env=False) as later:
                await later.get(f"{client.base_url}/healthz")

    run(test)


def test_an_access_token_in_the_environment_is_checked_when_it_begins() -> None:
    async def test() -> None:
        serving = Serving(access_token=Secret(from_env="NOPE"))
        with pytest.raises(StalledError, match="fromEnv: NOPE"):
            async with served(surroundings(serving=serving)):
                pass

    run(test)


def test_ready_goes_by_how_long_ago_a_pass_succeeded() -> None:
    assert surroundings().lately == timedelta(minutes=15)
    assert json.loads(prometheus_sd(())) == []
