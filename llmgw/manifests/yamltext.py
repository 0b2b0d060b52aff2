"""YAML text to documents: plain data, and the line and column of every part of it.

Reads the events of libyaml (PyYAML's C parser; docs/adr/0003 says why this one) and builds the values itself, so
that YAML 1.2 holds, depth, aliases and size are bounded while reading, and nothing recurses in C. One walk finds all problems of a file, except that nothing can be
read after a syntax error. Knows YAML only; what a manifest may say is :mod:`llmgw.manifests.schema`'s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from yaml.cyaml import CParser  # type: ignore[attr-defined] # the stubs forget to export it
from yaml.error import MarkedYAMLError, YAMLError
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from llmgw.manifests import scalars, yamlerrors
from llmgw.model.problems import Problem, Where
from llmgw.model.struct import Struct, field

MAX_BYTES = 1024 * 1024
MAX_ALIASES = 1_000
MAX_DEPTH = 64
MAX_NODES = 100_000
"""Values of one document with every alias written out. A large fleet's largest file has a few thousand."""
MAX_PROBLEMS = 200
"""Problems of one file that are worth reading at once."""

Mark = tuple[int, int]


class Document(Struct):
    """One document. Paths are dotted with list indices: ``spec.args[2]``; lines and columns count from 1.

    ``marks`` tells where a value stands (a list or map that has a key: where its key stands), ``keys`` where the key
    stands, ``written`` how a plain value that is not text was written (``1.10`` for the number 1.1).
    """

    data: Any
    mark: Mark
    marks: dict[str, Mark] = field(default_factory=dict)
    keys: dict[str, Mark] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)


def read(file: str, data: bytes) -> tuple[list[Document], list[Problem]]:
    """All documents of a file (empty ones left out) and all that is wrong with its YAML."""
    if problems := yamlerrors.text_problems(file, data, limit=MAX_BYTES):
        return [], problems
    composer = _Composer(file, data)
    documents: list[Document] = []
    try:
        documents.extend(composer.documents())
    except _GiveUpError:
        pass
    except MarkedYAMLError as wrong:
        composer.problems.append(yamlerrors.syntax_problem(file, data, wrong))
    except YAMLError as wrong:  # the reader's: characters that YAML has no place for
        composer.problems.append(yamlerrors.reader_problem(file, data, wrong))
    return documents, composer.problems


class _GiveUpError(Exception):
    """The file can't be read any further; the reason stands among the problems."""


@dataclass(slots=True)
class _Anchor:
    """An anchored value; ``size`` counts its values with aliases written out, ``height`` its levels."""

    value: Any = None
    size: int = 0
    height: int = 0
    complete: bool = False


class _Composer:
    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._next = CParser(data).get_event
        self._aliases = 0
        self._start(Document(data=None, mark=(1, 1)))

    def _start(self, document: Document) -> None:
        self._marks, self._keys, self._written = document.marks, document.keys, document.written
        self._anchors: dict[str, _Anchor] = {}
        self._nodes = 0

    def documents(self) -> Iterator[Document]:
        while type(event := self._next()) is not StreamEndEvent:
            if type(event) is not DocumentStartEvent:
                continue
            first = self._next()
            empty = type(first) is ScalarEvent and not first.value and not first.style and not first.tag
            shell = Document(data=None, mark=_mark(first))
            self._start(shell)
            value, _ = self._node(first, "", 1)
            while type(self._next()) is not DocumentEndEvent:
                pass
            if not empty:
                yield Document(
                    data=value, mark=shell.mark, marks=shell.marks, keys=shell.keys, written=shell.written
                )

    def _node(self, event: Any, path: str, depth: int) -> tuple[Any, int]:
        """The value that begins with ``event``, and how many levels it has."""
        kind = type(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._too_many(event)
        if kind is ScalarEvent:
            value, height = self._scalar(event, path), 1
        elif kind is AliasEvent:
            return self._alias(event, path, depth)
        elif depth > MAX_DEPTH:
            raise self._too_deep(event)
        else:
            if event.tag and event.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!"):
                self._wrong_scalar(event, scalars.custom_tag(event.tag))
            return self._collection(event, path, depth)
        if event.anchor:
            self._anchors[event.anchor] = _Anchor(value=value, size=1, height=1, complete=True)
        return value, height

    def _collection(self, event: Any, path: str, depth: int) -> tuple[Any, int]:
        anchor, before = _Anchor(), self._nodes
        value: Any
        if event.anchor:
            self._anchors[event.anchor] = anchor
        if type(event) is MappingStartEvent:
            value, height = self._mapping(path, depth)
        else:
            value, height = self._sequence(path, depth)
        anchor.value, anchor.height, anchor.complete = value, height, True
        anchor.size = self._nodes - before + 1
        return value, height

    def _mapping(self, path: str, depth: int) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        lines: dict[str, int] = {}
        highest = 0
        while type(event := self._next()) is not MappingEndEvent:
            key = self._key(event)
            mark = _mark(event)
            kept = key is not None and key not in result
            if key is not None and not kept:
                self._problem(
                    event,
                    f'the key "{key[:80]}" stands twice in one map, first on line {lines[key]}',
                    f"keep one of lines {lines[key]} and {mark[0]}",
                )
            name = f"{path}.{key}" if path else f"{key}"
            if kept:
                self._keys[name] = mark
            value_event = self._next()
            if kept:
                self._marks[name] = mark if type(value_event) in _COLLECTIONS else _mark(value_event)
            value, height = self._node(value_event, name if kept else f"{name}#", depth + 1)
            highest = max(highest, height)
            if kept and key is not None:
                result[key], lines[key] = value, mark[0]
        return result, highest + 1

    def _sequence(self, path: str, depth: int) -> tuple[list[Any], int]:
        result: list[Any] = []
        highest = 0
        while type(event := self._next()) is not SequenceEndEvent:
            name = f"{path}[{len(result)}]"
            self._marks[name] = _mark(event)
            value, height = self._node(event, name, depth + 1)
            highest = max(highest, height)
            result.append(value)
        return result, highest + 1

    def _key(self, event: Any) -> str | None:
        """The text of a key; None, with a problem, when it is no text."""
        if type(event) is not ScalarEvent:
            raise self._give_up(
                event, "a key must be text", "write `key: value`, and quote a value that begins with { or ["
            )
        text: str = event.value
        if event.anchor:
            self._anchors[event.anchor] = _Anchor(value=text, size=1, height=1, complete=True)
        if event.style or event.tag:
            return text
        if text == "<<":
            self._problem(
                event,
                "merge keys (`<<`) are not part of YAML 1.2",
                "repeat the fields, or alias a whole value",
            )
            return None
        if text in scalars.WORDS or not isinstance(self._plain(event), str):
            self._problem(event, f"the key `{text[:80]}` is not text", f'quote it: "{text[:80]}"')
            return None
        return text

    def _scalar(self, event: Any, path: str) -> Any:
        if event.tag:
            try:
                return scalars.tagged(event.tag, event.value)
            except scalars.AmbiguousError as wrong:
                return self._wrong_scalar(event, wrong)
        if event.style:
            return event.value
        value = self._plain(event)
        if not isinstance(value, str):
            self._written[path] = event.value
        return value

    def _plain(self, event: Any) -> Any:
        try:
            return scalars.plain(event.value)
        except scalars.AmbiguousError as wrong:
            return self._wrong_scalar(event, wrong)

    def _wrong_scalar(self, event: Any, wrong: scalars.AmbiguousError) -> str:
        self._problem(event, str(wrong), wrong.instead)
        return str(getattr(event, "value", ""))

    def _alias(self, event: Any, path: str, depth: int) -> tuple[Any, int]:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise self._give_up(
                event, f"more than {MAX_ALIASES:,} aliases in one file", "write the values out"
            )
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            self._problem(
                event,
                f"the alias *{event.anchor} has no anchor &{event.anchor} before it in this document",
                "write the anchor first: it does not reach across `---`",
            )
            return None, 1
        if not anchor.complete:
            raise self._give_up(
                event, f"the alias *{event.anchor} stands inside its own value", "write the value out"
            )
        self._nodes += anchor.size - 1
        if self._nodes > MAX_NODES:
            raise self._too_many(event)
        if depth + anchor.height > MAX_DEPTH + 1:
            raise self._too_deep(event)
        if not isinstance(anchor.value, str | dict | list):
            self._written[path] = f"*{event.anchor}"
        return anchor.value, anchor.height

    def _problem(self, event: Any, what: str, instead: str) -> None:
        line, column = _mark(event)
        where = Where(file=self.file, line=line, column=column)
        self.problems.append(Problem(what=what, instead=instead, where=where))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _GiveUpError

    def _give_up(self, event: Any, what: str, instead: str) -> _GiveUpError:
        self._problem(event, what, instead)
        return _GiveUpError()

    def _too_many(self, event: Any) -> _GiveUpError:
        what = f"more than {MAX_NODES:,} values in one document, aliases written out"
        return self._give_up(event, what, "split it, or write the values without nested aliases")

    def _too_deep(self, event: Any) -> _GiveUpError:
        what = f"nested more than {MAX_DEPTH} levels deep, aliases written out"
        return self._give_up(event, what, "write it flatter")


_COLLECTIONS = (MappingStartEvent, SequenceStartEvent)


def _mark(event: Any) -> Mark:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1
