"""What each field of a manifest means, out of the schemas: for ``llmgw explain`` and for docs/manifests.md."""

import difflib
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from llmgw.manifests import schema
from llmgw.model.manifest import KINDS
from llmgw.model.problems import InvalidError, Problem
from llmgw.model.struct import Struct

_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
_NAMED = {
    "duration": "duration",
    "durationOrZero": "duration",
    "size": "size",
    "sizeOrZero": "size",
    "env": "map of variables",
    "labels": "map of text",
    "value": "text or secret reference",
    "secret": "secret reference",
    "fromFile": "{fromFile: path}",
    "fromEnv": "{fromEnv: NAME}",
    "absolutePath": "absolute path",
    "relativePath": "relative path",
    "name": "name",
    "source": "map",
}
"""Definitions of the schemas that have a name of their own among people."""
_LEAVES = frozenset({"env", "labels", "secret", "fromFile", "fromEnv", "value"})


class Field(Struct):
    """One field. ``path`` begins with the kind; list items add nothing to it. ``default`` and ``example`` are JSON."""

    path: str
    type: str
    description: str
    required: bool = False
    default: str | None = None
    example: str | None = None
    children: tuple[str, ...] = ()


def fields(kind: str) -> Iterator[Field]:
    """Every field of a kind below ``spec``, parents before children, in the order of the schema."""
    yield from (field for field in _all(kind).values() if field.path.startswith(f"{kind}.spec."))


def field(path: str) -> Field:
    """The field at ``Model.spec.rollout.maxSurge``. Raises InvalidError with the nearest that exists."""
    plain = re.sub(r"\[\d*\]", "", path).strip(".")
    kind, _, rest = plain.partition(".")
    known = {name.lower(): name for name in KINDS}
    if kind.lower() not in known:
        near = difflib.get_close_matches(kind.lower(), known, n=1)
        instead = f"did you mean {known[near[0]]}?" if near else f"write one of {', '.join(KINDS)}"
        raise InvalidError((Problem(what=f"there is no kind {kind}", instead=instead),))
    kind = known[kind.lower()]
    wanted = f"{kind}.{rest}" if rest else kind
    everything = _all(kind)
    if found := everything.get(wanted):
        return found
    shorter = f"{kind}.spec.{rest}"
    if shorter in everything:
        return everything[shorter]
    near = difflib.get_close_matches(wanted, everything, n=1)
    instead = f"did you mean {near[0]}?" if near else f"`llmgw explain {kind}` lists the fields"
    raise InvalidError((Problem(what=f"there is no field {wanted}", instead=instead),))


@cache
def _all(kind: str) -> dict[str, Field]:
    return {
        found.path: found for found in _walk(schema.schema(kind.lower()), schema.schema(kind.lower()), kind)
    }


def _walk(
    whole: dict[str, Any], node: dict[str, Any], path: str, *, required: bool = False
) -> Iterator[Field]:
    named, node = _resolved(whole, node)
    inner = node
    if node.get("type") == "array":
        _, inner = _resolved(whole, node["items"])
    properties = {} if named in _LEAVES else inner.get("properties", {})
    yield Field(
        path=path,
        type=_type(whole, node, named),
        description=node.get("description", ""),
        required=required,
        default=_json(node["default"]) if "default" in node else None,
        example=_json(node["examples"][0]) if node.get("examples") else None,
        children=tuple(properties),
    )
    for name, child in properties.items():
        yield from _walk(whole, child, f"{path}.{name}", required=name in inner.get("required", ()))


def _resolved(whole: dict[str, Any], node: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The definition behind ``$ref``, with what the place itself says on top."""
    if "$ref" not in node:
        return None, node
    name = str(node["$ref"]).rpartition("/")[2]
    return name, {**whole["$defs"][name], **node}


def _type(whole: dict[str, Any], node: dict[str, Any], named: str | None) -> str:
    if named in _NAMED:
        return _NAMED[named]
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return " or ".join(f"`{option}`" for option in node["enum"])
    if "anyOf" in node:
        return " or ".join(_type(whole, *reversed(_resolved(whole, way))) for way in node["anyOf"])
    if node["type"] == "array":
        of, items = _resolved(whole, node["items"])
        return f"list of {_type(whole, items, of)}{'' if items.get('type') == 'object' else 's'}".replace(
            "texts", "text"
        )
    return _TYPES.get(node["type"], "map") + _bounds(node)


def _bounds(node: dict[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    return f", {low} to {high}" if low is not None and high is not None else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# ---- as text -----------------------------------------------------------------------------------------


def explanation(path: str) -> str:
    """What ``llmgw explain`` prints."""
    found = field(path)
    facts = [found.type]
    if found.required:
        facts.append("required")
    if found.default is not None:
        facts.append(f"default {found.default}")
    lines = [found.path, f"  {'; '.join(facts)}", "", f"  {found.description}"]
    if found.children:
        width = max(len(name) for name in found.children) + 2
        lines += ["", "  Fields:"]
        for name in found.children:
            child = _all(found.path.partition(".")[0])[f"{found.path}.{name}"]
            lines.append(f"    {name:<{width}}{child.type}. {_first_sentence(child.description)}")
    else:
        lines += ["", "  Example:", *(f"    {line}" for line in _example(found))]
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:]) (?=[A-Z`])", text, maxsplit=1)[0].rstrip(":")


def _example(found: Field) -> list[str]:
    """The field in its place, as people write it."""
    kind, *parents, name = found.path.split(".")
    lines: list[str] = []
    path, indent, dash = kind, "", ""
    for parent in parents:
        path = f"{path}.{parent}"
        lines.append(f"{indent}{dash}{parent}:")
        indent += "  " * (2 if dash else 1)
        dash = "- " if _all(kind)[path].type.startswith("list of") else ""
    value = found.example if found.example is not None else found.default
    if value is None:
        value = re.sub(r"`| or .*|,.*", "", found.type)
    return [*lines, f"{indent}{dash}{name}: {as_yaml(value)}"]


_PLAIN = re.compile(
    r'"(?!(?:true|false|null|yes|no|on|off)")([A-Za-z/~][A-Za-z0-9 /._~=-]*|[0-9]+(?:[smhd]|[KMGT]i?B))"',
    re.IGNORECASE,
)


def as_yaml(value: str) -> str:
    """JSON text with the quotes left out that a person would leave out."""
    return _PLAIN.sub(r"\1", value)


def table(kind: str) -> str:
    """The fields of a kind as a Markdown table."""
    lines = ["| field of `spec` | type | default | meaning |", "|---|---|---|---|"]
    for found in fields(kind):
        name = found.path.removeprefix(f"{kind}.spec.")
        default = (
            "**required**" if found.required else f"`{found.default}`" if found.default is not None else ""
        )
        meaning = found.description
        if found.example is not None and not found.children:
            meaning += f" Example: `{as_yaml(found.example)}`"
        lines.append(f"| `{name}` | {found.type} | {default} | {meaning} |".replace("  ", " "))
    return "\n".join(lines) + "\n"
