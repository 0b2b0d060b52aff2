"""`llmgw serve` follows a repository behind ssh with a deploy key, and hears of pushes from every forge by its own webhook."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tests.controller.serving.deliveries import PROVIDERS, SECRET, Delivery, push
from tests.e2e.githosts import SshHost, ssh_host
from tests.ports import row_of_ports
from tests.stories.stage import LLMGW, Stage, model, node, stage_in, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

WITHIN = 90.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as ready:
        yield ready


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshHost]:
    with ssh_host(tmp_path) as up:
        yield up


class Serving:
    """A `serve` of what the host has. Looks at it by itself as often as ``poll`` says."""

    def __init__(self, stage: Stage, host: SshHost, port: int, *, poll: str) -> None:
        config = stage.folder / "llmgw.yaml"
        hooks = (
            f"  - {{name: {one}, provider: {one}, repository: ann/fleet, secrets: [{{fromEnv: HOOK_SECRET}}]}}\n"
            for one in PROVIDERS
        )
        config.write_text("webhooks:\n" + "".join(hooks))
        environment = {
            **host.settings(),
            "LLMGW_CONFIG": str(config),
            "HOOK_SECRET": SECRET.decode(),
        }
        pace = ("--poll-interval", poll, "--resync-interval", "1h")
        self.process = stage.begin(
            "serve", "--listen", f"127.0.0.1:{port}", *pace, program=LLMGW, **environment
        )
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=WITHIN)

    def __enter__(self) -> Self:
        until(self._ready, "the first pass", within=WITHIN)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._http.close()
        self.process.terminate()
        told = self.process.communicate(timeout=WITHIN)[1]
        if kind is not None:
            sys.stderr.write(told[-4000:])
            return
        assert self.process.returncode == 0, told
        assert "Traceback" not in told
        assert SECRET.decode() not in told

    def _ready(self) -> bool:
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = self._http.get("/status").json()
        return told

    def last_pass(self) -> tuple[str, str]:
        """Its commit, and what led to it."""
        last = self.status()["serve"]["lastPass"]
        return last["commit"], last["trigger"]

    def has_looked_at(self, commit: str, what: str) -> None:
        until(lambda: self.last_pass() == (commit, "webhook"), what, within=WITHIN)

    def ready(self, name: str) -> int:
        return sum(it["ready"] for it in self.status()["fleet"]["models"] if it["name"] == name)

    def hook(self, name: str, sent: Delivery) -> int:
        return self._http.post(f"/hook/{name}", content=sent.body, headers=dict(sent.headers)).status_code


def test_over_ssh_each_forges_webhook_leads_to_a_pass_and_without_any_the_next_look_does(
    stage: Stage, host: SshHost
) -> None:
    pushed = host.repositories.push
    pushed({"manifests/node.yaml": node(stage), "manifests/chat.yaml": model()}, "Serve chat")
    with row_of_ports() as (port, _):
        with Serving(stage, host, port, poll="1h") as it:
            until(lambda: it.ready("chat") == 1, "chat to be served", within=WITHIN)
            for name in PROVIDERS:
                commit = pushed({"manifests/notes.yaml": f"# told by {name}\n"}, f"Told by {name}")
                assert it.last_pass()[0] != commit, "it looked though nobody told it"
                assert it.hook(name, push(name, secret=b"somebody else's secret")) == 401
                assert it.hook(name, push(name, delivery=f"of-{name}")) == 202
                it.has_looked_at(commit, f"a pass for the webhook of {name}")
        with Serving(stage, host, port, poll="1s") as it:
            pushed({"manifests/chat.yaml": model(replicas=2)}, "One more")
            until(lambda: it.ready("chat") == 2, "both to be served", within=WITHIN)
