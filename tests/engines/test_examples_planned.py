"""The examples of engines, planned as their pages tell people to: every word of the commands is held by a golden file
(UPDATE_GOLDEN=1 writes them anew), and what the pages tell people to try shows what they say."""

import os
from pathlib import Path

import pytest

from llmgw.model.plan import Plan
from llmgw.model.problems import InvalidError
from tests.core.examples import planned, text_of

GOLDEN = Path(__file__).parents[1] / "golden" / "examples"
UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))
RAG, CUSTOM = "embedding-and-reranker", "custom-engine"


@pytest.mark.parametrize("example", [RAG, CUSTOM])
def test_every_command_line_and_environment_is_as_written_down(example: str) -> None:
    text = text_of(planned(example))
    path = GOLDEN / f"{example}.txt"
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; UPDATE_GOLDEN=1 writes it anew"


WRITER = "kind: Model\nmetadata: {name: qwen3-8b}\n"
THIRD = """\
kind: Model
metadata: {name: bge-large}
spec: {profile: encoder, task: embed, source: {path: /data/weights/bge-large}}
---
apiVersion: llmgw/v1
"""


def gpus(made: Plan) -> dict[str, int]:
    """GiB that each model's shards claim; all of one GPU."""
    claims = [
        (step.launch.model, claim)
        for step in made.steps
        if step.launch is not None
        for claim in step.launch.claims.gpus
    ]
    assert len({claim.uuid for _, claim in claims}) == 1
    return {model: (claim.memory or 0) >> 30 for model, claim in claims}


def test_three_models_share_one_gpu_and_vllm_is_held_to_its_part() -> None:
    made = planned(RAG)
    assert gpus(made) == {"bge-m3": 8, "bge-reranker-v2-m3": 8, "qwen3-8b": 26}
    text = text_of(made)
    assert text.count("--gpu-memory-utilization 0.177 --runner pooling") == 2
    assert text.count("--gpu-memory-utilization 0.577") == 1


def test_what_no_longer_fits_stays_out_with_who_holds_the_rest() -> None:
    more = planned(RAG, changed={"models.yaml": (WRITER, THIRD + WRITER)})
    assert [change.model for change in more.blocked] == ["bge-reranker-v2-m3"]
    assert "GPU 0 has 3.0 GiB free, qwen3-8b-DIGEST-0.1-r0 holds 26.0 GiB, " in text_of(more)
    larger = planned(RAG, changed={"profiles.yaml": ("share: 26GiB", "share: 40GiB")})
    assert gpus(larger) == {"qwen3-8b": 40}
    assert "GPU 0 has 5.0 GiB free, qwen3-8b-DIGEST-0.1-r0 holds 40.0 GiB" in text_of(larger)


def test_a_custom_server_is_held_until_its_workers_listen_and_gets_its_key_by_its_environment() -> None:
    made = planned(CUSTOM)
    assert made.warnings == ()
    llama = [step.launch for step in made.steps if step.launch and step.launch.model == "llama-70b-q4"]
    server, worker = (spec.processes[0] for spec in llama)
    assert server.wait_for is not None
    assert (server.wait_for.host, server.wait_for.port) == ("192.168.50.2", 18000)
    assert worker.wait_for is None
    assert worker.argv == ("${engine}/ggml-rpc-server", "-H", "192.168.50.2", "-p", "18000")
    assert server.env["LLAMA_API_KEY"] == "${key}"
    assert not any("${key}" in word for word in (*server.argv, *worker.argv))


WORKER = '    worker: ["${engine}/ggml-rpc-server", -H, "${host}", -p, "${port}"]\n'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('--port, "${port}", --url', '--port, "${prot}", --url', "command[9]: ${prot} stands for nothing"),
        (WORKER, "", "spec.custom.worker: spec.nodes is 2, and nothing says what the other ranks run"),
        (
            "    health: /health\n",
            "    health: /health\n  maxModelLen: 512\n",
            "spec.maxModelLen: a custom engine",
        ),
    ],
)
def test_what_the_page_tells_people_to_try_is_refused_with_what_to_write(
    old: str, new: str, told: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        planned(CUSTOM, changed={"profiles.yaml": (old, new)})
    assert told in str(refused.value)


def test_a_key_on_the_command_line_is_warned_of() -> None:
    made = planned(CUSTOM, changed={"profiles.yaml": ("/v1]", '/v1, --api-key, "${key}"]')})
    assert "every user of the node can read the key there" in text_of(made)
