"""A small Hugging Face hub of the tests' own: the answers that huggingface_hub asks for, one commit of one repository, large
files on a second server as the real one has them, and a number of ways to misbehave."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPO = "acme/tiny"
COMMIT = "c0ffee" + "0" * 34
LARGE = 10_000
"""Bytes from which a file is large: told by its SHA-256, and elsewhere."""


@dataclass(slots=True)
class Hub:
    """``token``: who does not bring it is refused as ``refusal`` says. ``once`` holds misbehaviours of the next download of a
    path: drop, short, other, busy, wrong-range."""

    files: Mapping[str, bytes]
    token: str | None = None
    refusal: str = "RepoNotFound"
    down: bool = False
    once: dict[str, list[str]] = field(default_factory=dict)
    endpoint: str = ""
    store: str = ""
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Server, path and Range of every request."""
    tokens: set[str] = field(default_factory=set)
    """Authorizations that the store of large files was shown."""

    def description(self) -> bytes:
        siblings = []
        for path, data in self.files.items():
            about = {"rfilename": path, "size": len(data), "blobId": git_hash(data)}
            if len(data) >= LARGE:
                sha = hashlib.sha256(data).hexdigest()
                about["lfs"] = {"size": len(data), "sha256": sha, "pointerSize": 134}
            siblings.append(about)
        return json.dumps({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings}).encode()


def git_hash(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    name = "hub"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.seen.append((self.name, path, self.headers.get("Range", "")))
        if self.hub.down:
            self._answer(503, b"")
        elif self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            status = 403 if self.hub.refusal == "GatedRepo" else 401
            self._answer(status, b"", {"X-Error-Code": self.hub.refusal, "X-Error-Message": "no access"})
        elif path.startswith(f"/api/models/{REPO}/revision/"):
            if COMMIT.startswith(path.rpartition("/")[2]):
                self._answer(200, self.hub.description())
            else:
                self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
            self._file(path.partition(f"{COMMIT}/")[2])
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _file(self, path: str) -> None:
        data = self.hub.files[path]
        headers = {"ETag": f'"{git_hash(data)}"', "X-Repo-Commit": COMMIT}
        if len(data) >= LARGE:
            self._answer(302, b"", {**headers, "Location": f"{self.hub.store}/{path}"})
        else:
            self._send(path, data)

    def _send(self, path: str, data: bytes) -> None:
        modes = self.hub.once.get(path, [])
        mode = modes.pop(0) if modes else "honest"
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        body = data[start:]
        length = len(body)
        if mode == "busy":
            self._answer(503, b"")
            return
        if mode == "other":
            body = b"x" * len(body)
        if mode == "short":
            body = body[: len(body) // 2]
            length = len(body)
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        self.send_response(206 if start else 200)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        if mode == "drop":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif self.command == "GET":
            self.wfile.write(body)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


class _Store(_Handler):
    """Where large files lie. It is another server: a token that comes here has gone astray."""

    name = "store"

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        self.hub.seen.append((self.name, path, self.headers.get("Range", "")))
        if told := self.headers.get("Authorization"):
            self.hub.tokens.add(told)
        self._send(path, self.hub.files[path])


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    servers = []
    for base in (_Handler, _Store):
        handler = type("Handler", (base,), {"hub": hub})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        servers.append((server, thread))
    # Two names of one machine: another origin, as the real store is.
    hub.endpoint = f"http://127.0.0.1:{servers[0][0].server_port}"
    hub.store = f"http://localhost:{servers[1][0].server_port}"
    try:
        yield hub
    finally:
        for server, thread in servers:
            server.shutdown()
            thread.join()
            server.server_close()
