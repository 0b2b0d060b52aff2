"""What an engine's variables may not be set to by a profile, a node's env can't set either."""

import pytest

from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.load import load
from llmgw.model.problems import InvalidError

FLEET = """\
apiVersion: llmgw/v1
kind: Node
metadata: {{name: gpu01}}
spec: {{transport: local, local: {{workDir: /w/gpu01}}, pool: {pool}, env: {{{env}}}}}
---
apiVersion: llmgw/v1
kind: Node
metadata: {{name: gpu02}}
spec: {{transport: local, local: {{workDir: /w/gpu02}}, ports: {{from: 17000, to: 17999}}}}
---
apiVersion: llmgw/v1
kind: Profile
metadata: {{name: p}}
spec: {{engine: {engine}, gpus: {{perNode: 1}}}}
---
apiVersion: llmgw/v1
kind: Model
metadata: {{name: m}}
spec: {{profile: p, source: {{path: /models/m.gguf}}}}
"""
VLLM = '{name: vllm, version: "0.33.0"}'
LLAMA = '{name: llamacpp, version: "2026.10.11549"}'


def told(engine: str, env: str, pool: str = "default") -> list[str]:
    text = FLEET.format(engine=engine, env=env, pool=pool)
    try:
        resolve(load({"all.yaml": text.encode()}, commit=None), key_id="0" * 8, adapters=ADAPTERS)
    except InvalidError as invalid:
        return [str(problem) for problem in invalid.problems]
    return []


@pytest.mark.parametrize(
    ("engine", "env", "name"),
    [
        (VLLM, 'VLLM_PORT: "5000"', "VLLM_PORT"),
        (VLLM, 'CUDA_VISIBLE_DEVICES: "0"', "CUDA_VISIBLE_DEVICES"),
        (LLAMA, "LLAMA_ARG_HF_REPO: lab/other", "LLAMA_ARG_HF_REPO"),
    ],
)
def test_a_nodes_env_cannot_set_what_is_the_plans_or_the_engines(engine: str, env: str, name: str) -> None:
    (found,) = told(engine, env)
    assert found.startswith("all.yaml:4:")
    assert f"spec.env.{name}: can't be set here" in found


def test_what_a_node_may_say_and_what_concerns_another_engine_or_pool_is_taken() -> None:
    assert told(VLLM, "HTTPS_PROXY: http://proxy:3128, NCCL_IB_HCA: mlx5_0") == []
    assert told(LLAMA, 'VLLM_PORT: "5000"') == []
    assert told(VLLM, 'VLLM_PORT: "5000"', pool="other") == []
