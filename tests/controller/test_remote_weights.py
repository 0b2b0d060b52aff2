"""Weights looked at over HTTP: by real servers that send ranges, send everything, refuse, lie and hang up."""

import asyncio
import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.controller.weights.cache import Cache
from llmgw.controller.weights.headers import FIRST
from llmgw.controller.weights.remote import RemoteWeights, Wanted
from llmgw.model.manifest import Secret, Source
from llmgw.model.weights import MAX_CONFIG, Inspection
from tests.sim.loop import VirtualLoop, run
from tests.wire import headers

SHA = "0" * 64
TOKEN = "hf-token-of-ann"
PINNED = "a" * 40


class Server:
    """Files by path; counts bytes that went out, and remembers who asked how."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.status: dict[str, int] = {}
        self.redirects: dict[str, str] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.sent = 0
        self.tells = ""  # of every part, in place of the truth
        self.url = ""


@contextmanager
def serving() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
            if self.path in state.redirects:
                self.send_response(302)
                self.send_header("Location", state.redirects[self.path])
                self.end_headers()
                return
            if (status := state.status.get(self.path)) is not None or self.path not in state.files:
                self.send_error(status or 404)
                return
            self._send(state.files[self.path])

        def _send(self, data: bytes) -> None:
            wanted = self.headers.get("Range")
            if state.ranges and wanted:
                begin, _, end = wanted.removeprefix("bytes=").partition("-")
                if int(begin) >= len(data):
                    self.send_error(416)
                    return
                part = data[int(begin) : int(end) + 1]
                self.send_response(206)
                last = int(begin) + len(part) - 1
                told = state.tells or f"bytes {begin}-{last}/{len(data)}"
                self.send_header("Content-Range", told)
            else:
                part = data
                self.send_response(200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            try:
                for at in range(0, len(part), 65536):
                    self.wfile.write(part[at : at + 65536])
                    state.sent += len(part[at : at + 65536])
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def look(
    server: Server,
    source: Source,
    folder: Path,
    *,
    times: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Inspection:
    async def main() -> Inspection | None:
        remote = RemoteWeights(Cache(folder), environment=environment or {})
        found = None
        for _ in range(times):
            found = await remote.look(Wanted(digest="d" * 64, source=source, hub=server.url))
        return found

    seen = asyncio.run(main())
    assert seen is not None
    return seen


def by_url(server: Server) -> Source:
    """With two secrets in it, which must show nowhere."""
    host = server.url.replace("http://", "http://ann:secret@")
    return Source(url=f"{host}/x.gguf?signed=secret", sha256=SHA)


def a_gguf(vocab: int = 512) -> bytes:
    return headers.llama(vocab=vocab) + bytes(8 * 1024 * 1024)


def test_a_gguf_file_is_known_from_its_first_part(tmp_path: Path) -> None:
    with serving() as server:
        server.files["/x.gguf?signed=secret"] = a_gguf()
        seen = look(server, by_url(server), tmp_path)
    assert (seen.problem, seen.format, seen.metadata["llama.block_count"]) == ("", "gguf", 2)
    assert seen.size == len(a_gguf())
    assert server.sent <= FIRST
    assert "secret" not in seen.path


def test_a_long_header_is_asked_for_piece_by_piece_and_nothing_twice(tmp_path: Path) -> None:
    data = a_gguf(vocab=60_000)
    with serving() as server:
        server.files["/x.gguf?signed=secret"] = data
        seen = look(server, by_url(server), tmp_path)
    assert seen.metadata["tokenizer.ggml.tokens"] == {"length": 60_000}
    assert [asked[1] for asked in server.asked] == [f"bytes=0-{FIRST - 1}", f"bytes={FIRST}-{FIRST * 8 - 1}"]


def test_a_server_without_ranges_is_read_only_as_far_as_needed(tmp_path: Path) -> None:
    with serving() as server:
        server.ranges = False
        server.files["/x.gguf?signed=secret"] = headers.llama(vocab=60_000) + bytes(200 * 1024 * 1024)
        seen = look(server, by_url(server), tmp_path)
    assert seen.problem == ""
    assert server.sent < 100 * 1024 * 1024  # what lay in the sockets' buffers went out as well


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\x03\x04" + bytes(100), "does not begin"),
        (headers.llama()[:300], "ends within its header"),
        (headers.llama(vocab=60_000)[:FIRST], "ends within its header"),
        (b"", "ends within its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 1), "are more than any model has"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 4 * 1024**3), "a text of 4294967296 bytes"),
        (None, "is not there"),
    ],
)
def test_what_is_no_whole_gguf_says_so_without_the_query(
    tmp_path: Path, data: bytes | None, why: str
) -> None:
    with serving() as server:
        if data is not None:
            server.files["/x.gguf?signed=secret"] = data
        seen = look(server, by_url(server), tmp_path)
    assert why in seen.problem
    assert "secret" not in seen.problem


def test_a_server_that_is_not_there_is_told_and_not_asked_again_at_once(tmp_path: Path) -> None:
    with serving() as server:
        server.status["/x.gguf?signed=secret"] = 500
        seen = look(server, by_url(server), tmp_path, times=3)
    assert "it answered 500" in seen.problem
    assert len(server.asked) == 1
    gone = look(server, by_url(server), tmp_path)
    assert "see that this machine reaches it" in gone.problem


@pytest.mark.parametrize(
    ("tells", "why"),
    [
        ("bytes 5-9/100", "another part than was asked for"),
        ("bytes 0-" + "9" * 5000 + "/*", "another part than was asked for"),
        ("parts of it", "another part than was asked for"),
    ],
)
def test_a_server_that_sends_another_part_is_not_believed(tmp_path: Path, tells: str, why: str) -> None:
    with serving() as server:
        server.tells = tells
        server.files["/x.gguf?signed=secret"] = a_gguf()
        assert why in look(server, by_url(server), tmp_path).problem


def test_a_server_that_sends_in_circles_is_told(tmp_path: Path) -> None:
    with serving() as server:
        server.redirects["/x.gguf?signed=secret"] = "/x.gguf?signed=secret"
        seen = look(server, by_url(server), tmp_path)
    assert "redirects" in seen.problem
    assert "secret" not in seen.problem
    assert len(server.asked) < 50


def test_what_can_not_change_is_asked_for_once(tmp_path: Path) -> None:
    with serving() as server:
        server.files["/x.gguf?signed=secret"] = a_gguf()
        first = look(server, by_url(server), tmp_path)
        assert look(server, by_url(server), tmp_path) == first
    assert len(server.asked) == 1


def hub(server: Server, files: Mapping[str, bytes], revision: str = PINNED) -> None:
    base = f"/lab/model/resolve/{revision}"
    for name, data in files.items():
        server.files[f"{base}/{name}"] = data


def on_hub(revision: str | None = PINNED, *, token: bool = False) -> Source:
    return Source(
        hugging_face="lab/model", revision=revision, token=Secret(from_env="HUB_TOKEN") if token else None
    )


INDEX = json.dumps(
    {"metadata": {"total_size": 1234}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
)


def test_a_repository_is_known_from_its_index(tmp_path: Path) -> None:
    with serving() as server:
        hub(server, {"config.json": b'{"hidden_size": 8}', "model.safetensors.index.json": INDEX.encode()})
        seen = look(server, on_hub(), tmp_path)
    assert (seen.problem, seen.size, seen.files, seen.config) == ("", 1234, 2, '{"hidden_size": 8}')


TWO = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode()
A_FILE = headers.safetensors({"a": ("F32", 2)})


@pytest.mark.parametrize("total", ["Infinity", "NaN", "true", "-5", "0", '"7"', "1e300", "null", "[7]"])
def test_an_index_whose_sum_is_none_is_not_believed(tmp_path: Path, total: str) -> None:
    index = TWO.replace(b"{", f'{{"metadata": {{"total_size": {total}}}, '.encode(), 1)
    with serving() as server:
        files = {"config.json": b"{}", "model.safetensors.index.json": index}
        hub(server, {**files, "m-1.safetensors": A_FILE, "m-2.safetensors": A_FILE})
        seen = look(server, on_hub(), tmp_path)
    assert (seen.problem, seen.size) == ("", 4)


def test_an_index_without_a_sum_is_made_up_from_the_headers(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode()
    with serving() as server:
        hub(
            server,
            {
                "config.json": b"{}",
                "model.safetensors.index.json": index,
                "m-1.safetensors": headers.safetensors({"a": ("BF16", 100)}),
                "m-2.safetensors": headers.safetensors({"b": ("F32", 20)}),
            },
        )
        assert look(server, on_hub(), tmp_path).tensors == {"BF16": 100, "F32": 20}


def test_a_single_file_is_known_from_its_header(tmp_path: Path) -> None:
    many = {f"tensor-number-{n}": ("BF16", 2) for n in range(6_000)}
    file = headers.safetensors(many)
    with serving() as server:
        hub(server, {"config.json": b"{}", "model.safetensors": file})
        seen = look(server, on_hub(), tmp_path)
    assert seen.tensors == {"BF16": 12_000}
    assert len(file) > FIRST  # so that it took a second piece


def test_older_weights_are_known_by_their_size(tmp_path: Path) -> None:
    with serving() as server:
        hub(server, {"config.json": b"{}", "pytorch_model.bin": bytes(4321)})
        seen = look(server, on_hub(), tmp_path)
    assert (seen.format, seen.size) == ("other", 4321)


def test_a_gated_repository_asks_for_a_token_and_gets_it(tmp_path: Path) -> None:
    with serving() as server:
        server.status[f"/lab/model/resolve/{PINNED}/config.json"] = 401
        seen = look(server, on_hub(), tmp_path)
        assert "name a token that may read it in source.token" in seen.problem
        look(server, on_hub(token=True), tmp_path / "2", environment={"HUB_TOKEN": TOKEN})
        missing = look(server, on_hub(token=True), tmp_path / "3")
    assert server.asked[-1][2] == f"Bearer {TOKEN}"
    assert "HUB_TOKEN" in missing.problem


def test_a_token_does_not_follow_to_another_host(tmp_path: Path) -> None:
    with serving() as server, serving() as storage:
        storage.files["/stored"] = b"{}"
        base = f"/lab/model/resolve/{PINNED}"
        server.redirects[f"{base}/config.json"] = storage.url.replace("127.0.0.1", "localhost") + "/stored"
        hub(server, {"model.safetensors": headers.safetensors({"a": ("BF16", 2)})})
        seen = look(server, on_hub(token=True), tmp_path, environment={"HUB_TOKEN": TOKEN})
    assert seen.problem == ""
    assert [asked[2] for asked in storage.asked] == [None]


def test_a_branch_is_asked_for_again_and_a_commit_is_not(tmp_path: Path) -> None:
    with serving() as server:
        files = {"config.json": b"{}", "model.safetensors": headers.safetensors({"a": ("BF16", 2)})}
        hub(server, files, "main")
        look(server, on_hub(None), tmp_path / "1")
        before = len(server.asked)
        look(server, on_hub(None), tmp_path / "1")
        assert len(server.asked) == 2 * before


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "has no config.json, or is not there"),
        ({"config.json": b"{}"}, "holds neither model.safetensors nor an index"),
        ({"config.json": bytes(MAX_CONFIG + 1)}, "is larger than"),
        ({"config.json": b"{}", "model.safetensors.index.json": b"[]"}, "is no JSON object"),
        ({"config.json": b"{}", "model.safetensors": b"nonsense" * 9}, "it is no safetensors file"),
        ({"config.json": b"{}", "model.safetensors": A_FILE[:-1]}, "it has 104 bytes, its header names 105"),
        (
            {"config.json": b"{}", "model.safetensors": A_FILE + b"1"},
            "it has 106 bytes, its header names 105",
        ),
        (
            {"config.json": b"{}", "model.safetensors.index.json": TWO, "m-1.safetensors": A_FILE},
            "names m-2.safetensors in its index, and it is not there",
        ),
    ],
)
def test_what_is_wrong_with_a_repository_is_told(tmp_path: Path, files: dict[str, bytes], why: str) -> None:
    with serving() as server:
        hub(server, files)
        assert why in look(server, on_hub(), tmp_path).problem


def test_other_sources_are_not_looked_at_from_here(tmp_path: Path) -> None:
    async def main() -> Inspection | None:
        remote = RemoteWeights(Cache(tmp_path), environment={})
        return await remote.look(Wanted(digest="d", source=Source(path="/models/x")))

    assert asyncio.run(main()) is None


class Silent(httpx.AsyncBaseTransport):
    """A server that takes every question and answers none."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError(request.url)


def test_a_server_that_never_answers_is_given_up_and_told(tmp_path: Path) -> None:
    async def main() -> Inspection | None:
        remote = RemoteWeights(Cache(tmp_path), environment={}, transport=Silent())
        return await remote.look(Wanted(digest="d", source=on_hub(), hub="http://127.0.0.1:1"))

    seen = run(main(), VirtualLoop())
    assert seen is not None
    assert f"looking at lab/model@{PINNED}: no answer within 60 s" in seen.problem
