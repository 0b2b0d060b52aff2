"""The examples of engines, planned as their pages tell people to."""

from llmgw.core.show import render
from tests.core.fabric.test_examples_planned import planned


def test_an_embedder_and_a_reranker_share_one_gpu_and_each_is_held_to_its_part() -> None:
    made = planned("embedding-and-reranker")
    launches = [step.launch for step in made.steps if step.launch is not None]
    assert len(launches) == 2
    assert len({claim.uuid for spec in launches for claim in spec.claims.gpus}) == 1
    text = render.plan_text(made, show_commands=True)
    for words in ("--gpu-memory-utilization 0.266", "--gpu-memory-utilization 0.444", "--runner pooling"):
        assert words in text
    apart = planned("embedding-and-reranker", changed={"profiles.yaml": ("share: 20GiB", "share: 40GiB")})
    launches = [step.launch for step in apart.steps if step.launch is not None]
    assert len({claim.uuid for spec in launches for claim in spec.claims.gpus}) == 2


def test_a_custom_engine_is_installed_started_and_told_its_key_by_its_environment() -> None:
    made = planned("custom-engine")
    text = render.plan_text(made, show_commands=True)
    assert "infinity-emb[all]==0.0.77" in text
    assert "--host 10.0.0.21 --port 18000 --url-prefix /v1" in text
    assert "INFINITY_API_KEY='${key}'" in text or "INFINITY_API_KEY=${key}" in text
    assert not [warning for warning in made.warnings if "key" in warning.text]
