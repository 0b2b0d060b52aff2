"""Git hosts as teams have them, on loopback: one behind https that wants a token, one behind ssh that wants a deploy key.

Both serve the bare repositories of a folder with Git's own programs, write down what they were asked, and can go away and
come back. They need no root.
"""

import base64
import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, Final, cast

import trustme

from llmgw.model.ids import Commit
from llmgw.model.struct import Struct
from tests.ports import row_of_ports

UP_WITHIN: Final = 20.0
"""Seconds that a server may take to listen on a busy machine."""
QUIET: Final = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
    "LC_ALL": "C",
}
"""What makes a person's git the same on every machine."""


def git(*words: str, at: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """A person's git, in the folder ``at``; what it printed. Fails when it fails."""
    where = () if at is None else ("-C", str(at))
    done = subprocess.run(
        ("git", *where, *words),
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **QUIET, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"git {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


class Repositories(Struct, kw_only=False):
    """The bare repositories of a host, on its own disk."""

    folder: Path

    def add(self, name: str = "fleet", *, branch: str = "main") -> Path:
        """A new empty one, ``NAME.git``."""
        path = self.path(name)
        git("init", "--quiet", "--bare", f"--initial-branch={branch}", str(path))
        return path

    def path(self, name: str = "fleet") -> Path:
        return self.folder / f"{name}.git"

    def push(
        self, files: Mapping[str, str], message: str = "Change", *, name: str = "fleet", branch: str = "main"
    ) -> Commit:
        """A commit by somebody else, whose clone is as new as the host; its id."""
        clone = self.folder / f".{name}.{branch.replace('/', '-')}.clone"
        if not clone.exists():
            git("clone", "--quiet", str(self.path(name)), str(clone))
            git("symbolic-ref", "HEAD", f"refs/heads/{branch}", at=clone)
        git("fetch", "--quiet", "origin", at=clone)
        if git("for-each-ref", f"refs/remotes/origin/{branch}", at=clone):
            git("reset", "--quiet", "--hard", f"origin/{branch}", at=clone)
        for path, text in files.items():
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            (clone / path).write_text(text)
        git("add", "--all", at=clone)
        git("commit", "--quiet", "--allow-empty", "--message", message, at=clone)
        git("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}", at=clone)
        return Commit(git("rev-parse", "HEAD", at=clone))


# ---- https -----------------------------------------------------------------------------------------


class Asked(Struct, kw_only=False):
    """One request: ``allowed`` says whether it brought the token."""

    line: str
    allowed: bool


@dataclass(slots=True)
class HttpsHost:
    """``git http-backend`` behind TLS with a certificate of an authority made for it. ``token`` may be changed at any time."""

    repositories: Repositories
    port: int
    token: str
    ca: Path  # the authority's certificate
    user: str | None = None  # None: any, as most hosts take it
    requests: list[Asked] = field(default_factory=list)
    delay: float = 0.0  # seconds before each answer
    elsewhere: str = ""  # the beginning of another host's address, to which everybody is sent on
    _closing: threading.Event = field(default_factory=threading.Event)
    _context: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    _server: "_Server | None" = None
    _thread: threading.Thread | None = None

    def url(self, name: str = "fleet") -> str:
        return f"https://localhost:{self.port}/{name}.git"

    def settings(self, name: str = "fleet") -> dict[str, str]:
        """What makes llmgw use it, as variables of its environment."""
        token = self.ca.with_name("token")
        token.write_text(self.token)
        token.chmod(0o600)
        return {
            "LLMGW_REPO": self.url(name),
            "LLMGW_TOKEN": f"{{fromFile: {token}}}",
            "LLMGW_CA_FILE": str(self.ca),
        }

    def up(self) -> None:
        assert self._server is None
        self._closing.clear()
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.host = self
        self._server.context = self._context
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def down(self) -> None:
        """Nobody listens any more; requests at work are answered first, without their delay."""
        if self._server is None or self._thread is None:
            return
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = None

    def allows(self, authorization: str | None) -> bool:
        kind, _, text = (authorization or "").partition(" ")
        try:
            user, _, password = base64.b64decode(text).decode().partition(":")
        except ValueError:
            return False
        return kind == "Basic" and password == self.token and self.user in (None, user)


@contextmanager
def https_host(
    base: Path, *, token: str = "t0ken-of-the-fleet", user: str | None = None
) -> Iterator[HttpsHost]:
    """A host whose repositories lie below ``base``, with one called ``fleet``."""
    folder = base / "https-host"
    folder.mkdir(parents=True)
    authority = trustme.CA()
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    repositories = Repositories(folder)
    repositories.add()
    with row_of_ports() as (port, _):
        host = HttpsHost(repositories, port=port, token=token, ca=ca, user=user)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(host._context)
        host.up()
        try:
            yield host
        finally:
            host.down()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True
    host: HttpsHost
    context: ssl.SSLContext

    def get_request(self) -> tuple[socket.socket, object]:
        """The handshake is left to the request's own thread: who is slow at it holds up nobody."""
        connection, address = super().get_request()
        connection.settimeout(60)
        return self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # as every host does: else each answer's body waits 40 ms for its head to be acknowledged
    )

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """What was asked stands in ``requests``."""

    def _answer(self) -> None:
        host = cast("_Server", self.server).host
        allowed = host.allows(self.headers.get("Authorization"))
        host.requests.append(Asked(f"{self.command} {self.path}", allowed))
        body = self._body()
        host._closing.wait(host.delay)
        if host.elsewhere:
            self.send_response(301)
            self.send_header("Location", f"{host.elsewhere}{self.path}")
            self._end(b"")
            return
        if not allowed:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="fleet"')
            self._end(b"")
            return
        self._pass_on(host, body)

    def _pass_on(self, host: HttpsHost, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                **QUIET,
                "GIT_PROJECT_ROOT": str(host.repositories.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_USER": "ann",  # http-backend lets those push who have a name
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = [line.partition(": ") for line in head.decode().splitlines()]
        status = next((value for name, _, value in headers if name == "Status"), "200")
        self.send_response(int(status.split()[0]))
        for name, _, value in headers:
            if name not in {"Status", "Content-Length"}:
                self.send_header(name, value)
        self._end(content)

    def _end(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return b"".join(_chunks(cast("BinaryIO", self.rfile)))


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while size := int(stream.readline().split(b";")[0], 16):
        yield stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass


# ---- ssh -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SshHost:
    """A real sshd that lets one key in, and that one do nothing but fetch from and push to repositories."""

    repositories: Repositories
    port: int
    identity: Path
    host_keys: tuple[str, ...]  # as people write them down: ``ssh-ed25519 AAAA…``
    log: Path
    _config: Path
    _process: "subprocess.Popen[bytes] | None" = None

    def url(self, name: str = "fleet") -> str:
        user = pwd.getpwuid(os.getuid()).pw_name
        return f"ssh://{user}@127.0.0.1:{self.port}{self.repositories.path(name)}"

    def settings(self, name: str = "fleet") -> dict[str, str]:
        """What makes llmgw use it, as variables of its environment."""
        return {
            "LLMGW_REPO": self.url(name),
            "LLMGW_GIT_IDENTITY": str(self.identity),
            "LLMGW_HOST_KEYS": "[" + ", ".join(f'"{key}"' for key in self.host_keys) + "]",
        }

    def allow(self, *, write: bool = True) -> None:
        """What the deploy key may do from now on."""
        wrapper = self._config.with_name("allowed.sh")
        services = "git-upload-pack*|git-receive-pack*" if write else "git-upload-pack*"
        wrapper.write_text(
            "#!/bin/sh\n"
            f'case "$SSH_ORIGINAL_COMMAND" in {services}) exec git-shell -c "$SSH_ORIGINAL_COMMAND" ;; esac\n'
            'echo "ERROR: Permission to the repository denied to this deploy key." >&2; exit 1\n'
        )
        wrapper.chmod(0o755)
        public = self.identity.with_suffix(".pub").read_text().strip()
        command = shlex.join(["sh", str(wrapper)])
        keys = self._config.with_name("authorized_keys")
        keys.write_text(f'restrict,command="{command}" {public}\n')
        keys.chmod(0o644)

    def new_host_keys(self, *kinds: str) -> None:
        """As after a host was installed anew; counts from the next :meth:`up`."""
        folder = self._config.parent
        for old in folder.glob("host_key_*"):
            old.unlink()
        for kind in kinds or ("ed25519",):
            _new_key(folder / f"host_key_{kind}", kind)
        files = sorted(folder.glob("host_key_*.pub"))
        self.host_keys = tuple(" ".join(file.read_text().split()[:2]) for file in files)
        keys = "".join(f"HostKey {file.with_suffix('')}\n" for file in files)
        self._config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\n{keys}"
            f"AuthorizedKeysFile {folder / 'authorized_keys'}\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin forced-commands-only\n"
            f"SetEnv {' '.join(f'{name}={QUIET[name]}' for name in ('GIT_CONFIG_GLOBAL', 'GIT_CONFIG_NOSYSTEM'))}\n"
            "AcceptEnv GIT_PROTOCOL\nMaxStartups 100\n"
        )

    def up(self) -> None:
        """Returns when it listens."""
        assert self._process is None
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        assert program is not None, "sshd is not installed"
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it locks its unprivileged half in
        words = [program, "-D", "-f", str(self._config), "-E", str(self.log)]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + UP_WITHIN
        while not self._listens():
            assert self._process.poll() is None, f"sshd ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"sshd does not listen: {self.log.read_text()}"
            time.sleep(0.02)

    def down(self) -> None:
        """Nobody listens any more, and nobody is at work."""
        if self._process is None:
            return
        self._process.terminate()
        self._process.wait(timeout=UP_WITHIN)
        for pid in _sessions_of(self._config.parent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process = None

    def _listens(self) -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def ssh_host(base: Path) -> Iterator[SshHost]:
    """A host whose repositories lie below ``base``, with one called ``fleet``."""
    folder = base / "ssh-host"
    folder.mkdir(parents=True)
    identity = folder / "deploy_key"
    _new_key(identity, "ed25519")
    repositories = Repositories(folder)
    repositories.add()
    with row_of_ports() as (port, _):
        host = SshHost(
            repositories,
            port=port,
            identity=identity,
            host_keys=(),
            log=folder / "sshd.log",
            _config=folder / "sshd_config",
        )
        host.new_host_keys()
        host.allow()
        host.up()
        try:
            yield host
        finally:
            host.down()


def _new_key(path: Path, kind: str) -> None:
    words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(words, check=True, capture_output=True)


def _sessions_of(folder: Path) -> list[int]:
    """What the host's sshd has started and is still at work in its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if str(folder).encode() in words and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found
