"""From a way to an open SSH connection: sockets, handshakes, host keys, authentication. Blocking; runs in threads.

Retries what a busy server does (sshd drops new connections at random beyond MaxStartups), and nothing else.
"""

import logging
import random
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from typing import Final

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from llmgw.controller.nodes.ssh import hostkeys, keys
from llmgw.controller.nodes.ssh.login import Hop, Login
from llmgw.model.problems import RetryError, StalledError

CONNECT_WITHIN: Final = 5.0
HANDSHAKE_WITHIN: Final = 10.0
"""Banner and key exchange, each; a machine that computes on all cores takes seconds."""
USER_TIMEOUT: Final = 8000
"""Milliseconds that the kernel keeps trying to deliver bytes. A flap of 2 s survives it."""
AT_ONCE: Final = 8
"""Handshakes with one server at a time: sshd begins to drop at 10 (MaxStartups 10:30:100)."""
ALL_AT_ONCE: Final = 32
"""Handshakes of this process: key exchange is arithmetic, and more only makes each slower."""
TRIES: Final = 6
FIRST_PAUSE: Final = 0.1
AGAIN: Final = timedelta(seconds=2)

_busy = threading.BoundedSemaphore(ALL_AT_ONCE)
_doors: defaultdict[tuple[str, int], threading.BoundedSemaphore] = defaultdict(
    lambda: threading.BoundedSemaphore(AT_ONCE)
)
_doors_lock = threading.Lock()

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False  # it prints tracebacks of what we raise as errors of our own


class _DroppedError(Exception):
    """The server hung up before it said who it is: it is busy."""


def dial(login: Login) -> tuple[paramiko.Transport, ...]:
    """Connections along the way, the node's last; all are closed again when one can't be made.

    Raises RetryError where the machine does not answer, StalledError where it is another or refuses us."""
    made: list[paramiko.Transport] = []
    try:
        for hop in login.hops:
            made.append(_reach(hop, made[-1] if made else None, login.node))
            _authenticate(made[-1], hop, login.node)
    except BaseException:
        hang_up(made)
        raise
    return tuple(made)


def host_keys(login: Login) -> tuple[hostkeys.HostKey, ...]:
    """Every host key that the machine at the end of the way shows, without logging in there. Asks once a type."""
    way: list[paramiko.Transport] = []
    found: list[hostkeys.HostKey] = []
    try:
        for hop in login.hops[:-1]:
            way.append(_reach(hop, way[-1] if way else None, login.node))
            _authenticate(way[-1], hop, login.node)
        for kinds in (("ssh-ed25519",), ("ecdsa-sha2-nistp256",), ("rsa-sha2-512", "rsa-sha2-256")):
            with suppress(IncompatiblePeer):
                transport = _handshake(login.target, way[-1] if way else None, login.node, only=kinds)
                found.append(_shown(transport))
                transport.close()
    finally:
        hang_up(way)
    if not found:
        raise StalledError(f"node {login.node}: {login.target} shows no host key of a type known here")
    return tuple(found)


def hang_up(transports: "list[paramiko.Transport] | tuple[paramiko.Transport, ...]") -> None:
    """The innermost first. Never waits for a peer."""
    for transport in reversed(transports):
        transport.close()
        transport.sock.close()


def _reach(hop: Hop, through: paramiko.Transport | None, node: str) -> paramiko.Transport:
    try:
        transport = _handshake(hop, through, node)
    except IncompatiblePeer as wrong:
        raise StalledError(f"node {node}: connecting to {hop}: {wrong}: update its SSH server") from wrong
    try:
        hop.pinned.check(_shown(transport), node=node, machine=str(hop))
    except StalledError:
        hang_up([transport])
        raise
    return transport


def _shown(transport: paramiko.Transport) -> hostkeys.HostKey:
    key = transport.get_remote_server_key()
    return hostkeys.HostKey(kind=key.get_name(), blob=key.asbytes())


def _handshake(
    hop: Hop, through: paramiko.Transport | None, node: str, *, only: tuple[str, ...] = ()
) -> paramiko.Transport:
    doing = f"node {node}: connecting to {hop}"
    for attempt in range(TRIES):
        try:
            return _shake(hop, through, doing, only)
        except _DroppedError as dropped:  # noqa: PERF203 - a busy server is asked again
            if attempt == TRIES - 1:
                raise RetryError(
                    f"{doing}: the server hung up {TRIES} times before it said who it is ({dropped}): too many others connect"
                    " to it (MaxStartups), or something before it lets nobody through",
                    after=AGAIN,
                ) from dropped
            time.sleep(FIRST_PAUSE * 2**attempt * (0.5 + random.random()))  # noqa: S311 - spreads retries
    raise AssertionError("unreachable")


def _shake(
    hop: Hop, through: paramiko.Transport | None, doing: str, only: tuple[str, ...]
) -> paramiko.Transport:
    """The socket is made before the door is taken: dead machines hold up nobody."""
    sock = _connect(hop, through, doing)
    with _door(hop), _busy:
        transport = paramiko.Transport(sock)
        transport.banner_timeout = HANDSHAKE_WITHIN
        transport.handshake_timeout = HANDSHAKE_WITHIN
        transport.auth_timeout = HANDSHAKE_WITHIN
        transport.channel_timeout = HANDSHAKE_WITHIN
        _prefer(transport, hop, only)
        done = threading.Event()
        transport.start_client(event=done)
        finished = done.wait(2 * HANDSHAKE_WITHIN)
    if finished and transport.is_active():
        return transport
    wrong = transport.get_exception()
    hang_up([transport])
    if isinstance(wrong, IncompatiblePeer):
        raise wrong
    silent = wrong is None or isinstance(
        wrong.__context__, TimeoutError
    )  # paramiko tells both in the same words
    told = str(wrong or "").removeprefix("Error reading SSH protocol banner")
    if not silent and (isinstance(wrong, EOFError) or told != str(wrong)):
        raise _DroppedError(told or "end of file")
    why = told or "it says nothing"
    raise RetryError(
        f"{doing}: the connection opens, and no SSH server answers ({why}): is the machine frozen or overloaded, and is it"
        f" SSH on port {hop.port}?",
        after=AGAIN,
    ) from wrong


def _door(hop: Hop) -> threading.BoundedSemaphore:
    with _doors_lock:
        return _doors[hop.host, hop.port]


def _connect(hop: Hop, through: paramiko.Transport | None, doing: str) -> "socket.socket | paramiko.Channel":
    if through is not None:
        try:
            return through.open_channel(
                "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=CONNECT_WITHIN + 5
            )
        except paramiko.ChannelException as wrong:
            raise RetryError(
                f"{doing}: the jump host can't connect there: {wrong.text} (code {wrong.code}): does the machine run, and may"
                " that host forward (AllowTcpForwarding)?",
                after=AGAIN,
            ) from wrong
        except (paramiko.SSHException, OSError, EOFError) as wrong:
            raise RetryError(f"{doing}: by the jump host: {wrong}", after=AGAIN) from wrong
    try:
        sock = socket.create_connection((hop.host, hop.port), CONNECT_WITHIN)
    except socket.gaierror as wrong:
        raise RetryError(
            f"{doing}: the name {hop.host} is not known: {wrong.strerror}", after=AGAIN
        ) from wrong
    except TimeoutError as wrong:
        raise RetryError(
            f"{doing}: no answer in {CONNECT_WITHIN:g} s: is the machine up, and its network?", after=AGAIN
        ) from wrong
    except OSError as wrong:
        raise RetryError(
            f"{doing}: {wrong.strerror or wrong}: is its SSH server running?", after=AGAIN
        ) from wrong
    # Without it every request on a channel waits 40 ms for Nagle's algorithm; paramiko does not set it.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT)
    return sock


def _prefer(transport: paramiko.Transport, hop: Hop, only: tuple[str, ...]) -> None:
    """The pinned types first, so that a machine with several keys shows one that is pinned; then all others, so that a
    machine with other keys can be told apart from one that speaks no SSH."""
    options = transport.get_security_options()
    known = tuple(options.key_types)
    if only:
        options.key_types = tuple(kind for kind in known if kind in only)
        return
    wanted = {kind for key in hop.pinned.keys for kind in _algorithms(key.kind)}
    first = tuple(kind for kind in known if kind in wanted)
    options.key_types = first + tuple(kind for kind in known if kind not in wanted)


def _algorithms(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa") if kind == "ssh-rsa" else (kind,)


def _authenticate(transport: paramiko.Transport, hop: Hop, node: str) -> None:
    doing = f"node {node}: logging in as {hop}"
    refused: list[str] = []
    with keys.offered(hop.credentials, node=node) as offered:
        for key in offered:
            if _taken(transport, hop.user, key, doing):
                return
            refused.append(keys.shown(key))
    raise StalledError(
        f"{doing}: refused with {' and '.join(refused)}: put that public key into ~{hop.user}/.ssh/authorized_keys there, or"
        " name another in ssh.identity"
    )


def _taken(transport: paramiko.Transport, user: str, key: paramiko.PKey, doing: str) -> bool:
    try:
        further = transport.auth_publickey(user, key)
    except paramiko.BadAuthenticationType as wrong:
        raise StalledError(
            f"{doing}: the server takes no keys, only {', '.join(wrong.allowed_types)}: allow PubkeyAuthentication there"
        ) from wrong
    except paramiko.AuthenticationException as wrong:
        if not transport.is_active():
            raise RetryError(f"{doing}: {wrong}", after=AGAIN) from wrong
        return False
    except (paramiko.SSHException, OSError, EOFError) as wrong:
        raise RetryError(f"{doing}: {str(wrong) or 'the server hung up'}", after=AGAIN) from wrong
    if further:
        raise StalledError(
            f"{doing}: the key is taken, and the server asks for {', '.join(further)} too: llmgw has keys only"
        )
    return True
