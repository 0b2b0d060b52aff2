"""What ``serve`` answers over HTTP: webhooks, how it is, and numbers. Reads snapshots, gives hints, and touches nothing else.

The addresses: ``/hook/<name>``, ``/healthz``, ``/readyz``, ``/status``, ``/metrics``, ``/sd``.
"""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from llmgw.clock import Clock
from llmgw.controller.passes.endpoints import prometheus_sd
from llmgw.controller.serving.access import Lookup, opens
from llmgw.controller.serving.configuration import Serving, Webhook
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.listening import Certificate, Limits, listening
from llmgw.controller.serving.metrics import Counts, Page
from llmgw.controller.serving.signatures import headers_of
from llmgw.controller.serving.snapshot import Snapshot, Snapshots
from llmgw.controller.serving.webhooks import MAX_BODY, Answer, Deliveries, Watched, judge
from llmgw.model.manifest import Secret
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct
from llmgw.wire.codec import to_json

LOG = logging.getLogger("llmgw.serve.http")
BODIES = 64 * MAX_BODY
"""Bytes of all bodies that are being received together."""
QUIET = timedelta(minutes=1)
"""Between two lines about refusals of one kind: strangers must not be able to fill a log."""
FORMAT_VERSION = 1
PLAIN = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Surroundings(Struct):
    """What the answers are made from. ``watched``: what a webhook may be about, but for its branch while only a snapshot
    knows that. ``lately``: how long a good pass makes ready. ``lookup`` reads secrets."""

    serving: Serving
    snapshots: Snapshots
    hints: Hints
    watched: Watched
    lookup: Lookup
    clock: Clock
    lately: timedelta
    home: Path
    counts: Counts
    redact: Callable[[str], str]


@asynccontextmanager
async def http_server(
    around: Surroundings, listen: str, *, limits: Limits | None = None
) -> AsyncIterator[str]:
    """Answers until left; the address it listens on. Raises StalledError when a secret, the certificate or the place can't be
    had: better at once than at the first webhook."""
    _check_secrets(around)
    tls = around.serving.tls
    certificate = (
        Certificate(_at_home(tls.cert, around.home), _at_home(tls.key, around.home))
        if tls is not None
        else None
    )
    async with listening(application(around), listen, certificate=certificate, limits=limits) as where:
        yield where


def _check_secrets(around: Surroundings) -> None:
    for webhook in around.serving.webhooks:
        for secret in webhook.secrets:
            around.lookup(secret)
    if around.serving.access_token is not None:
        around.lookup(around.serving.access_token)


def _at_home(path: str, home: Path) -> Path:
    return home / path[2:] if path.startswith("~/") else Path(path)


def application(around: Surroundings) -> Starlette:
    hooks = _Hooks(around)
    guarded = _guarded(around)
    page = Page(around.counts)

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=PLAIN)

    async def ready(_: Request) -> Response:
        problems = unready(around)
        told = "".join(f"not ready: {problem}\n" for problem in problems)
        text = around.redact(told) or "ready\n"
        return PlainTextResponse(text, status_code=503 if problems else 200, headers=PLAIN)

    async def status(_: Request) -> Response:
        text = json.dumps(status_document(around.snapshots.now), indent=2, ensure_ascii=False)
        return Response(f"{around.redact(text)}\n", media_type="application/json", headers=PLAIN)

    async def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(page.of(around.snapshots.now)), headers={**PLAIN, "Content-Type": kind})

    async def discovery(_: Request) -> Response:
        text = prometheus_sd(around.snapshots.now.endpoints)
        return Response(text, media_type="application/json", headers=PLAIN)

    return Starlette(
        routes=[
            Route("/hook/{name}", hooks.answer, methods=["POST"]),
            Route("/healthz", health),
            Route("/readyz", guarded(ready)),
            Route("/status", guarded(status)),
            Route("/metrics", guarded(metrics)),
            Route("/sd", guarded(discovery)),
        ]
    )


Endpoint = Callable[[Request], Awaitable[Response]]


def _guarded(around: Surroundings) -> Callable[[Endpoint], Endpoint]:
    token, quiet = around.serving.access_token, _Quiet(around.clock)

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            if token is not None:
                try:
                    known = around.lookup(token)
                except StalledError as wrong:
                    quiet.warn(("access token",), str(wrong))
                    return PlainTextResponse(
                        "the access token can't be read\n", status_code=503, headers=PLAIN
                    )
                if not opens(request.headers.get("authorization", ""), known):
                    needs = {**PLAIN, "WWW-Authenticate": "Bearer"}
                    return PlainTextResponse("send the access token\n", status_code=401, headers=needs)
            return await endpoint(request)

        return answer

    return guarded


# ---- how it is ---------------------------------------------------------------------------------------


def unready(around: Surroundings) -> list[str]:
    """Why nobody should rely on it right now; empty: it does its work."""
    now, known = around.clock.now(), around.snapshots.now
    problems = []
    if known.stopping:
        problems.append("it is ending")
    if known.source_error:
        problems.append(f"the repository can't be read: {known.source_error}")
    if known.last_good is None:
        problems.append("no pass has succeeded yet")
    elif now - known.last_good > around.lately:
        minutes = (now - known.last_good).total_seconds() / 60
        problems.append(f"the last pass that succeeded is {minutes:.0f} minutes old")
    if problems and known.last_pass is not None and known.last_pass.code:
        problems.append(f"the last pass: {known.last_pass.sentence}")
    return problems


def status_document(known: Snapshot) -> dict[str, Any]:
    """``fleet`` is what `llmgw status --json` prints, as the last pass saw it; the rest is about ``serve`` itself."""
    status = to_json(known.status) if known.status is not None else None
    own = {
        "version": known.version,
        "started": known.started,
        "holder": known.holder,
        "branch": known.ref,
        "head": known.head,
        "applied": known.applied,
        "lastPass": known.last_pass,
        "lastGood": known.last_good,
        "looked": known.looked,
        "changes": known.changes,
        "blocked": known.blocked,
        "drift": known.drift,
        "sourceError": known.source_error,
        "stopping": known.stopping,
    }
    return {
        "formatVersion": FORMAT_VERSION,
        "name": known.fleet,
        "serve": {key: to_json(value) for key, value in own.items()},
        "fleet": {"formatVersion": FORMAT_VERSION, **status} if status is not None else None,
    }


# ---- webhooks ----------------------------------------------------------------------------------------


class _Quiet:
    """What strangers can bring about as often as they like, in the log once in a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[tuple[str, ...], datetime] = {}

    def warn(self, key: tuple[str, ...], text: str) -> None:
        now = self._clock.now()
        if key not in self._told or now - self._told[key] >= QUIET:
            self._told[key] = now
            LOG.warning("%s (others like it within a minute are not told)", text)


class _Hooks:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._known = {webhook.name: webhook for webhook in around.serving.webhooks}
        self._deliveries = Deliveries()
        self._receiving = 0  # bytes of bodies that are not judged yet
        self._quiet = _Quiet(around.clock)

    async def answer(self, request: Request) -> Response:
        webhook = self._known.get(request.path_params["name"])
        if webhook is None:
            return PlainTextResponse("Not Found", status_code=404, headers=PLAIN)
        body = bytearray()
        try:
            refusal = await self._receive(request, body)
        except ClientDisconnect:
            return PlainTextResponse("gone", status_code=400)
        finally:
            self._receiving -= len(body)
        answer = refusal or self._judged(webhook, request, bytes(body))
        self._told(webhook, answer)
        headers = {**PLAIN, **({"Connection": "close"} if refusal else {}), **_again(answer)}
        return PlainTextResponse(f"{answer.text}\n", status_code=answer.status, headers=headers)

    async def _receive(self, request: Request, body: bytearray) -> Answer | None:
        """What it says of its length is believed only where it says too much."""
        declared = request.headers.get("content-length", "0")
        too_long = Answer(status=413, text=f"more than {MAX_BODY} bytes")
        if not declared.isdecimal() or int(declared) > MAX_BODY:
            return too_long
        async for chunk in request.stream():
            if len(body) + len(chunk) > MAX_BODY:
                return too_long
            if self._receiving + len(chunk) > BODIES:
                return Answer(status=503, text="too much at once")
            body += chunk
            self._receiving += len(chunk)
        return None

    def _judged(self, webhook: Webhook, request: Request, body: bytes) -> Answer:
        around, now = self._around, self._around.clock.now()
        answer = judge(
            webhook.provider,
            headers_of(request.headers.raw),
            body,
            secrets=[self._secret(webhook, reference) for reference in webhook.secrets],
            watched=Watched(
                branch=around.watched.branch or around.snapshots.now.ref,
                state_ref=around.watched.state_ref,
                repository=webhook.repository or around.watched.repository,
            ),
            now=now,
        )
        if not answer.hint:
            return answer
        if self._deliveries.again(webhook.name, answer.delivery, now):
            return Answer(status=202, text="seen before", delivery=answer.delivery)
        around.hints.hint("webhook", f"webhook {webhook.name}")
        return answer

    def _secret(self, webhook: Webhook, reference: Secret) -> bytes:
        """Nothing where it can't be read: that opens nothing, and another one may fit."""
        try:
            return self._around.lookup(reference)
        except StalledError as wrong:
            self._quiet.warn((webhook.name, str(reference)), f"webhook {webhook.name}: {wrong}")
            return b""

    def _told(self, webhook: Webhook, answer: Answer) -> None:
        self._around.counts.webhook(webhook.name, answer.status)
        if answer.status < 400 and not answer.stranger:
            delivery = f" (delivery {answer.delivery})" if answer.delivery else ""
            LOG.info("webhook %s: %d %s%s", webhook.name, answer.status, answer.text, delivery)
            return
        word = "answered" if answer.stranger else "refused"
        told = f"webhook {webhook.name}: {word} with {answer.status}: {answer.text}"
        self._quiet.warn((webhook.name, str(answer.status)), told)


def _again(answer: Answer) -> dict[str, str]:
    return {"Retry-After": "5"} if answer.status == 503 else {}
