"""The real vLLM on CPUs over two machines: its ranks say what one on one machine says, end as a whole and come back."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines.vllm_fleet import (
    LOADING,
    nothing_is_left,
    of_vllm,
    only_when_asked,
    said,
    vllm_fleet,
    write_model,
    write_profile,
)
from tests.e2e.sshroad import SshRoad
from tests.rig.host import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(4500), only_when_asked]


@pytest.fixture
def road(tmp_path: Path) -> Iterator[SshRoad]:
    with vllm_fleet(tmp_path, hosts=2, not_proved="that vLLM's ranks meet on two machines") as made:
        yield made


def test_two_machines_say_what_one_says_and_a_lost_rank_ends_both(road: SshRoad) -> None:
    write_profile(road, "one")
    write_profile(road, "two", nodes=2, parallel={"tensor": 2})
    write_model(road, profile="one")
    road.commit("Serve tiny on one machine")
    road.llmgw("apply", "--yes", within=LOADING)
    (endpoint,) = road.endpoints()
    alone = said(road, endpoint)
    assert alone.strip()

    write_model(road, profile="two")
    road.commit("Serve tiny on two machines")
    road.llmgw("apply", "--yes", within=LOADING)
    (endpoint,) = road.endpoints()
    assert all(of_vllm(host) for host in road.hosts)
    assert said(road, endpoint) == alone

    # The worker of a rank, of whose end vLLM tells its HTTP server nothing; then what llmgw itself has started there.
    for name in ("VLLM::Worker", "serve"):
        endpoint = a_rank_is_lost(road, endpoint, name)
        assert said(road, endpoint) == alone
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    nothing_is_left(road)


def a_rank_is_lost(road: SshRoad, before: dict[str, Any], name: str) -> dict[str, Any]:
    """The endpoint afterwards. ``name``: what is called so, of the second rank's processes, is killed."""
    worker = next(host for host in road.hosts if host.address != before["address"])
    first = {host.name: set(of_vllm(host)) for host in road.hosts}
    (pid,) = (
        pid for pid, words in of_vllm(worker).items() if words[0].startswith(name) or name in words[2:3]
    )
    os.kill(pid, signal.SIGKILL)
    wait_for("a replica that is not ready", lambda: not ready(road), within=60)
    road.llmgw("apply", "--yes", within=LOADING)
    (after,) = road.endpoints()
    assert after["replica"] != before["replica"], "a replica that has lost a rank is gone as a whole"
    assert not any(first[host.name] & set(of_vllm(host)) for host in road.hosts), "a rank was left behind"
    return after


def ready(road: SshRoad) -> bool:
    return all(row["state"] == "ready" for row in road.status())
