"""Values and JSON: there and back without a difference, and what is refused is told by its place and never by its content."""

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, NewType, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.controller.repo.layout import Endpoints, Head, Sizes
from llmgw.core.life import Life
from llmgw.model.claims import Claims
from llmgw.model.manifest import KINDS, Secret
from llmgw.model.plan import Plan
from llmgw.model.record import NodeRecord, ReplicaRecord
from llmgw.model.report import Exit, Report
from llmgw.model.struct import Struct, Time, default_of, fields
from llmgw.redaction import Masked
from llmgw.wire import rpc
from llmgw.wire.codec import CodecError, dumps, dumps_readable, from_json, loads, to_json
from llmgw.wire.messages import Request, StartParams, WatchEvent

WHOLE = (
    *KINDS.values(), Plan, Head, Endpoints, Sizes, ReplicaRecord, NodeRecord, Report, StartParams, WatchEvent
)  # fmt: skip
"""What travels and what is kept, with everything inside."""

TEXT = st.text(max_size=5)
SECRETS = st.builds(Secret, from_env=TEXT) | st.builds(Secret, from_file=TEXT)
SIMPLE: Mapping[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    type(None): st.none(),
    Time: st.datetimes(timezones=st.just(timezone.utc)),
    Secret: SECRETS,
    Any: st.dictionaries(TEXT, TEXT | st.integers() | st.lists(TEXT, max_size=2), max_size=2),
}


def of_kind(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of it."""
    if isinstance(kind, NewType):
        return of_kind(kind.__supertype__)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return st.builds(kind, **{field.name: _later(field.type) for field in fields(kind)})
    return _of_several(get_origin(kind), get_args(kind))


def _later(kind: Any) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: of_kind(kind))


def _of_several(origin: Any, arguments: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*map(of_kind, arguments))
    if origin is tuple:
        return st.lists(of_kind(arguments[0]), max_size=1).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, of_kind(arguments[1]), max_size=1)
    return st.one_of(*map(of_kind, arguments))


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=15)
@given(data=st.data())
def test_there_and_back_is_the_same_value_and_the_same_bytes(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(of_kind(kind))
    for written in (dumps(value), dumps_readable(value)):
        for strict in (False, True):
            read = loads(kind, written, strict=strict)
            assert read == value
            assert dumps(read) == dumps(value)
    assert json.loads(dumps(value)) == json.loads(json.dumps(to_json(value)))
    assert from_json(kind, to_json(value), strict=True) == value


def _kinds(kind: Any, seen: set[Any]) -> set[Any]:
    """It and all kinds of values inside it."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        if kind not in seen:
            seen.add(kind)
            for field in fields(kind):
                _kinds(field.type, seen)
    else:
        for argument in get_args(kind):
            _kinds(argument, seen)
    return seen


def test_what_is_left_out_is_read_as_if_it_were_written() -> None:
    """A default that is a whole number where a decimal is meant would be another text once it has been read."""
    seen: set[Any] = set()
    for kind in WHOLE:
        _kinds(kind, seen)
    assert len(seen) > 100
    for kind in seen:
        for field in fields(kind):
            if not field.required:
                default = default_of(field)
                assert dumps(from_json(field.type, to_json(default), strict=True)) == dumps(default), (
                    kind,
                    field.name,
                )


def test_names_are_camel_case_outside_and_three_have_names_of_their_own() -> None:
    gpus = to_json(from_json(KINDS["Profile"], {"engine": {"name": "sim"}}, strict=True))["gpus"]
    assert {"perNode", "class"} <= set(gpus)
    assert {"from", "to"} <= set(to_json(from_json(KINDS["Node"], {}, strict=True))["ports"])


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('"memory": "5"', "Expected `int`, got `str` - at `$.memory`"),
        ('"memory": 5.5', "Expected `int`, got `float` - at `$.memory`"),
        ('"memory": true', "Expected `int`, got `bool` - at `$.memory`"),
        ('"memory": null', "Expected `int`, got `null` - at `$.memory`"),
        ('"gpus": {}', "Expected `array`, got `object` - at `$.gpus`"),
        ('"gpus": [{"uuid": "a"}, {}]', "Object missing required field `uuid` - at `$.gpus[1]`"),
        ('"gpus": [{"uuid": 7}]', "Expected `str`, got `int` - at `$.gpus[0].uuid`"),
    ],
)
def test_nothing_is_coerced_and_the_field_is_told(written: str, told: str) -> None:
    for strict in (False, True):
        with pytest.raises(CodecError) as wrong:
            loads(Claims, f"{{{written}}}", strict=strict)
        assert str(wrong.value) == f"not a valid Claims: {told}"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"more": 1}, "`$.more`"),
        ({"gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-2", "more": {"deep": [1]}}]}, "`$.gpus[1].more`"),
    ],
)
def test_a_field_that_nobody_knows_is_refused_in_a_request_and_skipped_in_a_report(
    more: Mapping[str, Any], told: str
) -> None:
    written = {"memory": 5, "ports": [80], **more}
    assert from_json(Claims, written, strict=False).memory == 5
    with pytest.raises(CodecError) as wrong:
        from_json(Claims, written, strict=True)
    assert str(wrong.value) == f"not a valid Claims: unknown field {told}"


def test_what_may_be_anything_has_no_unknown_fields() -> None:
    anything = {"a": {"b": [{"c": None}]}}
    assert from_json(dict[str, Any], anything, strict=True) == anything


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "nul", '{"memory": 5} x', '{"memory": NaN}', '{"memory": 1e999}', '{"ports": "\\ud800"}', b'{"memory": "\xff"}', b"\xef\xbb\xbf{}",
        "[" * 100_000, '{"gpus": ' * 100_000,
    ],
)  # fmt: skip
def test_whatever_comes_is_a_value_or_a_refusal(text: str | bytes) -> None:
    for strict in (False, True):
        with pytest.raises(CodecError):
            loads(Claims, text, strict=strict)


def test_where_it_stops_being_json_is_told_by_the_line() -> None:
    with pytest.raises(CodecError, match=r"^it is not JSON: .*: line 2 column 11 \(char 12\)$"):
        loads(Claims, '{\n"memory": ]}', strict=False)


def test_a_refusal_never_tells_what_stood_there() -> None:
    """It may be a secret: what is wrong is told with its place."""
    for written in (
        '{"memory": "s3cret"}',
        '{"ports": ["s3cret"]}',
        '{"gpus": [{"uuid": "a", "memory": "s3cret"}]}',
    ):
        with pytest.raises(CodecError) as wrong:
            loads(Claims, written, strict=True)
        assert "s3cret" not in str(wrong.value)


def test_a_secret_by_reference_names_one_place() -> None:
    assert dumps(Secret(from_env="A")) == b'{"fromEnv":"A"}'
    for written in ({}, {"fromEnv": "A", "fromFile": "b"}, {"fromEnv": "A", "more": 1}, {"fromEnv": None}):
        with pytest.raises(CodecError):
            from_json(Secret, written, strict=False)


def test_times_have_a_zone_and_are_told_in_utc() -> None:
    at = datetime(2026, 5, 4, 3, 2, 1, 987654, tzinfo=timezone.utc)
    end = Exit(process="engine", code=1, at=at)
    assert b'"2026-05-04T03:02:01.987654Z"' in dumps(end)
    with pytest.raises(CodecError, match="timezone"):
        from_json(Life, {"state": "ready", "since": "2026-01-01T00:00:00", "reason": ""}, strict=False)
    with pytest.raises(CodecError, match="timezone"):
        loads(Exit, dumps(end).replace(b"Z", b""), strict=False)


def test_what_hides_itself_when_it_is_printed_is_sent_as_it_is_and_hides_until_then() -> None:
    params = {"secrets": {"key": Masked("k3y")}}
    assert dumps(params) == b'{"secrets":{"key":"k3y"}}'
    assert "k3y" not in repr(Request(method="start", id=1, params=to_json(params)))
    assert rpc.encode(Request(method="start", id=1, params=to_json(params))).count(b"k3y") == 1


def test_half_of_a_character_is_refused_like_anything_else() -> None:
    """Python's own reader of JSON lets it through, and lines of the protocol are read by that."""
    for written in ({"memory": "\ud800"}, {"\ud800": 1, "memory": "x"}, {"gpus": ["\ud800"]}):
        for strict in (False, True):
            with pytest.raises(CodecError):
                from_json(Claims, written, strict=strict)


def test_a_mapping_of_any_kind_is_an_object_and_what_is_no_value_is_refused() -> None:
    assert dumps(MappingProxyType({"a": (1, 2)})) == b'{"a":[1,2]}'
    with pytest.raises(TypeError, match="a object can't be written as JSON"):
        dumps(object())


def test_an_exit_reads_as_it_did() -> None:
    """Files of agents and records that are there already."""
    written = '{"process": "engine", "code": null, "signal": 9, "at": "2026-05-04T03:02:01Z"}'
    read = loads(Exit, written, strict=False)
    assert (read.signal, read.at) == (9, datetime(2026, 5, 4, 3, 2, 1, tzinfo=timezone.utc))
