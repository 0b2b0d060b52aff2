"""The record's files: read alike however they are written, and quickly as llmgw writes them."""

import json
from collections.abc import Callable

import pytest

from llmgw.controller.repo import layout
from llmgw.controller.repo.layout import Kept, LayoutError
from llmgw.model.ids import FleetId
from llmgw.model.record import Record, ReplicaRecord
from llmgw.model.struct import replace
from tests.controller.test_record_stores import replica


def record(*replicas: ReplicaRecord) -> Record:
    return Record(fleet=FleetId("f1"), serial=1, replicas={each.id: each for each in replicas})


def written(kept: Record) -> dict[str, bytes]:
    files = layout.changes(None, Kept(record=kept))
    return {path: data for path, data in files.items() if data is not None}


def read(files: dict[str, bytes]) -> Record:
    return layout.read(files).record


def rewritten(files: dict[str, bytes], change: Callable[[str], str]) -> dict[str, bytes]:
    """The replicas' files after somebody's editor."""
    return {
        path: change(data.decode()).encode() if path.startswith(layout.REPLICAS) else data
        for path, data in files.items()
    }


def last_first(text: str) -> str:
    return json.dumps(dict(reversed(json.loads(text).items())), indent=2)


def with_the_word_in_a_reason(text: str) -> str:
    return json.dumps({**json.loads(text), "reasons": ['its "spec": {', "\n  },\n"]}, indent=2)


def test_replicas_of_one_spec_share_it() -> None:
    first, second = replica("chat", 0), replica("chat", 1)
    found = read(written(record(first, second))).replicas
    assert found == {first.id: first, second.id: second}
    assert found[first.id].spec is found[second.id].spec


def test_specs_that_differ_are_kept_apart() -> None:
    one = replica("chat", 0)
    other = replace(replica("chat", 1), spec=replace(one.spec, key_id="89abcdef"))
    assert read(written(record(one, other))).replicas == {one.id: one, other.id: other}


@pytest.mark.parametrize(
    "written_by",
    [json.loads, lambda text: json.loads(text)["spec"]],
    ids=["a list of values", "nothing but the spec"],
)
def test_what_is_no_replica_is_refused(written_by: Callable[[str], object]) -> None:
    files = written(record(replica("chat", 0)))
    broken = rewritten(files, lambda text: json.dumps([written_by(text)], indent=2))
    with pytest.raises(LayoutError, match=r"replicas/chat/.*\.json: not a valid ReplicaRecord"):
        read(broken)


@pytest.mark.parametrize(
    "editor",
    [
        lambda text: json.dumps(json.loads(text)),
        lambda text: json.dumps(json.loads(text), indent=4),
        lambda text: json.dumps(json.loads(text), indent="\t", sort_keys=True),
        lambda text: text.replace("\n", "\r\n"),
        last_first,
    ],
    ids=["one line", "wider", "sorted", "CRLF", "turned round"],
)
def test_a_file_that_was_formatted_anew_says_the_same(editor: Callable[[str], str]) -> None:
    wanted = record(replica("chat", 0), replica("chat", 1))
    assert read(rewritten(written(wanted), editor)) == wanted


def test_text_that_looks_like_a_spec_is_text() -> None:
    found = read(rewritten(written(record(replica("chat", 0))), with_the_word_in_a_reason))
    assert [each.reasons for each in found.replicas.values()] == [('its "spec": {', "\n  },\n")]


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ('"servedName": "chat"', '"servedName": 7', "spec.servedName"),
        ('"ordinal": 0', '"ordinal": "0"', "ordinal"),
        ('"phase": "starting"', '"phase": "dancing"', "phase"),
    ],
)
def test_a_wrong_value_is_told_by_its_field(before: str, after: str, field: str) -> None:
    files = rewritten(written(record(replica("chat", 0))), lambda text: text.replace(before, after, 1))
    with pytest.raises(LayoutError, match=rf"not a valid ReplicaRecord: .* at `\$\.{field}`"):
        read(files)


@pytest.mark.parametrize("place", ['"keyId": "0123abcd"', '"ordinal": 0,', '"memory": 5'])
def test_what_is_no_json_is_told_by_its_line_in_the_whole_file(place: str) -> None:
    files = rewritten(written(record(replica("chat", 0))), lambda text: text.replace(place, f"{place},", 1))
    (path,) = (path for path in files if path.startswith(layout.REPLICAS))
    with pytest.raises(json.JSONDecodeError) as told:
        json.loads(files[path])
    with pytest.raises(LayoutError) as wrong:
        read(files)
    assert (wrong.value.file, wrong.value.what) == (
        path,
        f"it is not JSON: {told.value}",
    )
