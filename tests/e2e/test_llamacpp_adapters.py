"""LoRA adapters on real llama.cpp: a model with two of them answers as each request asks, and as itself where none does."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.road import Road
from tests.engines import adapterfile
from tests.engines.wheels import wheel_dir

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
HIDDEN = 576  # of SmolLM2-135M


@pytest.fixture
def road(tmp_path: Path, free_ports: tuple[int, int]) -> Iterator[Road]:
    made = Road(tmp_path, wheels=wheel_dir(), ports=free_ports)
    try:
        yield made
    finally:
        made.close()


def say(endpoint: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, **fields}
    key = {"Authorization": f"Bearer {endpoint['key']}"}
    answer = httpx.post(f"{endpoint['url']}/completions", json=body, headers=key, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_each_request_is_answered_by_the_adapter_that_it_names(road: Road) -> None:
    files = [
        adapterfile.write(
            road.base / f"{name}.gguf", seed=seed, layers=range(8, 20), hidden=HIDDEN, strength=0.5
        )
        for seed, name in enumerate(("ad1", "ad2"))
    ]
    one, two = (f"    - {{name: {file.stem}, source: {{path: {file}}}, rank: 2}}\n" for file in files)
    road.edit("model", r"(?m)^spec:\n", f"spec:\n  adapters:\n{one}{two}")
    road.commit("Two adapters")
    road.llmgw("apply", "--yes")
    assert "adapter ad2: routable" in road.llmgw("status")
    (endpoint,) = road.endpoints()
    ways = {each["name"]: each["send"] for each in endpoint["adapters"]}
    assert list(ways) == ["ad1", "ad2"]

    base = say(endpoint, {})
    texts = {name: say(endpoint, send) for name, send in ways.items()}
    # The same prompt once more: what the cache holds of the others must not show.
    again = say(endpoint, {"cache_prompt": False})
    off = say(endpoint, {"lora": [{"id": 0, "scale": 0}, {"id": 1, "scale": 0}], "cache_prompt": False})
    assert base == again == off
    assert len({base, *texts.values()}) == 3, texts
    assert {name: say(endpoint, send) for name, send in ways.items()} == texts

    road.edit("model", r"    - \{name: ad2.*\n", "")
    road.commit("One is enough")
    assert "llamacpp loads adapters only when it starts" in road.llmgw("plan")
