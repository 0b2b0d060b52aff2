"""Writes what is derived from other files: the schemas of the JSON that llmgw writes (out of llmgw/model), and the field
tables of docs/manifests.md (out of the schemas). Run it after changing either; the tests compare.

    python tests/manifests/derive.py
"""

import ast
import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NewType, Union, get_args, get_origin

from msgspec.inspect import is_struct_type

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from llmgw.controller.repo.layout import Endpoints, Head  # noqa: E402 - the path above makes it importable
from llmgw.core.show.status import Status  # noqa: E402
from llmgw.manifests import reference  # noqa: E402
from llmgw.model.manifest import KINDS  # noqa: E402
from llmgw.model.plan import Plan  # noqa: E402
from llmgw.model.record import NodeRecord, ReplicaRecord  # noqa: E402
from llmgw.model.struct import Time, fields  # noqa: E402

SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Derivation:
    """Collects the definitions that a type needs."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:  # noqa: PLR0911 - a table: one answer a sort of type
        if isinstance(kind, NewType):
            return self.of(kind.__supertype__)
        if kind is Any:
            return {}
        if kind == Time:
            kind = datetime
        if kind in SIMPLE:
            return {"type": SIMPLE[kind]}
        if kind is datetime:
            return {"type": "string", "format": "date-time"}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if is_struct_type(kind):
            return {"$ref": f"#/$defs/{self._define(kind)}"}
        return self._generic(get_origin(kind), get_args(kind))

    def _generic(self, origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(argument) for argument in arguments]}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is tuple and arguments[-1] is not ...:
            return {"type": "array", "prefixItems": [self.of(argument) for argument in arguments]}
        if origin is tuple:
            return {"type": "array", "items": self.of(arguments[0])}
        assert origin is Mapping, origin
        return {"type": "object", "additionalProperties": self.of(arguments[1])}

    def _define(self, kind: Any) -> str:
        name: str = kind.__name__
        if name in self.definitions:
            assert self.definitions[name]["x-module"] == kind.__module__, f"two values called {name}"
            return name
        self.definitions[name] = {"x-module": kind.__module__}
        self.definitions[name].update(self.object(kind))
        return name

    def object(self, kind: Any) -> dict[str, Any]:
        """Unknown fields are allowed: a newer llmgw may write more."""
        remarks = _remarks(kind)
        required = [field.encode_name for field in fields(kind) if field.required]
        return {
            "description": _first_paragraph(kind.__doc__ or _in_words(kind.__name__)),
            "type": "object",
            **({"required": required} if required else {}),
            "properties": {
                field.encode_name: {
                    "description": remarks.get(field.name) or _in_words(field.name),
                    **self.of(field.type),
                }
                for field in fields(kind)
            },
        }


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def _in_words(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower()
    return f"{words[0].upper()}{words[1:]}."


def _remarks(kind: Any) -> dict[str, str]:
    """What the source says of each field: the text below it, or the comment beside it."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:
        return {}
    lines = source.splitlines()
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined] # a class has one
    remarks: dict[str, str] = {}
    for at, statement in enumerate(body):
        if not isinstance(statement, ast.AnnAssign):
            continue
        name = ast.unparse(statement.target)
        if found := re.search(r"  # (.+)$", lines[(statement.end_lineno or 1) - 1]):
            remarks[name] = found[1]
        after = body[at + 1] if at + 1 < len(body) else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            remarks[name] = _first_paragraph(str(after.value.value))
    return remarks


def _document(
    title: str, description: str, kind: Any, *, also: tuple[Any, ...] = (), first: dict[str, Any]
) -> str:
    derivation = Derivation()
    whole = derivation.object(kind)
    for other in also:
        derivation.of(other)
    properties = {**first, **whole["properties"], **first}
    whole = {**whole, "description": description, "properties": properties}
    whole["required"] = [*first, *(name for name in whole.get("required", ()) if name not in first)]
    definitions = {name: derivation.definitions[name] for name in sorted(derivation.definitions)}
    for definition in definitions.values():
        del definition["x-module"]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **whole,
        "$defs": definitions,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def schemas() -> dict[str, str]:
    """The text of each derived schema, by the name of its file."""
    version = {
        "description": "Version of this layout; grows when something is removed or changes its meaning.",
        "type": "integer",
    }
    return {
        "plan.schema.json": _document(
            "Plan",
            "What `llmgw plan --json` prints and `llmgw plan --out` writes.",
            Plan,
            first={"formatVersion": version},
        ),
        "status.schema.json": _document(
            "Status",
            "What `llmgw status --json` prints: the record and the nodes' reports side by side.",
            Status,
            first={"formatVersion": version},
        ),
        "record.schema.json": _document(
            "Record",
            "record.json on the state branch. `$defs/ReplicaRecord` is a file below replicas/, `$defs/NodeRecord` one below nodes/.",
            Head,
            also=(ReplicaRecord, NodeRecord),
            first={"format": version},
        ),
        "endpoints.schema.json": _document(
            "Endpoints",
            "endpoints.json on the state branch: where the replicas are that serve. What a gateway reads.",
            Endpoints,
            first={"format": version},
        ),
    }


def with_tables(text: str) -> str:
    """docs/manifests.md with the table of every kind between its marks written anew."""
    for kind in KINDS:
        start, end = f"<!-- fields of {kind} -->\n", f"<!-- end of {kind} -->\n"
        before, _, rest = text.partition(start)
        _, found, after = rest.partition(end)
        assert found, f"docs/manifests.md lacks the marks of {kind}"
        text = f"{before}{start}\n{reference.table(kind)}\n{end}{after}"
    return text


def main() -> None:
    for name, text in schemas().items():
        (ROOT / "schemas" / name).write_text(text, encoding="utf-8")
    page = ROOT / "docs" / "manifests.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
