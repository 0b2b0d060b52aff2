"""How weights get onto a node, whatever the engine."""

from llmgw.engines import weights
from llmgw.model.launch import FetchSpec
from llmgw.model.manifest import Pip, Secret, Source
from llmgw.model.struct import replace
from llmgw.wire import codec

HUB = Source(
    hugging_face="acme/tiny", revision="6f6073b423013f6a7d4d9f39144961bfbfbc386b", token=Secret(from_env="T")
)
PIP = Pip(index_url="https://pypi.example.org/simple", wheel_dir="/srv/wheels")


def test_a_repository_of_a_hub_is_fetched_at_its_commit_by_a_pinned_tool() -> None:
    spec = weights.fetch(HUB, PIP)
    assert spec is not None
    assert (spec.hugging_face, spec.revision, spec.tool) == (
        HUB.hugging_face,
        HUB.revision,
        weights.HUB_CLIENT,
    )
    assert (spec.index_url, spec.wheel_dir) == (PIP.index_url, PIP.wheel_dir)
    assert spec.description == f"acme/tiny@{HUB.revision}"


def test_of_a_token_only_the_reference_is_in_the_order() -> None:
    spec = weights.fetch(HUB, PIP)
    assert spec is not None
    assert codec.to_json(spec)["token"] == {"fromEnv": "T"}
    assert codec.from_json(FetchSpec, codec.to_json(spec), strict=True) == spec


def test_who_may_fetch_them_makes_no_other_weights() -> None:
    other = replace(HUB, token=None)
    assert weights.weights_digest(other) == weights.weights_digest(HUB)
    assert weights.weights_digest(replace(HUB, revision="7f6073b")) != weights.weights_digest(HUB)


def test_what_is_on_the_node_is_not_fetched() -> None:
    assert weights.fetch(Source(path="/models/x"), PIP) is None
