"""A checked document to the values of llmgw.model.manifest: defaults filled in, durations in seconds, sizes in bytes."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NewType, TypeVar, cast, get_args, get_origin

from llmgw.manifests.yamltext import Document
from llmgw.model import units
from llmgw.model.manifest import KINDS, Duration, Manifest, Metadata, Size, Spec
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.model.struct import Struct, fields
from llmgw.wire.codec import from_json

T = TypeVar("T")
Reading = Callable[[Any], Any]

_WRITTEN: Mapping[Any, Reading] = {Duration: units.duration, Size: units.size}


def manifest(file: str, document: Document) -> Manifest:
    """Raises InvalidError where the schema let something through that is no manifest."""
    data = document.data
    where = Where(file=file, line=document.mark[0], column=document.mark[1])
    kind: type[Spec] = KINDS[data["kind"]]
    try:
        metadata = value(Metadata, data["metadata"])
        spec = value(kind, data.get("spec", {}))
    except (TypeError, ValueError, KeyError, AttributeError) as wrong:
        what = f"this {data['kind']} can't be read: {wrong}"
        raise InvalidError((Problem(what=what, instead="correct the value", where=where),)) from wrong
    return Manifest(kind=data["kind"], metadata=metadata, spec=spec, where=where, marks=document.marks)


def value(kind: type[T], written: Any) -> T:
    """``written`` as people write it, already checked by its schema, which also knows all fields. Raises ValueError."""
    reading = _reading(cast("Any", kind))
    return from_json(kind, reading(written) if reading else written, strict=False)


@cache
def _reading(kind: Any) -> Reading | None:
    """How what people write of this kind becomes what the codec reads. None: it is that already."""
    if isinstance(kind, NewType):
        return _WRITTEN.get(kind) or _reading(kind.__supertype__)
    if kind is int:
        return _whole
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _of_fields(kind)
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin is tuple:
        return _of_items(arguments[0])
    if origin is Mapping:
        return _of_values(arguments[1])
    choices = [reading for reading in map(_reading, arguments) if reading]
    return _unless_none(choices[0]) if choices else None


def _whole(written: Any) -> Any:
    """JSON Schema counts 2.0 as a whole number, and so do editors."""
    return int(written) if type(written) is float and written.is_integer() else written


def _of_fields(kind: type[Struct]) -> Reading | None:
    found = {field.encode_name: reading for field in fields(kind) if (reading := _reading(field.type))}

    def read(written: Any) -> Any:
        if not isinstance(written, dict) or found.keys().isdisjoint(written):
            return written
        return {name: found[name](part) if name in found else part for name, part in written.items()}

    return read if found else None


def _unless_none(reading: Reading) -> Reading:
    return lambda written: None if written is None else reading(written)


def _of_items(kind: Any) -> Reading | None:
    reading = _reading(kind)
    if reading is None:
        return None
    return lambda written: [reading(item) for item in written] if isinstance(written, list) else written


def _of_values(kind: Any) -> Reading | None:
    reading = _reading(kind)
    if reading is None:
        return None
    return lambda written: (
        {key: reading(item) for key, item in written.items()} if isinstance(written, dict) else written
    )
