"""Editing one field of a manifest's text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.manifests import yamltext
from llmgw.manifests.edit import UNSET, Target, edited
from llmgw.model.problems import StalledError

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("examples", "manifests")
    for path in (ROOT / folder).rglob("*.y*ml")
    if b"llmgw/v1" in path.read_bytes()
)
MODEL = b"""\
# The one that everybody uses.
apiVersion: llmgw/v1
kind: Model
metadata: {name: chat}   # short
spec:
  source:
    path: "/models/chat"   # on every node
  profile: 'cpu'
  replicas: 2  # two, since June

  args:   # in this order
    - --verbose
    - "--no-mmap"
  # what comes next is for the night
  priority: 10
---
kind: Model
metadata:
  name: other
spec:
  replicas: 2
"""


def change(path: str, value: Any, data: bytes = MODEL, name: str = "chat") -> str:
    return edited(data, Target(file="m.yaml", kind="Model", name=name), path, value).decode()


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        ("spec.replicas", 3, "replicas: 2  # two", "replicas: 3  # two"),
        ("spec.source.path", "/models/x y", '"/models/chat"   #', '"/models/x y"   #'),
        ("spec.profile", "it's", "'cpu'", "'it''s'"),
        ("spec.args[1]", "--mlock", '    - "--no-mmap"', '    - "--mlock"'),
        ("spec.args", ["a", "b: c"], 'args:   # in this order\n    - --verbose\n    - "--no-mmap"\n', 'args: [a, "b: c"]   # in this order\n'),
        ("spec.servedName", "1.10", "  priority: 10\n---", '  priority: 10\n  servedName: "1.10"\n---'),
        ("spec.rollout.maxSurge", 2, "  priority: 10\n---", "  priority: 10\n  rollout: {maxSurge: 2}\n---"),
        ("metadata.labels", {"tier": "gold"}, "{name: chat}   # short", "{name: chat, labels: {tier: gold}}   # short"),
        ("spec.source.sha256", "ab", "# on every node\n", "# on every node\n    sha256: ab\n"),
        ("spec.priority", UNSET, "  priority: 10\n---", "---"),
        ("spec.args[0]", UNSET, "    - --verbose\n", ""),
        ("spec.suspend", UNSET, "", ""),
        ("spec.replicas", 2, "", ""),
    ],
)  # fmt: skip
def test_only_the_field_changes(path: str, value: Any, before: str, after: str) -> None:
    was = MODEL.decode()
    assert before in was
    assert change(path, value) == was.replace(before, after, 1)


def test_the_document_is_found_by_what_it_describes() -> None:
    assert change("spec.replicas", 5, name="other") == MODEL.decode()[:-2] + "5\n"
    with pytest.raises(StalledError, match=r"m\.yaml describes no Model third"):
        change("spec.replicas", 5, name="third")


def test_line_ends_a_byte_order_mark_and_a_missing_last_line_end_stay() -> None:
    windows = ("\ufeff" + MODEL.decode().replace("\n", "\r\n")).encode().rstrip()
    changed = edited(windows, Target(file="m", kind="Model", name="other"), "spec.priority", 7)
    assert changed == windows + b"\r\n  priority: 7"
    first = edited(windows, Target(file="m", kind="Model", name="chat"), "apiVersion", "x")
    assert first == windows.replace(b"llmgw/v1", b"x")


def test_an_item_is_named_by_its_index_or_its_name() -> None:
    data = b"kind: Model\nmetadata: {name: chat}\nspec:\n  adapters:\n  - name: sql\n    rank: 8\n  - {name: law, rank: 8}\n"
    by_name = change("spec.adapters[law].rank", 16, data)
    assert by_name == data.decode().replace("law, rank: 8", "law, rank: 16")
    assert change("spec.adapters[0].rank", 16, data) == data.decode().replace("    rank: 8", "    rank: 16")
    with pytest.raises(StalledError, match="no such item: it has 2, named sql, law"):
        change("spec.adapters[cobol].rank", 16, data)


def test_what_an_alias_shares_is_not_edited() -> None:
    data = b"kind: Model\nmetadata: {name: chat}\nspec:\n  a: &x {y: 1}\n  b: *x\n"
    for path in ("spec.a.y", "spec.b.y"):
        with pytest.raises(StalledError, match="an anchor and its aliases share one value"):
            change(path, 2, data)
    assert change("spec.b", 2, data) == data.decode().replace("*x", "2")


def test_block_text_and_an_empty_value_are_replaced_too() -> None:
    data = b"kind: Model\nmetadata: {name: chat}\nspec:\n  note: |\n    two\n    lines\n\n  priority:  # none yet\n"
    assert change("spec.note", "one", data) == data.decode().replace("|\n    two\n    lines", "one")
    assert change("spec.priority", 3, data) == data.decode().replace("priority:", "priority: 3")


@pytest.mark.parametrize("path", ["", "spec..x", "spec.args[9]", "spec.args[", ".spec", "spec.args.first"])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(StalledError):
        change(path, 1)


# ---- every example, every field ------------------------------------------------------------------------------


def _targets(file: Path) -> Iterator[tuple[Target, yamltext.Document]]:
    documents, problems = yamltext.read(file.name, file.read_bytes())
    assert not problems
    for document in documents:
        name = document.data.get("metadata", {}).get("name", "")
        yield Target(file=file.name, kind=document.data["kind"], name=name), document


def _fields(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            named = key if re.fullmatch(r'[^.\[\]"]+', key) else f'"{key}"'
            yield from _fields(value, f"{path}.{named}" if path else named)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _fields(value, f"{path}[{index}]")
    else:
        yield path, data


def _apart(one: bytes, other: bytes) -> tuple[int, int]:
    """Where two texts begin to differ, and how many bytes of the first do."""
    start = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    end = 0
    while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return start, len(one) - end - start


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_field_of_every_example_can_be_changed_and_nothing_else_changes(file: Path) -> None:
    data = file.read_bytes()
    for target, document in _targets(file):
        for path, value in _fields(document.data):
            if path in ("kind", "metadata.name"):
                continue
            other: Any = value + 1 if type(value) is int else f"{value}x"
            changed = edited(data, target, path, other)
            _, count = _apart(data, changed)
            assert count <= len(str(value)) + 2, (path, changed.decode())
            assert edited(changed, target, path, value).count(b"\n") == data.count(b"\n")


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_added_to_an_example_and_taken_away_again_leaves_no_trace(file: Path) -> None:
    data = file.read_bytes()
    for target, document in _targets(file):
        assert "zz" not in document.data["metadata"]
        added = edited(data, target, 'metadata.zz."a/b.c"', "yes: no")
        emptied = edited(added, target, 'metadata.zz."a/b.c"', UNSET)
        assert edited(emptied, target, "metadata.zz", UNSET) == data
        whole = edited(data, target, "spec.zz", [1, {"a": "#"}, "- x"])
        there = "spec" in document.data
        assert edited(whole, target, "spec.zz" if there else "spec", UNSET) == data


# ---- whatever people write ------------------------------------------------------------------------------------

_VALUES = st.sampled_from(
    ["1", "yes it is", "'single'", '"double # no comment"', "[a, b]", "{c: 1}", "|\n      some\n      text", ">-\n      folded", "~", ""]
)  # fmt: skip
_COMMENTS = st.sampled_from(["", "   # why", "\n    # above the next", "\n"])
_ODD = st.lists(st.tuples(st.sampled_from("abcdefgh"), _VALUES, _COMMENTS), min_size=1, max_size=6, unique_by=lambda one: one[0])  # fmt: skip
_NEW = st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text(st.characters(categories=["L", "N", "P", "Z"]), max_size=12), st.just(["x", 1]), st.just({"y": "z"}))  # fmt: skip


@given(
    fields=_ODD,
    ending=st.sampled_from(["\n", "\r\n"]),
    value=_NEW,
    chosen=st.integers(0, 7),
    removed=st.booleans(),
)
def test_one_field_of_odd_text_changes_and_the_rest_reads_as_before(
    fields: list[tuple[str, str, str]],
    ending: str,
    value: Any,
    chosen: int,
    removed: bool,  # noqa: FBT001 - hypothesis fills it in by name
) -> None:
    lines = "".join(f"    {key}: {written}{comment}\n" for key, written, comment in fields)
    text = f"# first\nkind: Model\nmetadata: {{name: chat}}\nspec:\n  inner:\n{lines}  last: 1 # end\n---\nkind: Node\n"
    data = text.replace("\n", ending).encode()
    documents, problems = yamltext.read("m", data)
    if problems:  # a comment behind block text, and the like
        return
    key = "abcdefgh"[chosen]
    wanted = {**documents[0].data["spec"]["inner"]}
    if removed:
        wanted.pop(key, None)
    else:
        wanted[key] = value
    changed = edited(
        data, Target(file="m", kind="Model", name="chat"), f"spec.inner.{key}", UNSET if removed else value
    )
    again, wrong = yamltext.read("m", changed)
    assert not wrong
    assert again[0].data["spec"] == {"inner": wanted, "last": 1}
    assert again[1].data == {"kind": "Node"}
    assert changed.startswith(b"# first")
    assert changed.endswith(data[data.index(b"  last") :])
