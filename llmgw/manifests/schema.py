"""The JSON Schemas: where they lie, and checking a document by the one of its kind.

The schemas are for editors as much as for us; what they can't say (references, what an engine can do) is
:mod:`llmgw.core.resolving.resolve`'s.
"""

import difflib
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

import llmgw
from llmgw.manifests import complaints
from llmgw.manifests.yamltext import Document
from llmgw.model.manifest import API_VERSION, KINDS
from llmgw.model.problems import Problem, Where

DOCUMENTS = ("fleet", "node", "profile", "model", "settings", "plan", "status", "record", "endpoints")
"""What there is a schema of: what people write, and the JSON that llmgw writes."""


def folder() -> Path:
    """Inside the package where it was installed from a wheel, beside it in a checkout."""
    package = Path(llmgw.__file__).parent
    inside = package / "schemas"
    return inside if inside.is_dir() else package.parent / "schemas"


@cache
def text(document: str) -> str:
    """The schema's own text. ``document`` is one of DOCUMENTS."""
    return (folder() / f"{document}.schema.json").read_text(encoding="utf-8")


@cache
def schema(document: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text(document))
    return loaded


@cache
def _validator(kind: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema(kind.lower()))


def check(file: str, document: Document) -> list[Problem]:
    """Everything that is wrong with a document, whatever its kind claims to be."""
    line, column = document.mark
    where = Where(file=file, line=line, column=column)
    data = document.data
    if not isinstance(data, dict):
        what = f"a document must be a map, not {complaints.in_words(data, None)}"
        return [
            Problem(what=what, instead=f"begin with `apiVersion: {API_VERSION}` and `kind:`", where=where)
        ]
    known = ", ".join(KINDS)
    if "kind" not in data:
        what = "a document without kind"
        return [Problem(what=what, instead=f"write `kind:` with one of {known}", where=where)]
    kind = data["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        line, column = document.marks["kind"]
        near = difflib.get_close_matches(str(kind).capitalize(), KINDS, n=1)
        return [
            Problem(
                what=f"the kind {json.dumps(kind)} is not known",
                instead=f"did you mean {near[0]}?" if near else f"write one of {known}",
                where=Where(file=file, line=line, column=column),
            )
        ]
    return _against(kind, file, document, where)


def check_settings(file: str, document: Document) -> list[Problem]:
    """The parts of llmgw.yaml that have a schema; its other keys are their reader's."""
    line, column = document.mark
    return _against("settings", file, document, Where(file=file, line=line, column=column))


def _against(name: str, file: str, document: Document, where: Where) -> list[Problem]:
    validator = _validator(name)
    if validator.is_valid(document.data):
        return []
    found = [
        problem
        for error in validator.iter_errors(document.data)
        for problem in complaints.explain(file, document, schema(name.lower()), error)
    ]
    return sorted(set(found), key=lambda problem: (problem.where or where, problem.what))
