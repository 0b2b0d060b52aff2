"""`llmgw serve` with a forge beside it: pushes over https, webhooks, statuses of commits, metrics; all real processes."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.controller.serving.deliveries import Delivery, push
from tests.e2e.githosts import HttpsHost, https_host
from tests.ports import row_of_ports
from tests.stories.stage import LLMGW, Stage, model, node, stage_in, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

WITHIN = 90.0
SECRET = "It's a Secret to Everybody"
ACCESS = "an-access-token-of-some-length"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as ready:
        yield ready


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HttpsHost]:
    with https_host(tmp_path) as up:
        yield up


@contextmanager
def forge() -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Takes the statuses of commits."""
    heard: list[Mapping[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append({**body, "commit": self.path.rpartition("/")[2]})
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def settings(api: str) -> str:
    return f"""\
webhooks:
  - {{name: forge, provider: gitea, repository: ann/fleet, secrets: [{{fromEnv: HOOK_SECRET}}]}}
accessToken: {{fromEnv: ACCESS}}
notices:
  commitStatus: {{provider: gitea, api: "{api}", repository: ann/fleet, token: {{fromEnv: FORGE_TOKEN}}}}
"""


class Client:
    def __init__(self, port: int) -> None:
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=WITHIN,
            headers={"Authorization": f"Bearer {ACCESS}"},
        )  # fmt: skip

    def ready(self) -> bool:
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = self._http.get("/status").json()
        return told

    def applied(self) -> str:
        return str((self.status()["serve"]["applied"] or {}).get("commit"))

    def serving(self) -> list[str]:
        return sorted(
            it["name"] for it in self.status()["fleet"]["models"] if it["ready"] >= it["wanted"] > 0
        )

    def number(self, name: str) -> float:
        families = text_string_to_metric_families(self._http.get("/metrics").text)
        return sum(it.value for family in families for it in family.samples if it.name == name)

    def targets(self) -> list[str]:
        return [it["labels"]["model"] for it in self._http.get("/sd").json()]

    def hook(self, sent: Delivery) -> int:
        return self._http.post("/hook/forge", content=sent.body, headers=dict(sent.headers)).status_code

    def storm(self, count: int) -> set[bytes]:
        """So many hooks over twenty connections at once."""
        url = self._http.base_url

        async def some(numbers: range) -> set[bytes]:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            answers = set()
            for number in numbers:
                sent = push("gitea", delivery=f"storm-{number}")
                lines = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items())
                head = (
                    f"POST /hook/forge HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(sent.body)}\r\n\r\n"
                )
                writer.write(head.encode() + sent.body)
                answers.add((await reader.readuntil(b"looking\n")).split(b" ")[1])
            writer.close()
            return answers

        async def all_() -> set[bytes]:
            parts = await asyncio.gather(*(some(range(at, count, 20)) for at in range(20)))
            return set().union(*parts)

        return asyncio.run(all_())

    def close(self) -> None:
        self._http.close()


def test_a_push_reaches_the_nodes_by_its_webhook_and_the_forge_shows_how_it_went(
    stage: Stage, host: HttpsHost
) -> None:
    first = host.repositories.push(
        {"manifests/node.yaml": node(stage), "manifests/chat.yaml": model()}, "Serve chat"
    )
    with row_of_ports() as (port, _), forge() as (api, heard):
        config = stage.folder / "llmgw.yaml"
        config.write_text(settings(api))
        environment = {
            **host.settings(),
            "LLMGW_CONFIG": str(config),
            "HOOK_SECRET": SECRET,
            "ACCESS": ACCESS,
            "FORGE_TOKEN": "the-token-of-the-forge",
        }
        process = stage.begin(
            "serve", "--listen", f"127.0.0.1:{port}", "--poll-interval", "1h", "--resync-interval", "1h",
            program=LLMGW, **environment,
        )  # fmt: skip
        client = Client(port)
        try:
            until(client.ready, "the first pass", within=WITHIN)
            until(lambda: client.serving() == ["chat"], "chat to be served", within=WITHIN)
            assert client.applied() == first
            assert client.targets() == ["chat"]

            second = host.repositories.push({"manifests/embed.yaml": model("embed")}, "Serve embed")
            other = push("gitea", ref="refs/heads/llmgw/state")
            assert client.hook(other) == 200
            assert client.applied() == first
            assert client.hook(push("gitea", delivery="d-1")) == 202
            until(lambda: client.applied() == second, "the second commit to be applied", within=WITHIN)
            until(lambda: client.serving() == ["chat", "embed"], "embed to be served", within=WITHIN)

            before = client.number("llmgw_passes_total")
            assert client.storm(500) == {b"202"}
            assert client.hook(push("gitea", secret=b"somebody else's secret")) == 401
            assert client.number("llmgw_webhooks_total") == 503
            assert client.number("llmgw_passes_total") - before <= 10
            assert client.number("llmgw_source_up") == 1

            def states(commit: str) -> list[str]:
                return [it["state"] for it in heard if it["commit"] == commit]

            until(lambda: states(second)[-1:] == ["success"], "the forge to show it", within=WITHIN)
            assert states(first)[0] == "pending"
            (context,) = {it["context"] for it in heard}
            assert context.startswith("llmgw/fleet")  # the fleet's name, which is the repository's
            third = host.repositories.push({"manifests/embed.yaml": "kind: [\n"}, "Break it")
            assert client.hook(push("gitea", delivery="d-2")) == 202
            until(lambda: states(third)[-1:] == ["failure"], "the forge to show what is wrong", within=WITHIN)
            wrong = next(
                it["description"] for it in heard if it["commit"] == third and it["state"] == "failure"
            )
            assert "manifests/embed.yaml" in wrong
            assert client.serving() == ["chat", "embed"]
            assert states(second)[-1] == "success", "it is kept up, and stays what it was shown as"

            process.terminate()
            _, told = process.communicate(timeout=WITHIN)
            assert process.returncode == 0, told
            assert "Traceback" not in told
            assert SECRET not in told
            assert ACCESS not in told
            assert f"answering at http://127.0.0.1:{port}" in told
        finally:
            client.close()
            if process.poll() is None:
                process.kill()
                sys.stderr.write(process.communicate(timeout=WITHIN)[1][-4000:])
