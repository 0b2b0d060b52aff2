"""A `serve` as those see it who stand outside: its answers over HTTP, its webhooks, and how it ends."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from llmgw.model.struct import Struct
from tests.controller.serving.deliveries import SECRET, Delivery, push
from tests.ports import row_of_ports
from tests.stories.stage import LLMGW, Stage, until

WITHIN: Final = 90.0
"""Seconds that anything may take on a busy machine."""
ACCESS: Final = "an-access-token-of-some-length"
CONNECTIONS: Final = 20  # of a storm of webhooks


@contextmanager
def serving(
    stage: Stage,
    config: str,
    environment: Mapping[str, str],
    *,
    poll: str = "1h",
    secrets: Mapping[str, str] | None = None,
) -> Iterator["Serving"]:
    """``config`` is what its llmgw.yaml says beside who may ask; ``poll`` how often it looks at the branch by itself. ``secrets``
    are variables that it must not tell."""
    hidden = {"HOOK_SECRET": SECRET.decode(), "ACCESS": ACCESS, **(secrets or {})}
    file = stage.folder / "llmgw.yaml"
    file.write_text(f"accessToken: {{fromEnv: ACCESS}}\n{config}")
    variables = {**environment, **hidden, "LLMGW_CONFIG": str(file)}
    with row_of_ports() as (port, _):
        words = ("--listen", f"127.0.0.1:{port}", "--poll-interval", poll, "--resync-interval", "1h")
        process = stage.begin("serve", *words, program=LLMGW, **variables)
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                trust_env=False,
                timeout=WITHIN,
                headers={"Authorization": f"Bearer {ACCESS}"},
            ) as http:
                it = Serving(http)
                until(it.is_ready, "the first pass", within=WITHIN)
                yield it
            process.terminate()
            _, told = process.communicate(timeout=WITHIN)
            assert process.returncode == 0, told
            assert "Traceback" not in told
            assert not [name for name, value in hidden.items() if value in told]
            assert f"answering at http://127.0.0.1:{port}" in told
        finally:
            if process.poll() is None:
                process.kill()
                sys.stderr.write(process.communicate(timeout=WITHIN)[1][-4000:])


def hooks(*providers: str, repository: str = "ann/fleet") -> str:
    """Webhooks in llmgw.yaml, each by the name of its forge."""
    lines = (
        f"  - {{name: {one}, provider: {one}, repository: {repository}, secrets: [{{fromEnv: HOOK_SECRET}}]}}\n"
        for one in providers
    )
    return "webhooks:\n" + "".join(lines)


class Serving(Struct, kw_only=False):
    _http: httpx.Client

    def is_ready(self) -> bool:
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = self._http.get("/status").json()
        return told

    def applied(self) -> str:
        return str((self.status()["serve"]["applied"] or {}).get("commit"))

    def last_pass(self) -> tuple[str, str]:
        """Its commit, and what led to it."""
        last = self.status()["serve"]["lastPass"]
        return last["commit"], last["trigger"]

    def has_passed(self, commit: str, trigger: str) -> None:
        """Once the last pass was about this commit, and set off so."""
        until(lambda: self.last_pass() == (commit, trigger), f"a pass by {trigger}", within=WITHIN)

    def models(self) -> list[str]:
        """Those with all the replicas that they are to have."""
        return sorted(
            it["name"] for it in self.status()["fleet"]["models"] if it["ready"] >= it["wanted"] > 0
        )

    def replicas(self, model: str) -> int:
        """Those that are ready."""
        return sum(it["ready"] for it in self.status()["fleet"]["models"] if it["name"] == model)

    def number(self, name: str) -> float:
        """Of a metric, over all its labels."""
        families = text_string_to_metric_families(self._http.get("/metrics").text)
        return sum(it.value for family in families for it in family.samples if it.name == name)

    def targets(self) -> list[str]:
        return [it["labels"]["model"] for it in self._http.get("/sd").json()]

    def hook(self, name: str, sent: Delivery) -> int:
        return self._http.post(f"/hook/{name}", content=sent.body, headers=dict(sent.headers)).status_code

    def storm(self, name: str, count: int) -> set[bytes]:
        """So many webhooks over twenty connections at once; the answers' status codes."""
        url = self._http.base_url

        async def some(numbers: range) -> set[bytes]:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            answers = set()
            for number in numbers:
                sent = push(name, delivery=f"storm-{number}")
                lines = "".join(f"{key}: {value}\r\n" for key, value in sent.headers.items())
                head = f"POST /hook/{name} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(sent.body)}\r\n\r\n"
                writer.write(head.encode() + sent.body)
                answers.add((await reader.readuntil(b"looking\n")).split(b" ")[1])
            writer.close()
            return answers

        async def all_() -> set[bytes]:
            parts = await asyncio.gather(*(some(range(at, count, CONNECTIONS)) for at in range(CONNECTIONS)))
            return set().union(*parts)

        return asyncio.run(all_())
