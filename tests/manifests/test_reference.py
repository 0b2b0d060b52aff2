"""What `llmgw explain` says of each field, and that its examples are manifests."""

import json
from typing import Any

import pytest

from llmgw.manifests import reference, schema, yamltext
from llmgw.model.manifest import KINDS
from llmgw.model.problems import InvalidError

FIELDS = [found for kind in sorted(KINDS) for found in reference.fields(kind)]


def test_a_field_is_explained_with_type_default_meaning_and_example() -> None:
    assert reference.explanation("Model.spec.rollout.maxSurge") == (
        "Model.spec.rollout.maxSurge\n"
        "  whole number, 0 to 10000; default 1\n"
        "\n"
        "  Replicas that may run beyond `replicas` while old and new overlap.\n"
        "\n"
        "  Example:\n"
        "    spec:\n"
        "      rollout:\n"
        "        maxSurge: 1\n"
    )


def test_a_map_is_explained_with_its_fields() -> None:
    text = reference.explanation("Profile.spec.timeouts")
    assert "  map\n" in text
    assert "    stop " in text
    assert "duration. From SIGTERM to SIGKILL." in text


@pytest.mark.parametrize("written", ["model.spec.replicas", "Model.replicas", "Model.spec.replicas."])
def test_a_path_may_be_written_loosely(written: str) -> None:
    assert reference.field(written).path == "Model.spec.replicas"


def test_list_items_need_no_index() -> None:
    assert reference.field("Node.spec.fabrics[0].hcas").path == "Node.spec.fabrics.hcas"
    assert "        - hcas: [mlx5_0, mlx5_1]\n" in reference.explanation("Node.spec.fabrics.hcas")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("Modle.spec", "did you mean Model?"),
        ("Model.spec.replica", "did you mean Model.spec.replicas?"),
        ("Model.spec.qqqqqq.zzzzz", "did you mean|lists the fields"),
        ("Pod", "write one of Fleet, Node, Profile, Model|did you mean"),
    ],
)
def test_an_unknown_field_names_the_nearest(path: str, hint: str) -> None:
    with pytest.raises(InvalidError, match=hint):
        reference.explanation(path)


@pytest.mark.parametrize("found", FIELDS, ids=lambda found: found.path)
def test_every_field_can_be_explained_and_its_example_is_yaml_for_the_same_value(
    found: reference.Field,
) -> None:
    text = reference.explanation(found.path)
    assert found.description in text
    for value in (found.example, found.default):
        if value is not None:
            documents, problems = yamltext.read("f", f"a: {reference.as_yaml(value)}\n".encode())
            assert problems == []
            assert documents[0].data == {"a": json.loads(value)}
    if not found.children:
        assert "Example:" in text
        documents, problems = yamltext.read("f", text.partition("Example:\n")[2].encode())
        assert problems == []


@pytest.mark.parametrize(
    "found", [found for found in FIELDS if found.example and not found.children], ids=lambda found: found.path
)
def test_examples_are_accepted_where_they_are_shown(found: reference.Field) -> None:
    """In a document with nothing else, the only complaints are about what is missing."""
    kind = found.path.partition(".")[0]
    body = reference.explanation(found.path).partition("Example:\n")[2]
    head = f"    apiVersion: llmgw/v1\n    kind: {kind}\n    metadata: {{name: x}}\n"
    documents, _ = yamltext.read("f", (head + body).encode())
    problems: list[Any] = schema.check("f", documents[0])
    wrong = [
        str(problem)
        for problem in problems
        if "lacks" not in problem.what and "without" not in problem.what and "has none of" not in problem.what
    ]
    assert wrong == []
