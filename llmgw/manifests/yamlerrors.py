"""What is wrong with a file before it is YAML, and what a YAML parser means, in plain words."""

import re
from typing import Any

from yaml.error import MarkedYAMLError, YAMLError

from llmgw.model.problems import Problem, Where

_BOM = "\ufeff"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def text_problems(file: str, data: bytes, *, limit: int) -> list[Problem]:
    """Bytes that are no text of a manifest: too many, not UTF-8, NUL and other control characters."""
    if len(data) > limit:
        what = f"the file has {len(data):,} bytes, more than {limit:,}"
        return [Problem(what=what, instead="split it into several files", where=Where(file=file))]
    if data.startswith(_UTF16):
        return [
            Problem(
                what="the file is UTF-16",
                instead="save it as UTF-8",
                where=Where(file=file, line=1, column=1),
            )
        ]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as wrong:
        good = data[: wrong.start].decode("utf-8")
        what = f"byte 0x{data[wrong.start]:02x} is not UTF-8"
        return [Problem(what=what, instead="save the file as UTF-8", where=_place(file, good))]
    problems = []
    if found := _CONTROL.search(text):
        character = ord(found[0])
        name = "NUL byte" if character == 0 else f"control character U+{character:04X}"
        problems.append(
            Problem(what=f"a {name}", instead="remove it", where=_place(file, text[: found.start()]))
        )
    if (second := text.find(_BOM, 1)) > 0:
        problems.append(
            Problem(
                what="a byte order mark inside the file (invisible; often left by joining two files)",
                instead="remove it; it may only stand at the very start",
                where=_place(file, text[:second]),
            )
        )
    return problems


def _place(file: str, before: str) -> Where:
    """The place right after ``before``."""
    lines = re.split(r"\r\n|\r|\n", before.removeprefix(_BOM))
    return Where(file=file, line=len(lines), column=len(lines[-1]) + 1)


_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        "mapping values are not allowed",
        "a `key:` can't stand here",
        "put it on a line of its own with the right indentation, or quote the text if it holds `: `",
    ),
    (
        "did not find expected key",
        "expected a `key: value` line here",
        "check the indentation of this line and the lines above it, and quotes that end too early",
    ),
    (
        "could not find expected ':'",
        "expected `:` after a key",
        "write `key: value`, and check the indentation and quotes of the lines above",
    ),
    (
        "did not find expected '-' indicator",
        "expected `- ` for the next item of the list",
        "indent this line like the list's other items, or end the list",
    ),
    (
        "did not find expected ',' or ']'",
        "a list in [ ] is not closed or lacks a comma",
        "close it with ] or put a comma between its items",
    ),
    (
        "did not find expected ',' or '}'",
        "a map in { } is not closed or lacks a comma",
        "close it with } or put a comma between its fields",
    ),
    (
        "did not find expected node content",
        "a value is missing here",
        "write the value, or close the bracket that is open",
    ),
    (
        "block sequence entries are not allowed",
        "a list item `- ` can't stand here",
        "put it on a line of its own below the key",
    ),
    ("exceeded maximum nesting depth", "brackets nested too deep", "write it flatter"),
    ("found undefined tag handle", "custom tags are not supported", "write the plain value"),
    (
        "found unknown escape character",
        "an escape that YAML does not know",
        'use single quotes, or "\\\\" for a backslash',
    ),
    ("found duplicate %YAML directive", "%YAML stands twice", "remove the second"),
    (
        "found unknown directive name",
        "a directive (%) that YAML does not know",
        "remove it, or quote the text",
    ),
    ("found incompatible YAML document", "a %YAML version that is not supported", "remove the %YAML line"),
    (
        "did not find expected <document start>",
        "text after the end of a document",
        "begin the next document with `---`, or check the indentation",
    ),
)


def syntax_problem(file: str, data: bytes, wrong: MarkedYAMLError) -> Problem:
    """The parser's complaint in words of the trade, at the place that a person must look at."""
    problem, context = str(wrong.problem or ""), str(wrong.context or "")
    mark: Any = wrong.problem_mark or wrong.context_mark
    character = _character(data, mark)
    if character == "\t" or "tab character" in problem:
        return _problem(file, mark, "a tab as indentation", "indent with spaces")
    if "cannot start any token" in problem:
        return _problem(file, mark, f"a value can't begin with `{character}`", f'quote it: "{character}…"')
    if "unexpected end of stream" in problem and "quoted scalar" in context:
        return _problem(file, wrong.context_mark, "the quote that opens here is never closed", "close it")
    for text, what, instead in _MEANINGS:
        if text in problem:
            return _problem(file, mark, f"{what} (YAML: {problem})", instead)
    what = f"not valid YAML: {context + ': ' if context else ''}{problem}"
    return _problem(file, mark, what, "correct the syntax")


def _problem(file: str, mark: Any, what: str, instead: str) -> Problem:
    where = Where(file=file) if mark is None else Where(file=file, line=mark.line + 1, column=mark.column + 1)
    return Problem(what=what, instead=instead, where=where)


def _character(data: bytes, mark: Any) -> str:
    if mark is None:
        return ""
    lines = data.decode("utf-8").removeprefix(_BOM).splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    return line[mark.column : mark.column + 1]


def reader_problem(file: str, data: bytes, wrong: YAMLError) -> Problem:
    """A character that YAML has no place for; the reader only tells its offset in bytes."""
    position = getattr(wrong, "position", None)
    character = getattr(wrong, "character", None)
    name = f"U+{character:04X}" if isinstance(character, int) else "some character"
    where = Where(file=file)
    if isinstance(position, int):
        where = _place(file, data[:position].decode("utf-8", errors="ignore"))
    return Problem(
        what=f"the character {name} can't stand in YAML",
        instead="remove it, or escape it in double quotes",
        where=where,
    )
