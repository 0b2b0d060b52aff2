"""A checked document to the values of llmgw.model.manifest: defaults filled in, durations in seconds, sizes in bytes."""

from functools import cache
from typing import Any, Literal

from cattrs import BaseValidationError, Converter

from llmgw.manifests.yamltext import Document
from llmgw.model import units
from llmgw.model.manifest import KINDS, Duration, Manifest, Metadata, Size, Spec
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.wire.codec import make_converter


@cache
def converter() -> Converter:
    made = make_converter(strict=True)
    made.register_structure_hook_func(lambda kind: kind is Duration, lambda value, _: units.duration(value))
    made.register_structure_hook_func(lambda kind: kind is Size, lambda value, _: units.size(value))
    made.register_structure_hook(int, _whole)
    made.register_structure_hook_func(
        lambda kind: kind == (int | Literal["auto"]),
        lambda value, kind: value if value == "auto" else _whole(value, kind),
    )
    return made


def _whole(value: Any, _: Any) -> int:
    """JSON Schema counts 2.0 as a whole number, and so do editors."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    raise TypeError(f"expected a whole number, got {value!r:.80}")


def manifest(file: str, document: Document) -> Manifest:
    """Raises InvalidError where the schema let something through that is no manifest."""
    data = document.data
    where = Where(file=file, line=document.mark[0], column=document.mark[1])
    kind: type[Spec] = KINDS[data["kind"]]
    try:
        metadata = converter().structure(data["metadata"], Metadata)
        spec = converter().structure(data.get("spec", {}), kind)
    except (TypeError, ValueError, KeyError, AttributeError, BaseValidationError) as wrong:
        what = f"this {data['kind']} can't be read: {wrong}"
        raise InvalidError((Problem(what=what, instead="correct the value", where=where),)) from wrong
    return Manifest(kind=data["kind"], metadata=metadata, spec=spec, where=where, marks=document.marks)
