"""What comes to a node and goes from it: weights over HTTP and from a hub, by workers that nobody has to mind, and the files
that nobody needs any more."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.agent.jobs import hub as hubs
from tests.stories.stage import Stage, model, node

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WEIGHTS = b"weights" * 1000
CANARY = "hf_canary0815"
WRONG = "hf_wrong0816"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *words: object) -> None:
            super().__init__(*words, directory=str(folder))  # type: ignore[arg-type] # what the server hands on

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def read_from(source: str) -> str:
    return model().replace("source: {path: /dev/null}", f"source: {source}")


def test_weights_come_and_go_only_when_nobody_needs_them(stage: Stage) -> None:
    web = stage.folder / "web"
    web.mkdir()
    (web / "m.gguf").write_bytes(WEIGHTS)
    with serving(web) as url:
        source = f"{{url: {url}/m.gguf, sha256: {hashlib.sha256(WEIGHTS).hexdigest()}}}"
        stage.commit("Serve chat", node=node(stage), chat=read_from(source))
        assert stage.llmgw("apply", "--yes", golden=False).code == 0
    (fetched,) = (stage.work / "weights").glob("*/m.gguf")
    assert fetched.read_bytes() == WEIGHTS
    ran = stage.llmgw("node", "gc", "here", golden=False)
    assert ran.out.count("refers to it") == 2
    assert "Nothing on here is unused." in ran.out
    assert "unused" in stage.llmgw("node", "gc", "here", "--yes", golden=False).out

    stage.commit("Nothing at all", chat=None)
    assert stage.llmgw("apply", "--yes", "--allow-prune", golden=False).code == 0
    listed = json.loads(stage.llmgw("node", "gc", "here", "--json", golden=False).out)
    assert sorted(one["name"].partition("/")[0] for one in listed["unused"]) == ["engine", "weights"]
    assert listed["needed"] == []
    assert fetched.exists(), "listing removed something"

    ran = stage.llmgw("node", "gc", "here", "--yes", golden=False)
    assert ran.code == 0, ran.err
    assert ran.out.count("Removed ") == 2
    assert [entry.name for entry in (stage.work / "weights").iterdir()] == []
    assert list((stage.work / "engines").glob("sim-*")) == []
    assert "Removed unused files on here" in stage.llmgw("history", golden=False).out


@pytest.mark.long("installs huggingface_hub on the node, out of the package index")
def test_a_gated_repository_of_a_hub_is_served_and_its_token_stays_nowhere(stage: Stage) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"s" * 50_000}
    with hubs.serving(hubs.Hub(files=files, token=CANARY, refusal="GatedRepo")) as hub:
        here = node(stage) + f"  env: {{HF_ENDPOINT: {hub.endpoint}}}\n"
        source = f"{{huggingFace: {hubs.REPO}, revision: {hubs.COMMIT}, token: {{fromEnv: MY_TOKEN}}}}"
        stage.commit("Serve chat", node=here, chat=read_from(source))
        assert stage.llmgw("apply", "--yes", golden=False, MY_TOKEN=CANARY).code == 0
        # The same commit under a shorter name is fetched anew: nobody has proved that it is the same.
        again = source.replace(hubs.COMMIT, hubs.COMMIT[:12])
        stage.commit("Serve code", code=read_from(again).replace("chat", "code"))
        refused = stage.llmgw("apply", "--yes", golden=False, MY_TOKEN=WRONG)
        assert refused.code != 0
        assert "variable MY_TOKEN belongs to an account with access" in refused.out + refused.err
    (folder,) = (stage.work / "weights").glob("[!.]*")
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    told = stage.git("log", "-p", "llmgw/state")
    for secret in (CANARY, WRONG):
        assert secret not in told
        for file in stage.work.rglob("*"):
            assert not (file.is_file() and secret.encode() in file.read_bytes()), file
