"""Values to JSON and back, once for everything: the protocol, the record, plans and the agent's state files.

Names are camelCase outside and snake_case inside. Times are ISO 8601 in UTC. Nothing is coerced: a number where
text belongs is an error. Two readers: *strict* refuses unknown fields (requests: a field that an old agent would
ignore must never be dropped in silence), *tolerant* skips them (reports and records of newer peers).
"""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from cattrs import BaseValidationError, Converter, ForbiddenExtraKeysError, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from llmgw.model.manifest import FromEnv, FromFile, Secret, Value

T = TypeVar("T")


class CodecError(ValueError):
    """JSON that is not the value it should be; says at which field."""


def camel(name: str) -> str:
    """``max_model_len`` -> ``maxModelLen``; what begins with ``gpu_class`` is written ``class`` where people write
    it, see :data:`WRITTEN`."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


WRITTEN = {"gpu_class": "class", "from_port": "from", "to_port": "to"}
"""Fields whose written name is a Python keyword or says more inside with another word."""


def written_name(name: str) -> str:
    return WRITTEN.get(name) or camel(name)


def _iso(value: datetime) -> str:
    if value.tzinfo is None:
        raise CodecError(f"time {value!r} has no zone: all times are UTC")
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _time(value: Any, _: Any) -> datetime:
    if not isinstance(value, str):
        raise TypeError(f"expected a time as text, got {value!r}")
    parsed = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if parsed.utcoffset() != timedelta(0):
        raise ValueError(f"time {value!r} is not in UTC")
    return parsed


def _exactly(kind: type, *, also: tuple[type, ...] = ()) -> Callable[[Any, Any], Any]:
    allowed = (kind, *also)

    def check(value: Any, _: Any) -> Any:
        if type(value) not in allowed:
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__} {value!r:.80}")
        return value

    return check


def _secret(value: Any, _: Any) -> Secret:
    match value:
        case {"fromEnv": str(name)} if len(value) == 1:
            return FromEnv(from_env=name)
        case {"fromFile": str(path)} if len(value) == 1:
            return FromFile(from_file=path)
    raise TypeError(f"expected {{fromEnv: NAME}} or {{fromFile: path}}, got {value!r:.80}")


def _value(value: Any, kind: Any) -> Value:
    return value if isinstance(value, str) else _secret(value, kind)


def _int_or_auto(value: Any, _: Any) -> Any:
    if value == "auto" or type(value) is int:
        return value
    raise TypeError(f"expected a number or auto, got {value!r:.80}")


def make_converter(*, strict: bool, detailed: bool = False) -> Converter:
    """A converter with this project's rules; manifests/ adds durations and sizes to one of its own."""
    converter = Converter(forbid_extra_keys=strict, detailed_validation=detailed)
    converter.register_structure_hook(datetime, _time)
    converter.register_unstructure_hook(datetime, _iso)
    converter.register_structure_hook(str, _exactly(str))
    converter.register_structure_hook(int, _exactly(int))
    converter.register_structure_hook(float, _exactly(float, also=(int,)))
    converter.register_structure_hook(bool, _exactly(bool))
    converter.register_structure_hook_func(lambda kind: kind == Value, _value)
    converter.register_structure_hook_func(lambda kind: kind == Secret, _secret)
    converter.register_structure_hook_func(
        lambda kind: kind == (Secret | None), lambda v, t: None if v is None else _secret(v, t)
    )
    converter.register_structure_hook_func(_is_int_or_auto, _int_or_auto)
    converter.register_unstructure_hook_func(lambda kind: kind in (Value, Secret), converter.unstructure)

    if (
        not detailed
    ):  # the detailed reader keeps cattrs' own way, which says at which index something is wrong
        converter.register_structure_hook_factory(
            _is_list_of_one_kind, lambda kind: _tuple_of(kind, converter)
        )

    def structure(kind: Any) -> Callable[[Any, Any], Any]:
        names = {field.name: override(rename=written_name(field.name)) for field in fields(kind)}
        return make_dict_structure_fn(
            kind,
            converter,
            _cattrs_forbid_extra_keys=strict,
            _cattrs_detailed_validation=detailed,
            **names,  # type: ignore[arg-type] # the overrides are cattrs' own way to rename fields
        )

    def unstructure(kind: Any) -> Callable[[Any], Any]:
        names = {field.name: override(rename=written_name(field.name)) for field in fields(kind)}
        return make_dict_unstructure_fn(kind, converter, **names)  # type: ignore[arg-type] # same

    converter.register_structure_hook_factory(is_dataclass, structure)
    converter.register_unstructure_hook_factory(is_dataclass, unstructure)
    converter.register_unstructure_hook_factory(_is_list_of_one_kind, lambda kind: _list_of(kind, converter))
    converter.register_unstructure_hook_factory(_may_be_none, lambda kind: _or_none(kind, converter))
    return converter


def _is_list_of_one_kind(kind: Any) -> bool:
    arguments = get_args(kind)
    return get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis


def _tuple_of(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """Three times as fast as the general way, which looks up the items' reader for each list again: records and
    reports are mostly lists of few kinds. A kind that no list holds anything of needs no reader, whose making takes longer than
    the reading of a small record."""
    item_kind = get_args(kind)[0]
    reader = cache(lambda: converter.get_structure_hook(item_kind))

    def read(value: Any, _: Any) -> Any:
        if type(value) is not list and type(value) is not tuple:
            raise TypeError(f"expected a list, got {type(value).__name__} {value!r:.80}")
        if not value:
            return ()
        item = reader()
        return tuple([item(part, item_kind) for part in value])

    return read


def _list_of(kind: Any, converter: Converter) -> Callable[[Any], Any]:
    """The same the other way."""
    writer = cache(lambda: converter.get_unstructure_hook(get_args(kind)[0]))

    def write(value: Any) -> Any:
        if not value:
            return ()
        item = writer()
        return tuple([item(part) for part in value])

    return write


def _may_be_none(kind: Any) -> bool:
    arguments = get_args(kind)
    return get_origin(kind) in (Union, UnionType) and len(arguments) == 2 and type(None) in arguments


def _or_none(kind: Any, converter: Converter) -> Callable[[Any], Any]:
    """As for lists: what is never there needs no writer."""
    item_kind = next(each for each in get_args(kind) if each is not type(None))
    writer = cache(lambda: converter.get_unstructure_hook(item_kind))
    return lambda value: None if value is None else writer()(value)


def _is_int_or_auto(kind: Any) -> bool:
    arguments = get_args(kind)
    return (
        get_origin(kind) is not None
        and int in arguments
        and any(get_args(part) == ("auto",) for part in arguments)
    )


_FAST = {strict: make_converter(strict=strict) for strict in (False, True)}


def to_json(value: Any) -> Any:
    """Any value of llmgw.model or wire.messages as JSON types."""
    return _FAST[True].unstructure(value)


def from_json(kind: type[T], data: Any, *, strict: bool) -> T:
    """Raises :class:`CodecError` naming the field that is wrong."""
    try:
        return _FAST[strict].structure(data, kind)
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        ForbiddenExtraKeysError,
        BaseValidationError,
    ) as wrong:
        raise CodecError(
            f"not a valid {kind.__name__}: {_explain(kind, data, strict=strict) or wrong}"
        ) from wrong


def _explain(kind: type[Any], data: Any, *, strict: bool) -> str:
    """The same once more with a slower reader that knows which field it is at."""
    try:
        make_converter(strict=strict, detailed=True).structure(data, kind)
    except BaseValidationError as wrong:
        return "; ".join(transform_error(wrong, path=kind.__name__)[:5])
    except (TypeError, ValueError, KeyError, AttributeError) as wrong:
        return str(wrong)
    return ""


def dumps(value: Any) -> bytes:
    """One line of UTF-8 JSON, no line break at the end."""
    return json.dumps(to_json(value), ensure_ascii=False, separators=(",", ":")).encode()


def dumps_readable(value: Any) -> bytes:
    """For files that people read and diff: indented, in the order of the fields, ended by a line break."""
    return (json.dumps(to_json(value), ensure_ascii=False, indent=2) + "\n").encode()


def loads(kind: type[T], data: bytes | str, *, strict: bool) -> T:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as wrong:
        raise CodecError(f"not a valid {kind.__name__}: not JSON: {wrong}") from wrong
    return from_json(kind, parsed, strict=strict)
