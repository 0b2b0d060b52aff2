"""LoRA adapters of the real vLLM on CPUs: loaded and unloaded while it serves, and there again after it was killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines.vllm_fleet import (
    LOADING,
    SHARE,
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

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400), only_when_asked]


@pytest.fixture
def road(tmp_path: Path) -> Iterator[SshRoad]:
    with vllm_fleet(
        tmp_path, hosts=1, not_proved="that adapters of the real vLLM are changed in place"
    ) as made:
        yield made


def test_adapters_come_and_go_while_it_serves_and_are_back_after_it_was_killed(road: SshRoad) -> None:
    write_profile(road, "one")
    serve(road, "one")
    endpoint = applied(road)
    first = set(of_vllm(road.hosts[0]))
    base, one = said(road, endpoint), said_by(road, endpoint, "one")
    assert base.strip()
    assert one != base

    serve(road, "one", "team/two")
    assert "load adapter team/two while it serves: nothing restarts" in road.llmgw(
        "plan", "--detailed-exitcode", expect=2
    )
    endpoint = applied(road)
    two = said_by(road, endpoint, "team/two")
    assert two not in (base, one)
    assert said_by(road, endpoint, "one") == one
    assert said(road, endpoint) == base

    serve(road, "team/two")
    endpoint = applied(road)
    assert [each["name"] for each in endpoint["adapters"]] == ["team/two"]
    with pytest.raises(AssertionError, match="404"):
        said(road, endpoint, model="one")
    assert first <= set(of_vllm(road.hosts[0])), "something was restarted"

    for pid in of_vllm(road.hosts[0]):
        os.kill(pid, signal.SIGKILL)
    wait_for("a replica that is not ready", lambda: not ready(road), within=60)
    wait_for("the same replica, ready again", lambda: ready(road), within=LOADING)
    (again,) = road.endpoints()
    assert again["replica"] == endpoint["replica"]
    wait_for("its adapter", lambda: '"team/two"' in road.ask(again), within=120)
    assert said(road, again, model="team/two") == two
    assert said(road, again) == base
    road.llmgw("apply", "--yes")
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    nothing_is_left(road)


def serve(road: SshRoad, *adapters: str) -> None:
    """At most two at a time, of what lies on the machine."""
    listed = [
        {"name": name, "rank": 8, "source": {"path": f"{SHARE}/adapters/{name.rpartition('/')[2]}"}}
        for name in adapters
    ]
    write_model(road, profile="one", adapters=listed, maxLoadedAdapters=2)
    road.commit(f"Serve tiny with {', '.join(adapters)}")


def applied(road: SshRoad) -> dict[str, Any]:
    """The endpoint, once nothing is left to do."""
    road.llmgw("apply", "--yes", within=LOADING)
    wait_for("adapters", lambda: "No changes" in road.run("plan").out, within=120)
    (endpoint,) = road.endpoints()
    return endpoint


def said_by(road: SshRoad, endpoint: dict[str, Any], adapter: str) -> str:
    """As the endpoint says that it is asked for."""
    (send,) = (each["send"] for each in endpoint["adapters"] if each["name"] == adapter)
    assert send == {"model": adapter}
    return said(road, endpoint, model=send["model"])


def ready(road: SshRoad) -> bool:
    return all(row["state"] == "ready" for row in road.status())
