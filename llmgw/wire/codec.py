"""Values to JSON and back, once for everything: the protocol, the record, plans and the agent's state files.

Names are camelCase outside and snake_case inside. Times are ISO 8601. Nothing is coerced: a number where text belongs
is an error. Two readers: *strict* refuses unknown fields (requests: a field that an old agent would ignore must never be
dropped in silence), *tolerant* skips them (reports and records of newer peers).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from llmgw.model.struct import Struct
from llmgw.redaction import Masked

T = TypeVar("T")


class CodecError(ValueError):
    """JSON that is not the value it should be; says at which field. What stands there it tells only where one of a few words
    belongs."""


def to_json(value: Any) -> Any:
    """Any value of llmgw.model or wire.messages as JSON types. What is masked when it is printed stays so."""
    return msgspec.to_builtins(value, builtin_types=(Masked,), enc_hook=_plain)


def from_json(kind: type[T], data: Any, *, strict: bool) -> T:
    """Raises :class:`CodecError` naming the field that is wrong."""
    try:
        value = msgspec.convert(data, kind)
        unknown = list(_unknown(value, data, "$")) if strict else []
    except (msgspec.ValidationError, UnicodeError, RecursionError) as wrong:
        raise _not_valid(kind, wrong) from wrong
    if unknown:
        raise CodecError(f"not a valid {_name(kind)}: unknown field {', '.join(unknown[:5])}")
    return value


def dumps(value: Any) -> bytes:
    """One line of UTF-8 JSON, no line break at the end."""
    return msgspec.json.encode(value, enc_hook=_plain)


def dumps_readable(value: Any) -> bytes:
    """For files that people read and diff: indented, in the order of the fields, ended by a line break."""
    return msgspec.json.format(dumps(value), indent=2) + b"\n"


def loads(kind: type[T], data: bytes | str, *, strict: bool) -> T:
    """As :func:`from_json`, of a text. What is no JSON is a CodecError as well."""
    try:
        if strict:
            return from_json(kind, msgspec.json.decode(data), strict=True)
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as wrong:
        raise _not_valid(kind, wrong) from wrong
    except (msgspec.DecodeError, UnicodeError, RecursionError) as wrong:
        raise CodecError(f"it is not JSON: {_line(data) or wrong}") from wrong


def _line(data: bytes | str) -> str:
    """In which line a text stops being JSON: msgspec counts bytes."""
    try:
        json.loads(data)
    except json.JSONDecodeError as wrong:
        return str(wrong)
    except (ValueError, RecursionError):
        pass
    return ""


def _plain(value: Any) -> Any:
    """What msgspec does not write by itself: mappings that are no dict, texts that are more than text."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} can't be written as JSON")


def _not_valid(kind: Any, wrong: Exception) -> CodecError:
    return CodecError(f"not a valid {_name(kind)}: {wrong}")


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _unknown(value: Any, data: Any, path: str) -> Iterator[str]:
    """Where ``data`` has a field that ``value``, which was read from it, has not. msgspec's own option for this belongs to a
    class, and most classes are read both ways."""
    if isinstance(value, Struct):
        names = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        for written, part in data.items():
            if written not in names:
                yield f"`{path}.{written}`"
            elif isinstance(part, dict | list):
                yield from _unknown(getattr(value, names[written]), part, f"{path}.{written}")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _unknown(part, data.get(key), f"{path}.{key}")
    elif isinstance(value, tuple | list):
        for index, (part, read) in enumerate(zip(value, data, strict=True)):
            yield from _unknown(part, read, f"{path}[{index}]")
