"""A listener inside the program's own event loop that nobody can hold up: uvicorn's HTTP, with deadlines and a limit on connections.

uvicorn itself waits for a request for as long as it takes. It sets no signal handlers here and starts no thread.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct


class Limits(Struct):
    """``head``: seconds for a request's head to be there, from the connection's beginning or the answer before it. ``whole``:
    for the rest, until the answer is taken. Forges give up after 10; a scrape of a large fleet takes one."""

    head: float = 10
    whole: float = 30
    connections: int = 512  # half of the descriptors that a process usually has
    head_size: int = 32 * 1024  # bytes


@asynccontextmanager
async def listening(
    app: ASGIApp, listen: str, *, certificate: "Certificate | None" = None, limits: Limits | None = None
) -> AsyncIterator[str]:
    """Answers on ``host:port`` until left; the address is returned, with the port that was found where 0 was asked for.

    Raises StalledError when the place can't be had."""
    limits = limits or Limits()
    config = uvicorn.Config(
        app,
        http=patient(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # what strangers send that is no HTTP is nobody's business
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=limits.head_size,
        timeout_graceful_shutdown=5,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)

    def protocol() -> asyncio.Protocol:
        if certificate is not None:
            certificate.refresh()
        made: Any = config.http_protocol_class
        connection: asyncio.Protocol = made(config=config, server_state=server.server_state, app_state={})
        return connection

    bound = _bound(listen)
    tls: dict[str, Any] = (
        {"ssl": certificate.context, "ssl_handshake_timeout": limits.head} if certificate else {}
    )
    server.servers = [await asyncio.get_running_loop().create_server(protocol, sock=bound, **tls)]
    server.started = True
    host, port = bound.getsockname()[:2]
    try:
        yield f"{'https' if certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await server.shutdown(sockets=[bound])


class Patient(H11Protocol):
    """A connection that ends when its client is too slow. Who has sent no whole request yet makes room when there are too many."""

    limits = Limits()
    unheard: ClassVar[dict[H11Protocol, None]]  # in the order of their coming
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._listen()
        if len(self.connections) > self.limits.connections:
            next(iter(self.unheard)).transport.abort()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.unheard.pop(self, None)
            self._within(self.limits.whole)

    def on_response_complete(self) -> None:
        self._listen()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.unheard.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _listen(self) -> None:
        self.unheard[self] = None
        self._within(self.limits.head)

    def _within(self, seconds: float) -> None:
        """Also after the end was asked for: a client that takes no answer would keep it for good."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)


def patient(limits: Limits) -> type[Patient]:
    """For one listener."""
    return type("PatientWithin", (Patient,), {"limits": limits, "unheard": {}})


def _bound(listen: str) -> socket.socket:
    host, port = address(listen)
    try:
        if not host and socket.has_dualstack_ipv6():
            bound = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            family, *_, where = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            bound = socket.create_server(where, family=family)
    except OSError as wrong:
        raise StalledError(
            f"listening on {listen}: {wrong.strerror or wrong}: choose another address or port with --listen"
        ) from wrong
    bound.setblocking(False)
    return bound


def address(listen: str) -> tuple[str, int]:
    """``127.0.0.1:9470``, ``[::1]:9470``, ``name:9470``, or ``:9470`` for all addresses. Raises StalledError."""
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise StalledError(
            f"listening on {listen!r}: write host and port, such as 127.0.0.1:9470 or [::1]:9470"
        )
    return bare, int(port)


def is_local(listen: str) -> bool:
    """Whether only this machine reaches it."""
    host, _ = address(listen)
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Certificate:
    """A certificate and its key from files; connections that come after a change of the files get the new one."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._files = (cert, key)
        self.problem = ""
        """Why the newest files are not used; empty: they are."""
        self.context = self._loaded()
        self._seen = self._state()

    def refresh(self) -> None:
        """Costs two looks at the disk where nothing has changed."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._loaded()  # a half-written pair must not get into the context that is in use
            self.context.load_cert_chain(*self._files)
        except (StalledError, OSError) as wrong:
            self.problem = str(wrong)
        else:
            self.problem = ""

    def _loaded(self) -> ssl.SSLContext:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            made.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as wrong:  # SSLError is an OSError
            raise StalledError(
                f"loading the certificate {self._files[0]} with the key {self._files[1]}: {_reason(wrong)}: give PEM files "
                "that belong together, and a key without a passphrase"
            ) from wrong
        return made

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_about, self._files))


def _no_password() -> str:
    """Else OpenSSL asks on the terminal."""
    return ""


def _about(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - same as Path.stat, and this is on the way of every connection
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reason(wrong: OSError | ValueError) -> str:
    reason = getattr(wrong, "reason", None) or getattr(wrong, "strerror", None)
    return str(reason or wrong).replace("_", " ").lower()
