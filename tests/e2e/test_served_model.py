"""From a commit to a served model: the shipped manifests, a real agent, real llama.cpp and a real model."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.road import Road
from tests.engines.wheels import wheel_dir
from tests.rig.host import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def road(tmp_path: Path, free_ports: tuple[int, int]) -> Iterator[Road]:
    made = Road(tmp_path, wheels=wheel_dir(), ports=free_ports)
    try:
        yield made
    finally:
        made.close()


def client(road: Road, *, key: str | None = None) -> openai.OpenAI:
    (endpoint,) = road.endpoints()
    return openai.OpenAI(base_url=endpoint["url"], api_key=key or endpoint["key"], max_retries=0, timeout=60)


QUESTION = "What is the capital of France? Answer in one sentence."


def ask(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=30,
        temperature=0,
    )
    return answer.choices[0].message.content or ""


def test_a_commit_becomes_a_model_that_an_openai_client_talks_to(road: Road) -> None:
    shown = road.llmgw("plan", "--detailed-exitcode", expect=2)
    assert "+ model/smollm2-135m/0" in shown
    done = road.llmgw("apply", "--yes")
    assert "ready after" in done

    model = client(road)
    assert "Paris" in ask(model)
    stream = model.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=30,
        temperature=0,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(pieces) > 5
    assert "Paris" in "".join(pieces)

    with pytest.raises(openai.AuthenticationError):
        ask(client(road, key="not-the-key"))

    assert "No changes" in road.llmgw("plan", "--detailed-exitcode", expect=0)
    assert "smollm2-135m" in road.llmgw("status")
    assert road.state()[0].startswith("Start 1 replica of smollm2-135m on here")


def test_the_environment_that_endpoints_prints_is_all_a_client_needs(road: Road) -> None:
    road.llmgw("apply", "--yes")
    lines = [
        line.removeprefix("export ") for line in road.llmgw("endpoints", "--env").splitlines() if "=" in line
    ]
    values = {name: value.strip("'\"") for name, _, value in (line.partition("=") for line in lines)}
    model = openai.OpenAI(
        base_url=values["OPENAI_BASE_URL"], api_key=values["OPENAI_API_KEY"], max_retries=0, timeout=60
    )
    answer = model.completions.create(model=values["OPENAI_MODEL"], prompt="One, two, three,", max_tokens=8)
    assert answer.choices[0].text


def test_an_agent_killed_by_force_is_replaced_and_the_engine_keeps_its_pid(road: Road) -> None:
    road.llmgw("apply", "--yes")
    engines, agent = road.engine_pids(), road.agent_pid()
    os.kill(agent, signal.SIGKILL)
    assert "Paris" in ask(client(road))  # nobody who uses the model notices

    road.llmgw("apply", "--yes")
    assert road.agent_pid() != agent
    assert road.engine_pids() == engines
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode", expect=0)
    log = road.llmgw("logs", "smollm2-135m", "-n", "500")
    assert "listening" in log  # printed before the agent was killed
    assert any("agent" in line and "here" in line for line in road.state())


def test_a_changed_flag_replaces_the_replica_while_one_serves_all_along(road: Road) -> None:
    road.llmgw("apply", "--yes")
    (before,) = road.endpoints()
    watching = _Watch(road)
    road.edit("profile", "maxModelLen: 2048", "maxModelLen: 1024")
    road.commit("Halve the context")
    assert "+/- model/smollm2-135m/0" in road.llmgw("plan")
    road.llmgw("apply", "--yes")
    assert watching.stop() == []
    (after,) = road.endpoints()
    assert (after["replica"], after["port"]) != (before["replica"], before["port"])
    assert after["key"] != before["key"]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(before["url"].removesuffix("/v1") + "/health", timeout=5)
    assert "1024" in _props(after)


class _Watch:
    """Asks, again and again, whether some published endpoint is healthy; keeps what was wrong."""

    def __init__(self, road: Road) -> None:
        self._road, self._over, self._failures = road, threading.Event(), list[str]()
        self._asked = 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            seen = []
            for endpoint in self._road.endpoints():
                try:
                    with urllib.request.urlopen(
                        endpoint["url"].removesuffix("/v1") + "/health", timeout=5
                    ) as answer:
                        seen.append(answer.status == 200)
                except OSError:
                    seen.append(False)
            self._asked += 1
            if not any(seen):
                self._failures.append(
                    f"{time.monotonic()}: nothing published answers ({len(seen)} published)"
                )

    def stop(self) -> list[str]:
        wait_for("a look at the endpoints", lambda: self._asked > 3)
        self._over.set()
        self._thread.join(timeout=60)
        return self._failures


def _props(endpoint: dict[str, str]) -> str:
    request = urllib.request.Request(
        endpoint["url"].removesuffix("/v1") + "/props", headers={"Authorization": f"Bearer {endpoint['key']}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.dumps(json.load(answer).get("default_generation_settings", {}))
