"""`llmgw serve` with a forge beside it: pushes over https, webhooks, statuses of commits, metrics; all real processes."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llmgw.model.struct import Struct
from tests.controller.serving.deliveries import push
from tests.e2e.githosts import HttpsHost, https_host
from tests.e2e.serving import WITHIN, Serving, hooks, serving
from tests.stories.stage import Stage, model, node, stage_in, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as ready:
        yield ready


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HttpsHost]:
    with https_host(tmp_path) as up:
        yield up


class Status(Struct, kw_only=False):
    commit: str
    state: str
    context: str
    description: str


@dataclass(slots=True)
class Forge:
    """Takes the statuses of commits."""

    heard: list[Status] = field(default_factory=list)

    def states(self, commit: str) -> list[str]:
        return [it.state for it in self.heard if it.commit == commit]

    def shows(self, commit: str, state: str) -> str:
        """Once it does, and has nothing newer: what it says beside it."""
        until(lambda: self.states(commit)[-1:] == [state], f"the forge to show {state}", within=WITHIN)
        return [it.description for it in self.heard if it.commit == commit][-1]


@contextmanager
def forge() -> Iterator[tuple[str, Forge]]:
    """With its address."""
    it = Forge()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = {name: body[name] for name in ("state", "context", "description")}
            it.heard.append(Status(commit=self.path.rpartition("/")[2], **told))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", it
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def followed(stage: Stage, host: HttpsHost) -> Iterator[tuple[Serving, Forge]]:
    with forge() as (api, it):
        status = f'{{provider: gitea, api: "{api}", repository: ann/fleet, token: {{fromEnv: FORGE_TOKEN}}}}'
        config = f"{hooks('gitea')}notices:\n  commitStatus: {status}\n"
        secrets = {"FORGE_TOKEN": "the-token-of-the-forge"}
        with serving(stage, config, host.settings(), secrets=secrets) as served:
            yield served, it


def test_a_push_reaches_the_nodes_by_its_webhook_and_the_forge_shows_how_it_went(
    stage: Stage, host: HttpsHost
) -> None:
    pushed = host.repositories.push
    first = pushed({"manifests/node.yaml": node(stage), "manifests/chat.yaml": model()}, "Serve chat")
    with followed(stage, host) as (it, shown):
        until(lambda: it.models() == ["chat"], "chat to be served", within=WITHIN)
        assert it.applied() == first
        assert it.targets() == ["chat"]

        second = pushed({"manifests/embed.yaml": model("embed")}, "Serve embed")
        assert it.hook("gitea", push("gitea", ref="refs/heads/llmgw/state")) == 200
        assert it.applied() == first
        assert it.hook("gitea", push("gitea", delivery="d-1")) == 202
        until(lambda: it.applied() == second, "the second commit to be applied", within=WITHIN)
        until(lambda: it.models() == ["chat", "embed"], "embed to be served", within=WITHIN)

        before = it.number("llmgw_passes_total")
        assert it.storm("gitea", 500) == {b"202"}
        assert it.hook("gitea", push("gitea", secret=b"somebody else's secret")) == 401
        assert it.number("llmgw_webhooks_total") == 503
        assert it.number("llmgw_passes_total") - before <= 10
        assert it.number("llmgw_source_up") == 1

        shown.shows(second, "success")
        assert shown.states(first)[0] == "pending"
        (context,) = {status.context for status in shown.heard}
        assert context.startswith("llmgw/fleet")  # the fleet's name, which is the repository's
        third = pushed({"manifests/embed.yaml": "kind: [\n"}, "Break it")
        assert it.hook("gitea", push("gitea", delivery="d-2")) == 202
        assert "manifests/embed.yaml" in shown.shows(third, "failure")
        assert it.models() == ["chat", "embed"]
        assert shown.states(second)[-1] == "success", "it is kept up, and stays what it was shown as"


def test_a_state_branch_that_may_not_be_pushed_is_no_fault_of_the_commit(
    stage: Stage, host: HttpsHost
) -> None:
    pushed = host.repositories.push
    first = pushed({"manifests/node.yaml": node(stage), "manifests/chat.yaml": model()}, "Serve chat")
    with followed(stage, host) as (it, shown):
        shown.shows(first, "success")
        protection = host.repositories.path() / "hooks" / "update"
        protection.write_text('#!/bin/sh\ntest "$1" != refs/heads/llmgw/state\n')
        protection.chmod(0o755)
        second = pushed({"manifests/chat.yaml": model(replicas=2)}, "Two of them")
        assert it.hook("gitea", push("gitea", delivery="d-1")) == 202
        assert "this controller may not write llmgw/state" in shown.shows(second, "error")
        assert it.replicas("chat") == 1
        protection.unlink()
        shown.shows(second, "success")
        assert it.replicas("chat") == 2
