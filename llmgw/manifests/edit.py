"""One field of one manifest, changed in the file's own text: comments, order, quoting and line ends stay, and every byte outside
the field is what it was.

Nothing is written out anew from data. The text is spliced at the marks of libyaml, and what comes out is read again: it must say
what it said before, but for the field. Where no splice does that (a value that an alias shares), the edit is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from llmgw.manifests import yamltext
from llmgw.model.problems import InvalidError, StalledError
from llmgw.model.struct import Struct

BOM: Final = "\ufeff"
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What ends a line for libyaml, whose marks count lines."""
_PART: Final = re.compile(r'"(?P<quoted>[^"]+)"|(?P<plain>[^.\[\]"]+)|\[(?P<item>[^\[\]]+)\]')

_ALIAS: Final = re.compile(r"\*[^\s,\[\]{}]+")

Part = str | int
"""A key, or the index of an item."""


class _Absent:
    """No value at all."""


UNSET: Final = _Absent()
"""As a value: take the field away."""


class Target(Struct):
    """One document of a file, by what it describes. ``kind`` as manifests write it; a Fleet may go by any name."""

    file: str
    kind: str
    name: str


def edited(data: bytes, target: Target, path: str, value: Any) -> bytes:
    """The file with the field at ``path`` (``spec.replicas``, ``spec.adapters[sql].rank``, ``metadata.labels."a.b"``) set to a
    value of plain data, or taken away (:data:`UNSET`). The same bytes when it says so already.

    Raises InvalidError for a file that can't be read, StalledError for a place that can't be edited.
    """
    documents, problems = yamltext.read(target.file, data)
    if problems:
        raise InvalidError(tuple(problems))
    number = _document(documents, target)
    before = documents[number].data
    parts = steps(path, before, doing=f"changing {path} of {target.file}")
    wanted = _with(before, parts, value, target, path)
    if wanted == before:
        return data
    for changed in _splices(data, documents[number].mark, parts, value):
        again, wrong = yamltext.read(target.file, changed)
        expected = [document.data for document in documents]
        expected[number] = wanted
        if not wrong and _same([document.data for document in again], expected):
            return changed
    line = documents[number].marks.get(path, documents[number].mark)[0]
    raise StalledError(
        f"changing {path} in {target.file}, line {line}: it can't be done there without changing something else (an anchor and its"
        " aliases share one value): edit the file by hand"
    )


def steps(path: str, data: Any, *, doing: str) -> tuple[Part, ...]:
    """The keys and indices that a path names; an item of a list by its index or by its ``name``."""
    found: list[Part] = []
    at, end = data, 0
    for match in _PART.finditer(path):
        between = "" if end == 0 or match["item"] is not None else "."
        if path[end : match.start()] != between:
            break
        end = match.end()
        part: Part = match["quoted"] or match["plain"] or ""
        if match["item"] is not None:
            part = _index(match["item"], at, doing=f"{doing}: {path[:end]}")
        found.append(part)
        at = _inside(at, part)
    if not found or end != len(path):
        raise StalledError(
            f'{doing}: write it as spec.replicas, spec.adapters[0].rank or metadata.labels."a.b"'
        )
    return tuple(found)


def _index(item: str, items: Any, *, doing: str) -> int:
    listed = items if isinstance(items, list) else []
    if item.isdecimal():
        index: int | None = int(item) if int(item) < len(listed) else None
    else:
        named = [i for i, one in enumerate(listed) if isinstance(one, dict) and one.get("name") == item]
        index = named[0] if named else None
    if index is None:
        names = ", ".join(str(one["name"]) for one in listed if isinstance(one, dict) and "name" in one)
        there = f"it has {len(listed)}{f', named {names}' if names else ''}" if listed else "it has none"
        raise StalledError(f"{doing}: there is no such item: {there}")
    return index


def _inside(data: Any, part: Part) -> Any:
    if isinstance(part, int):
        return data[part]
    return data.get(part) if isinstance(data, dict) else None


def _document(documents: Sequence[yamltext.Document], target: Target) -> int:
    for number, document in enumerate(documents):
        data = document.data
        if not isinstance(data, dict) or data.get("kind") != target.kind:
            continue
        metadata = data.get("metadata")
        if target.kind == "Fleet" or (isinstance(metadata, dict) and metadata.get("name") == target.name):
            return number
    raise StalledError(
        f"{target.file} describes no {target.kind} {target.name}: it has changed since it was read"
    )


def _with(data: Any, parts: Sequence[Part], value: Any, target: Target, path: str) -> Any:
    """A copy of the data that says what is wanted."""
    wanted = _copied(data)
    at = wanted
    for part in parts[:-1]:
        below = _inside(at, part)
        if below is None and isinstance(part, str):
            if value is UNSET:
                return wanted
            below = {}
            at[part] = below
        if not isinstance(below, dict | list):
            raise StalledError(f"changing {path} of {target.file}: {part} is a single value there")
        at = below
    last = parts[-1]
    if isinstance(last, str) and not isinstance(at, dict):
        raise StalledError(
            f"changing {path} of {target.file}: {last} is looked for in a list: name the item in brackets"
        )
    if value is not UNSET:
        at[last] = value
    elif isinstance(last, int):
        del at[last]
    else:
        at.pop(last, None)
    return wanted


def _copied(data: Any) -> Any:
    """What an alias shares is two values here, since a person means the one that they name."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


def _same(one: Any, other: Any) -> bool:
    """Python takes ``True`` for ``1``, which YAML does not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


# ---- splicing -----------------------------------------------------------------------------------------------


class _Splice(Struct, kw_only=False):
    start: int
    end: int
    text: str


class _Text:
    """A file's text with libyaml's marks as places in it."""

    def __init__(self, data: bytes) -> None:
        whole = data.decode("utf-8")
        self.bom = BOM if whole.startswith(BOM) else ""
        self.text = whole.removeprefix(BOM)
        breaks = list(_BREAK.finditer(self.text))
        self.starts = [0, *(match.end() for match in breaks)]
        self.newline = breaks[0][0] if breaks else "\n"

    def place(self, mark: Any) -> int:
        return (
            min(self.starts[mark.line] + mark.column, len(self.text))
            if mark.line < len(self.starts)
            else len(self.text)
        )

    def line_start(self, place: int) -> int:
        return max(start for start in self.starts if start <= place)

    def line_end(self, place: int) -> int:
        """Where the line's break begins, or the text ends."""
        found = _BREAK.search(self.text, place)
        return found.start() if found else len(self.text)

    def after_line(self, place: int) -> int:
        found = _BREAK.search(self.text, place)
        return found.end() if found else len(self.text)

    def end(self, node: Node) -> int:
        """Where what is written of a value ends. A block collection's own mark lies behind the comments after it."""
        if isinstance(node, CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            return self.end(last[1] if isinstance(node, MappingNode) else last)
        end = self.place(node.end_mark)
        if isinstance(node, ScalarNode) and node.style in ("|", ">"):
            while end > self.place(node.start_mark) and self.text[end - 1] in "\n\r\t ":
                end -= 1
        return end

    def spliced(self, splices: Sequence[_Splice]) -> bytes:
        text = self.text
        for splice in sorted(splices, key=lambda one: one.start, reverse=True):
            text = text[: splice.start] + splice.text + text[splice.end :]
        return (self.bom + text).encode()


def _splices(data: bytes, mark: yamltext.Mark, parts: Sequence[Part], value: Any) -> Iterator[bytes]:
    """Ways to write it, the most natural first."""
    text = _Text(data)
    root = _root(text, mark)
    parent, at = root, 0
    while at < len(parts) - 1:
        below = _child(parent, parts[at])
        if below is None or not isinstance(below, CollectionNode):
            break
        parent, at = below, at + 1
    rest = parts[at:]
    node = _child(parent, rest[0])
    if value is UNSET:
        ways: Iterator[list[_Splice]] = _removals(text, parent, rest[0])
    elif node is None:
        ways = _additions(text, parent, rest, value)
    else:
        nested = _nested(rest[1:], value)
        ways = _replacements(text, node, _key_end(text, parent, rest[0]), nested)
    for splices in ways:
        yield text.spliced(splices)


def _root(text: _Text, mark: yamltext.Mark) -> Node:
    for node in yaml.compose_all(text.text, Loader=yaml.CSafeLoader):
        if (node.start_mark.line + 1, node.start_mark.column + 1) == mark:
            found: Node = node
            return found
    raise AssertionError("a document that was read is there")


def _child(node: Node, part: Part) -> Node | None:
    if isinstance(node, SequenceNode) and isinstance(part, int):
        item: Node = node.value[part]
        return item
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.value == part:
                below: Node = value
                return below
    return None


def _key_end(text: _Text, node: Node, part: Part) -> int | None:
    """Behind the colon; None: it is an item of a list."""
    if isinstance(node, MappingNode):
        for key, _ in node.value:
            if key.value == part:
                return text.text.index(":", text.place(key.end_mark)) + 1
    return None


def _nested(parts: Sequence[Part], value: Any) -> Any:
    for part in reversed(parts):
        value = {part: value}
    return value


def _replacements(text: _Text, node: Node, key_end: int | None, value: Any) -> Iterator[list[_Splice]]:
    start, end = text.place(node.start_mark), text.end(node)
    style = node.style if isinstance(node, ScalarNode) else None
    if key_end is not None and start < key_end and (alias := _ALIAS.search(text.text, key_end)):
        for written in _written(value, None):
            yield [_Splice(*alias.span(), written)]
        return
    if isinstance(node, CollectionNode) and not node.flow_style and key_end is not None:
        # What stands behind the key (a comment) stays there.
        first, last = text.line_start(start), text.after_line(end)
        for written in _written(value, style):
            yield [_Splice(key_end, key_end, f" {written}"), _Splice(first, last, "")]
    for written in _written(value, style):
        if start == end and key_end is not None:  # `key:` with nothing behind it
            yield [_Splice(key_end, key_end, f" {written}")]
        yield [_Splice(start, end, written)]


def _additions(text: _Text, parent: Node, parts: Sequence[Part], value: Any) -> Iterator[list[_Splice]]:
    if not isinstance(parent, MappingNode):
        return
    inner = _nested(parts[1:], value)
    for key in _written(parts[0], None):
        for written in _written(inner, None):
            entry = f"{key}: {written}"
            if parent.flow_style or not parent.value:
                yield from _into_flow(text, parent, entry)
            else:
                last, first = parent.value[-1][1], parent.value[0][0]
                indent = " " * first.start_mark.column
                place = text.line_end(max(text.end(last), text.place(parent.value[-1][0].end_mark)))
                yield [_Splice(place, place, f"{text.newline}{indent}{entry}")]


def _into_flow(text: _Text, parent: MappingNode, entry: str) -> Iterator[list[_Splice]]:
    if not parent.value:
        yield [_Splice(text.place(parent.start_mark), text.place(parent.end_mark), f"{{{entry}}}")]
        return
    place = text.end(parent.value[-1][1])
    yield [_Splice(place, place, f", {entry}")]


def _removals(text: _Text, parent: Node, part: Part) -> Iterator[list[_Splice]]:
    entries: list[tuple[int, int]] = []
    chosen = 0
    if not isinstance(parent, CollectionNode):
        return
    for number, entry in enumerate(parent.value):
        first, last = entry if isinstance(parent, MappingNode) else (entry, entry)
        if part == (first.value if isinstance(parent, MappingNode) else number):
            chosen = number
        entries.append((text.place(first.start_mark), max(text.end(last), text.place(first.end_mark))))
    start, end = entries[chosen]
    if len(entries) == 1:
        empty = "{}" if isinstance(parent, MappingNode) else "[]"
        yield [_Splice(start, end, empty)]
        yield [_Splice(text.place(parent.start_mark), text.end(parent), empty)]
    if not parent.flow_style:
        line = text.line_start(start)
        if not text.text[line:start].strip(" -"):
            yield [_Splice(line, text.after_line(end), "")]
    if chosen + 1 < len(entries):
        yield [_Splice(start, entries[chosen + 1][0], "")]
    if chosen:
        yield [_Splice(entries[chosen - 1][1], end, "")]


def _written(value: Any, style: str | None) -> Iterator[str]:
    """Ways to write a value on one line; reading again finds the first that says the same where it stands."""
    if isinstance(value, str):
        single = "'" + value.replace("'", "''") + "'"
        double = json.dumps(value, ensure_ascii=False)
        if style == "'":
            yield single
        elif style != '"':
            yield value
        yield double
    elif isinstance(value, Mapping):
        pairs = [f"{_first(key)}: {_first(item)}" for key, item in value.items()]
        yield "{" + ", ".join(pairs) + "}"
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, Sequence):
        yield "[" + ", ".join(_first(item) for item in value) + "]"
        yield json.dumps(value, ensure_ascii=False)
    else:
        yield json.dumps(value)


def _first(value: Any) -> str:
    """Inside of brackets: plain only where nothing of it could be taken for something else."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return json.dumps(value, ensure_ascii=False)
    return next(_written(value, None))
