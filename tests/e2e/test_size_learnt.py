"""A real model whose size nobody has stated: fetched first, then summed from its header, served, and summed no more."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.road import Road
from tests.engines import statemodel
from tests.engines.wheels import wheel_dir

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
MEMORY = r"  # What placement sets aside of the node's memory\.\n  memory: 1GiB\n"


@pytest.fixture
def road(tmp_path: Path, free_ports: tuple[int, int]) -> Iterator[Road]:
    made = Road(tmp_path, wheels=wheel_dir(), ports=free_ports)
    try:
        yield made
    finally:
        made.close()


def test_a_model_of_unstated_size_is_fetched_then_summed_and_served(road: Road) -> None:
    road.edit("profile", MEMORY, "")
    road.commit("State no size")
    first = road.llmgw("plan")
    assert "has told how much memory it takes (known after that)" in first
    assert "start smollm2" not in first

    assert "ready after" in road.llmgw("apply", "--yes")
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode", expect=0)

    replica = json.loads(_kept(road, "replicas/"))
    told = next(reason for reason in replica["reasons"] if reason.startswith("needs no GPU"))
    assert re.search(r"weights 0\.09, kv 0\.04 \(2,048 tokens\), compute 0\.1", told)
    sizes = json.loads(_kept(road, "weights.json"))
    (weights,) = sizes["weights"].values()
    assert (weights["architecture"], weights["layers"], weights["kvHeads"]) == ("llama", 30, 3)

    # The process takes no more than was set aside; less, as long as no request has filled its buffers.
    (pid,) = road.engine_pids().values()
    process = psutil.Process(pid)
    takes = sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
    assert takes < replica["ranks"][0]["memory"] < 3 * takes

    road.edit("profile", "maxModelLen: 2048", "maxModelLen: 1000000000")
    road.commit("Ask for more than any machine has")
    refused = road.llmgw("apply", "--yes", expect=6)
    assert "not enough memory" in refused
    assert re.search(r"needs [0-9.]+ GiB of memory", refused)


def test_a_model_that_nobody_can_reckon_needs_no_word_after_its_first_run(road: Road, tmp_path: Path) -> None:
    """Real llama.cpp, with layers that carry a state along: allowed once, measured, and planned by that from then on."""
    weights = statemodel.write(tmp_path / "state.gguf")
    road.edit("profile", MEMORY, '  args: ["-lv", "4"]\n')
    road.edit(
        "model", r"(?s)    # One file out of.*?    pip:.*?\n  aliases", f"    path: {weights}\n  aliases"
    )
    road.commit("Serve a state-space model")
    refused = road.llmgw("apply", "--yes", expect=5)
    assert (
        "mamba has layers that carry a state along (ssm.state_size); its weights are 0.00 GiB: write memory:"
        in refused
    )

    assert "ready after" in road.llmgw("apply", "--yes", "--allow-unknown-size")
    (said,) = json.loads(_kept(road, "weights.json"))["measured"].values()
    assert said["values"].keys() == {
        "host-model-mib",
        "host-state-mib",
        "host-compute-mib",
        "tokens",
    }

    road.edit("model", "replicas: 1", "replicas: 2")
    road.commit("Serve it twice")
    planned = road.llmgw("plan")
    sum_of_it = r"needs no GPU, 0\.1 GiB of host memory: weights [0-9.]+ \(measured at serial \d+\), state "
    assert re.search(sum_of_it, planned)
    assert "start smollm2" in planned


def _kept(road: Road, path: str) -> str:
    """A file of the state branch, the only one below ``path``."""
    git = ["git", "-C", str(road.fleet)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", "llmgw/state"], capture_output=True, text=True, check=True
    )
    (name,) = [each for each in listed.stdout.split() if each.startswith(path)]
    shown = subprocess.run([*git, "show", f"llmgw/state:{name}"], capture_output=True, text=True, check=True)
    return shown.stdout
