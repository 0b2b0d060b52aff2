"""Whatever the bytes: a file is read or refused with places, never a crash; and what the schemas accept can be decoded."""

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.manifests import decode, schema, yamltext
from llmgw.manifests.load import load
from llmgw.model.manifest import KINDS
from llmgw.model.problems import InvalidError, Problem

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCUMENTS = [
    document
    for file in sorted(EXAMPLES.rglob("*.yaml"))
    for document in yamltext.read(file.name, file.read_bytes())[0]
    if document.data.get("kind") in KINDS
]
PIECES = st.sampled_from(
    ["a", ": ", "- ", "\n", "  ", "\t", "[", "]", "{", "}", ",", "&x ", "*x", "!t ", "!!int ", '"', "'", "#", "|\n", ">\n", "? ",
     "---\n", "...\n", "%YAML 1.2\n", "0777", "1e5", "~", "<<", "\ufeff", "\x00", "\r\n", "é", "@", "`", "kind: Model\n"]
)  # fmt: skip
VALUES = st.sampled_from(
    [None, True, 0, -1, 1, 1.0, 1.5, 10**12, "", "x", "X_1", "5m", "0s", "5GiB", "/x", "../x", [], ["x"], ["x", "x"], [1], {}, {"x": "y"},
     {"fromEnv": "A"}, {"fromFile": "/a"}, "auto", "0" * 64, "a==1"]
)  # fmt: skip


@given(
    st.one_of(
        st.binary(max_size=200), st.lists(PIECES, max_size=40).map(lambda parts: "".join(parts).encode())
    )
)
def test_any_bytes_are_read_or_refused_with_a_place(data: bytes) -> None:
    documents, problems = yamltext.read("f.yaml", data)
    lines = len(data.decode("utf-8", errors="replace").splitlines()) + 2
    for problem in problems:
        assert problem.where is not None
        assert 0 <= problem.where.line <= lines
        assert problem.what
        assert problem.instead
    json.dumps([document.data for document in documents], allow_nan=False)


@given(st.lists(PIECES, max_size=40).map(lambda parts: "".join(parts).encode()))
def test_loading_anything_gives_manifests_or_problems(data: bytes) -> None:
    told: tuple[Problem, ...] = ()
    try:
        load({"f.yaml": data}, commit=None)
    except InvalidError as invalid:
        told = invalid.problems
    assert all(problem.where is not None for problem in told)


def _places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in _places(child, (*path, key)))]


@settings(max_examples=300)
@given(st.data())
def test_what_the_schema_accepts_can_be_decoded(data: st.DataObject) -> None:
    """A right document with one part replaced, removed or added: refused by the schema, or decoded without a crash."""
    document = data.draw(st.sampled_from(DOCUMENTS))
    changed = copy.deepcopy(document.data)
    *parents, last = data.draw(st.sampled_from([place for place in _places(changed) if place]))
    holder = changed
    for part in parents:
        holder = holder[part]
    value = data.draw(VALUES)
    if data.draw(st.booleans()) and isinstance(holder, dict):
        fields = schema.schema(document.data["kind"].lower())["properties"]["spec"]["properties"]
        last = data.draw(st.sampled_from(sorted(fields)))
    holder[last] = value
    again, _ = yamltext.read("f.yaml", json.dumps(changed).encode())
    if again and not schema.check("f.yaml", again[0]):
        decode.manifest("f.yaml", again[0])
