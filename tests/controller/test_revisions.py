"""What a branch of a repository on a hub is right now, asked of a server on this machine."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llmgw.controller.weights.revisions import pinned
from llmgw.model.manifest import Secret, Source
from llmgw.model.problems import StalledError

COMMIT = "6f6073b423013f6a7d4d9f39144961bfbfbc386b"
MODEL = Source(hugging_face="meta/llama", revision="6f6073b", token=Secret(from_env="TOKEN"))


@contextmanager
def _hub(answers: dict[str, tuple[int, str]]) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the tokens that it was shown."""
    shown: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            status, text = answers.get(self.path, (404, ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", shown
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def _pinned(revision: str, hub: str, source: Source = MODEL) -> str:
    environment = {"HF_ENDPOINT": hub, "TOKEN": "hf_secret"}
    return asyncio.run(pinned(source, revision, name="chat", environment=environment, learn=str))


def test_a_branch_and_a_short_commit_become_all_forty_digits() -> None:
    told = json.dumps({"id": "meta/llama", "sha": COMMIT})
    answers = {
        f"/api/models/meta/llama/revision/{name}": (200, told) for name in ("main", "6f6073b", "a%2Fb")
    }
    with _hub(answers) as (hub, shown):
        assert {_pinned(name, hub) for name in ("", "main", "a/b")} == {COMMIT}
        assert set(shown) == {"Bearer hf_secret"}
        assert _pinned(COMMIT, "http://127.0.0.1:1") == COMMIT, "it is pinned already: nobody is asked"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((404, ""), "meta/llama has no revision main"),
        ((401, ""), "refused .401.: name a token"),
        ((200, "<html>"), "named no commit"),
        ((200, '{"sha": "main"}'), "named no commit"),
        ((500, ""), "it answered 500"),
    ],
)
def test_what_is_no_answer_is_told_and_the_token_is_not(answer: tuple[int, str], told: str) -> None:
    with (
        _hub({"/api/models/meta/llama/revision/main": answer}) as (hub, _),
        pytest.raises(StalledError, match=told) as wrong,
    ):
        _pinned("main", hub)
    assert "hf_secret" not in str(wrong.value)


def test_weights_that_come_from_no_hub_can_not_be_pinned() -> None:
    with pytest.raises(StalledError, match="its weights come from no hub"):
        _pinned("main", "http://127.0.0.1:1", Source(path="/models/x"))
