"""A real engine asked for its flags: before it is there, once it is, with a flag it does not know, and for one token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.road import Road
from tests.engines.wheels import wheel_dir

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def road(tmp_path: Path, free_ports: tuple[int, int]) -> Iterator[Road]:
    made = Road(tmp_path, wheels=wheel_dir(), ports=free_ports)
    try:
        yield made
    finally:
        made.close()


def test_an_engine_is_asked_what_it_knows_and_what_it_does_not_know_is_never_started(road: Road) -> None:
    assert "no agent" in road.llmgw("engine-check", expect=5)
    planned = road.llmgw("plan")
    assert "whether llamacpp 2026.10.11549 on here knows every flag is unknown until installed" in planned
    road.llmgw("apply", "--yes")
    pids = road.engine_pids()

    checked = road.llmgw("engine-check", "small-cpu", "--token")
    assert "small-cpu on here: llamacpp 2026.10.11549 knows every flag" in checked
    assert "computed on the CPU" in checked
    (told,) = json.loads(road.llmgw("engine-check", "--json"))["checks"]
    assert told["known"] > 50
    assert not told.get("needs")

    road.edit("profile", r"  startupTimeout:", "  args: [--ctx-siz, '512']\n  startupTimeout:")
    road.commit("Misspell a flag")
    wrong = "llamacpp 2026.10.11549 on here does not know --ctx-siz (nearest: --ctx-size)"
    assert wrong in road.llmgw("plan")
    refused = road.llmgw("apply", "--yes", expect=6)
    assert wrong in refused
    assert "--ctx-siz (nearest: --ctx-size), which model smollm2-135m needs" in road.llmgw(
        "engine-check", expect=1
    )
    assert road.engine_pids() == pids, "what serves was touched"


def test_a_flag_that_nobody_could_know_of_yet_is_found_before_the_engine_is_started(road: Road) -> None:
    road.edit(
        "profile",
        r"(?s)    name: llamacpp\n.*?\n  gpus:",
        "    name: sim\n  args: [--load-secs, '1']\n  gpus:",
    )
    road.edit("model", r"(?s)  source:.*?\n  aliases", "  source: {path: /nowhere}\n  aliases")
    road.commit("Misspell a flag before the engine is there")
    told = road.llmgw("apply", "--yes", expect=5)
    assert "sim on here does not know --load-secs (nearest: --load-seconds)" in told
    assert road.engine_pids() == {}
    logs = road.agent / "logs"
    assert not [file for file in logs.rglob("engine.log") if file.stat().st_size], "it was started"
