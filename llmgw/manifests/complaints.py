"""What a schema validator finds wrong, as a problem that a person can act on: the place, plain words, what to write.

Schemas carry the words where a pattern or a choice can't speak for itself, under the keywords that editors use
too: ``patternErrorMessage`` and ``errorMessage``.
"""

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs

from llmgw.manifests.yamltext import Document
from llmgw.model.problems import Problem, Where

_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a map of `key: value`",
    "array": "a list",
    "null": "nothing",
}
_YAML_1_1_WORDS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
"""What older YAML readers take for a boolean and YAML 1.2 for text."""
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_WORDS_OF_A_COMMAND = ("args", "command", "worker")
"""Fields whose list has one word an item. As one item, a whole command line would be valid, and fail in the engine."""
_REFERENCES = {"fromEnv": "{fromEnv: HF_TOKEN}", "fromFile": "{fromFile: ~/.config/llmgw/hf-token}"}
"""How a secret is named, with an example of each."""
_SHOWN = 200  # characters of a list that advice writes out
_MANY = 14  # known keys that still help when listed


def path_of(parts: Sequence[str | int]) -> str:
    """``["spec", "args", 2]`` -> ``spec.args[2]``."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def in_words(value: Any, written: str | None) -> str:
    """A value as a part of a sentence; ``written`` is how it stands in the file where that differs."""
    match value:
        case None:
            return "nothing"
        case bool() | int() | float():
            as_json = json.dumps(value)
            kind = "" if isinstance(value, bool) else "the number "
            return f"{kind}{as_json}" + (f" (written {written})" if written not in (None, as_json) else "")
        case str():
            shown = _CREDENTIALS.sub("//***@", value)
            return f'the text "{shown[:80]}"' + ("…" if len(shown) > 80 else "")
        case list():
            return "a list"
        case _:
            return "a map"


def explain(
    file: str, document: Document, schema: dict[str, Any], error: jsonschema_rs.ValidationError
) -> Iterator[Problem]:
    """The problems behind one validation error."""
    path = path_of(error.instance_path)
    node = _node(schema, error.schema_path[:-1])
    kind: Any = error.kind
    if kind.name == "additionalProperties":
        for key in kind.unexpected:
            yield _unknown_key(file, document, schema, node, path, key)
        return
    if kind.name == "propertyNames":
        key = str(error.instance) if isinstance(error.instance, str) else kind.error.instance
        rule = node.get("propertyNames", node)
        what = f'the key "{str(key)[:80]}" can\'t stand in {path}'
        yield Problem(
            what=what, instead=_advice(rule), where=_at(file, document.keys, f"{path}.{key}", document)
        )
        return
    written = document.written.get(path)
    what, instead = _words(path or "the document", kind, node, error, written)
    yield Problem(what=what, instead=instead, where=_at(file, document.marks, path, document))


def _node(schema: Any, path: Sequence[str | int]) -> dict[str, Any]:
    """The part of the schema that holds the keyword which failed."""
    node: Any = schema
    for part in path:
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            return {}
    return node if isinstance(node, dict) else {}


def _at(file: str, marks: dict[str, tuple[int, int]], path: str, document: Document) -> Where:
    """Where ``path`` stands, or the nearest part around it."""
    while path:
        if mark := marks.get(path) or document.marks.get(path):
            return Where(file=file, line=mark[0], column=mark[1])
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return Where(file=file, line=document.mark[0], column=document.mark[1])


def _unknown_key(
    file: str, document: Document, schema: dict[str, Any], node: dict[str, Any], path: str, key: str
) -> Problem:
    known = list(node.get("properties", {}))
    full = f"{path}.{key}" if path else key
    if ":" in key:
        instead = "put a space after the colon"
    elif near := _nearest(key, known):
        instead = f"did you mean {near}?"
    elif not path and key in schema["properties"]["spec"]["properties"]:
        instead = "put it below `spec:`"
    elif len(known) <= _MANY:
        instead = f"known here: {', '.join(known)}"
    else:
        instead = f"`llmgw explain {schema['title']}.{path or 'spec'}` lists what is known here"
    where = _at(file, document.keys, full, document)
    return Problem(what=f'unknown field "{full[:200]}"', instead=instead, where=where)


def _nearest(key: str, known: Iterable[str]) -> str | None:
    folded = {name.lower().replace("_", ""): name for name in known}
    plain = key.lower().replace("_", "").replace("-", "")
    near = difflib.get_close_matches(plain, folded, n=1, cutoff=0.7)
    return folded[near[0]] if near else None


def _advice(node: dict[str, Any]) -> str:
    """What the schema itself says to write."""
    for holder in (node, *node.get("allOf", ())):
        for keyword in ("patternErrorMessage", "errorMessage"):
            if keyword in holder:
                return str(holder[keyword])
    return ""


def _words(  # noqa: C901, PLR0911 - a table: one answer a keyword
    name: str, kind: Any, node: dict[str, Any], error: jsonschema_rs.ValidationError, written: str | None
) -> tuple[str, str]:
    """What is wrong and what to write instead, for one keyword of a schema."""
    if isinstance(error.instance, dict) and _takes_reference(node):
        return _wrong_reference(name, error.instance, node)
    if node.get("writeOnly"):  # a secret's place: what stands there may be the secret itself
        return f"{name} can't be what is written there", _advice(node)
    match kind.name:
        case "type":
            return _wrong_type(name, kind.types, node, error.instance, written)
        case "required":
            return _missing(name, kind.property, node, error)
        case "enum":
            return _not_one_of(name, kind.options, in_words(error.instance, written), error.instance)
        case "const":
            return f"{name} can't be {in_words(error.instance, written)}", f"write {kind.expected_value}"
        case "minimum" | "maximum" | "exclusiveMinimum":
            bound = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than"}[kind.name]
            return f"{name} is {error.instance}", f"write {bound} {kind.limit}"
        case "uniqueItems" | "minItems" | "minLength" | "maxLength":
            return _wrong_length(name, kind, node)
        case "oneOf" | "not" if isinstance(error.instance, dict) and _names_ways(node):
            ways = [way["required"][0] for way in node.get("oneOf", ())] or list(node["not"]["required"])
            given = [way for way in ways if way in error.instance]
            return f"{name} has {' and '.join(given) or 'none of ' + ', '.join(ways)}", _advice(node)
        case "anyOf":
            instead = _quoted(error.instance, written) if _takes_text(node) else ""
            return f"{name} can't be {in_words(error.instance, written)}", instead or _advice(node)
        case _:
            return f"{name} can't be {in_words(error.instance, written)}", _advice(node)


def _not_one_of(name: str, options: Sequence[Any], value: str, instance: Any) -> tuple[str, str]:
    texts = [str(option) for option in options]
    near = difflib.get_close_matches(str(instance), texts, n=1)
    return (
        f"{name} can't be {value}",
        f"did you mean {near[0]}?" if near else f"write one of {', '.join(texts)}",
    )


def _wrong_length(name: str, kind: Any, node: dict[str, Any]) -> tuple[str, str]:
    if kind.name == "uniqueItems":
        return f"{name} names something twice", "keep one"
    if kind.name == "maxLength":
        return f"{name} is too long", f"write at most {kind.limit} characters"
    return f"{name} is empty", _advice(node) or "write at least one, or leave the field out"


def _takes_text(node: dict[str, Any]) -> bool:
    return any(way.get("type") == "string" for way in node.get("anyOf", ()))


def _quoted(value: Any, written: str | None) -> str:
    """Advice for a value that is text in quotes; empty where quotes would not help."""
    if value is None or isinstance(value, dict | list | str):
        return ""
    return f'quote it: "{written or json.dumps(value)}"'


def _wrong_type(
    name: str, types: Sequence[str], node: dict[str, Any], value: Any, written: str | None
) -> tuple[str, str]:
    expected = " or ".join(_TYPES[kind] for kind in types)
    what = f"{name} must be {expected}, not {in_words(value, written)}"
    if value is None:
        return what, "write a value, or leave the field out"
    if isinstance(value, str):
        return what, _for_text(name, types[0], value, node)
    if types[0] == "string" and not isinstance(value, dict | list):
        as_text = written or json.dumps(value)
        rules = [part["pattern"] for part in (node, *node.get("allOf", ())) if "pattern" in part]
        fits = all(re.search(rule, as_text) for rule in rules)
        return what, (_quoted(value, written) if fits else _advice(node))
    if types[0] == "integer" and isinstance(value, float):
        return what, "write it without a fraction"
    return what, _advice(node) or f"write {expected}"


def _for_text(name: str, expected: str, value: str, node: dict[str, Any]) -> str:
    word = value.lower()
    match expected:
        case "boolean" if word in _YAML_1_1_WORDS:
            return f"write {_YAML_1_1_WORDS[word]}: YAML 1.2 reads {value} as text"
        case "boolean":
            return "write true or false, without quotes"
        case "integer" | "number" if word.replace(".", "", 1).removeprefix("-").isdigit():
            return f"write it without quotes: {int(value) if value.isdecimal() else value}"  # 0777 would be refused
        case "array":
            return _as_list(value, words=name.rpartition(".")[2] in _WORDS_OF_A_COMMAND)
        case _:
            return _advice(node) or f"write {_TYPES[expected]}"


def _as_list(value: str, *, words: bool) -> str:
    """``words``: as a shell would split it."""
    try:
        items = shlex.split(value) if words else [value]
    except ValueError:  # a quote without its end
        return "write a list with one word an item"
    listed = json.dumps([_CREDENTIALS.sub("//***@", item) for item in items], ensure_ascii=False)
    return f"write a list: {listed}" if len(listed) <= _SHOWN else f"write a list: {listed[:_SHOWN]}…"


def _takes_reference(node: Mapping[str, Any]) -> bool:
    """Whether {fromEnv: NAME} and {fromFile: path} are ways to write it."""
    ways = (*node.get("anyOf", ()), *node.get("oneOf", ()))
    return any(
        "fromFile" in (way.get("$ref", "").rpartition("/")[2], *way.get("required", ())) for way in ways
    )


def _wrong_reference(name: str, value: Mapping[str, Any], node: dict[str, Any]) -> tuple[str, str]:
    """What stands behind the keys is never told, and of the keys only the known ones: it may be the secret itself."""
    given = [key for key in _REFERENCES if key in value]
    if len(given) > 1:
        return f"{name} has {' and '.join(given)}", "keep one of them"
    if not given:
        near = next((near for key in value if (near := _nearest(str(key), _REFERENCES))), None)
        what = f"{name} is a map without {' or '.join(_REFERENCES)}"
        return what, f"did you mean {near}?" if near else _advice(node)
    if len(value) > 1:
        return f"{name} has more than {given[0]}", f"leave the other keys out: {_REFERENCES[given[0]]}"
    if given == ["fromFile"]:
        what = f"{name}.fromFile must be an absolute path, or one that begins with ~/"
    else:
        what = f"{name}.fromEnv must be a variable's name: letters, digits and _, and no digit first"
    return what, f"write one such as {_REFERENCES[given[0]]}"


def _names_ways(node: Mapping[str, Any]) -> bool:
    """Whether the rule is about which keys go together; a rule about text stumbles over a mapping as well."""
    return "oneOf" in node or "required" in node.get("not", {})


def _missing(
    name: str, missing: str, node: dict[str, Any], error: jsonschema_rs.ValidationError
) -> tuple[str, str]:
    instance: Any = error.instance
    for given, needed in node.get("dependentRequired", {}).items():
        if given in instance and missing in needed and error.schema_path[-1] == "dependentRequired":
            return f"{name} has {given} without {missing}", f"write {missing} too, or leave {given} out"
    field: dict[str, Any] = node.get("properties", {}).get(missing, {})
    hint = f"`{missing}: {field['const']}`" if "const" in field else f"`{missing}:`"
    about = str(field.get("description", "")).partition(". ")[0].rstrip(".")
    return f"{name} lacks {missing}", f"write {hint}" + (f" ({about})" if about else "")
