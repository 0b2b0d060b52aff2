"""The real vLLM, on CPUs: a replica over two machines says what one on one machine says, ends as a whole and comes back.

Only with `make test-engines`, which names vLLM's environment in LLMGW_TEST_VLLM."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sshroad import SshRoad, processes
from tests.rig.host import Host
from tests.rig.options import Options
from tests.rig.rig import Rig, require_rig

ENGINE = os.environ.get("LLMGW_TEST_VLLM", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.long(
        "needs vLLM for CPUs, 3.5 GB: make test-engines; not proved: vLLM's ranks meet on two machines"
    ),
]
WEIGHTS = "/srv/tiny"
LOADING = 600.0
"""Seconds for two vLLMs to start on two slow cores, whatever else these do."""


@pytest.fixture
def road(tmp_path: Path) -> Iterator[SshRoad]:
    if not ENGINE:
        pytest.skip("LLMGW_TEST_VLLM names no environment with vLLM: make test-engines")
    require_rig("that vLLM's ranks meet on two machines")
    model = tmp_path / "tiny"
    program = Path(__file__).with_name("tiny_model.py")
    subprocess.run([f"{ENGINE}/bin/python", program, model], check=True, capture_output=True, timeout=300)
    for file in model.iterdir():
        file.chmod(0o644)  # the engines' user reads them
    options = Options(shares=((Path(ENGINE), ENGINE), (model, WEIGHTS)))
    with Rig(tmp_path, hosts=[options, options]) as rig:
        made = SshRoad(rig, tmp_path / "road")
        yield made
        made.close()


def write_profile(road: SshRoad, name: str, **spec: Any) -> None:
    road.write_profile(
        name,
        engine={"name": "vllm", "path": ENGINE},
        memory="2GiB",
        dtype="float32",
        maxModelLen=1024,
        args=["--enforce-eager"],
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        timeouts={"stop": "40s"},
        restart={"backoff": "1s", "maxBackoff": "2s", "giveUpAfter": 6},
        **spec,
    )


def said(road: SshRoad) -> str:
    (endpoint,) = road.endpoints()
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0}
    answer: dict[str, Any] = json.loads(road.ask(endpoint, "/completions", body=body))
    return str(answer["choices"][0]["text"])


def of_vllm(host: Host) -> set[int]:
    return {
        pid
        for pid, words in processes(host).items()
        if any(ENGINE in word or "VLLM::" in word for word in words)
    }


def test_two_machines_say_what_one_says_and_a_lost_rank_ends_both(road: SshRoad) -> None:
    write_profile(road, "one")
    write_profile(road, "two", nodes=2, parallel={"tensor": 2})
    source = {"path": WEIGHTS}
    road.write_model("tiny", profile="one", replicas=1, source=source)
    road.commit("Serve tiny on one machine")
    road.llmgw("apply", "--yes", within=LOADING)
    alone = said(road)

    road.write_model("tiny", profile="two", replicas=1, source=source)
    road.commit("Serve tiny on two machines")
    road.llmgw("apply", "--yes", within=LOADING)
    assert said(road) == alone
    (before,) = road.endpoints()
    assert all(of_vllm(host) for host in road.rig.hosts)

    worker = next(host for host in road.rig.hosts if host.address != before["address"])
    first = {host.name: of_vllm(host) for host in road.rig.hosts}
    for pid in first[worker.name]:
        os.kill(pid, signal.SIGKILL)
    road.llmgw("apply", "--yes", within=LOADING)
    (after,) = road.endpoints()
    assert after["replica"] != before["replica"]
    assert not any(first[host.name] & of_vllm(host) for host in road.rig.hosts), "a rank was left behind"
    assert said(road) == alone
