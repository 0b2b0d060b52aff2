"""The loading rules that are about YAML itself, each with the place that the problem names."""

import pytest

from llmgw.manifests import yamltext
from llmgw.model.problems import Problem


def read(text: str | bytes) -> tuple[list[object], list[str]]:
    data = text if isinstance(text, bytes) else text.encode()
    documents, problems = yamltext.read("f.yaml", data)
    return [document.data for document in documents], [str(problem) for problem in problems]


def only_problem(text: str | bytes) -> Problem:
    _, problems = yamltext.read("f.yaml", text if isinstance(text, bytes) else text.encode())
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("22:22", "22:22"),
        ("2026-01-31", "2026-01-31"),
        ("1_000", "1_000"),
        ("0o17", 15),
        ("0x1f", 31),
        ("-5", -5),
        ("+5", 5),
        ("0", 0),
        ("1.10", 1.1),
        (".5", 0.5),
        ("1e-5", 0.00001),
        ("1e3", 1000.0),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("~", None),
        ("Null", None),
        ("", None),
        ('"1.10"', "1.10"),
        ("'true'", "true"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("! 1", "1"),
        ("https://example.org/x?y=1", "https://example.org/x?y=1"),
    ],
)
def test_scalars_are_read_by_the_core_schema_of_yaml_1_2(written: str, value: object) -> None:
    (document,), problems = read(f"a: {written}\n")
    assert problems == []
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


def test_text_with_colons_may_stand_unquoted_in_braces_and_brackets() -> None:
    documents, problems = read("a: {url: https://x.example/y, t: 22:22}\nb: [http://proxy:3128]\n")
    assert problems == []
    assert documents == [{"a": {"url": "https://x.example/y", "t": "22:22"}, "b": ["http://proxy:3128"]}]


@pytest.mark.parametrize(
    "written", ["0777", "-012", "00", ".inf", "-.INF", ".nan", "1e999", "9" * 19 + "9", "9" * 5000]
)
def test_a_number_that_readers_disagree_on_is_refused(written: str) -> None:
    problem = only_problem(f"ok: 1\na: {written}\n")
    assert str(problem.where) == "f.yaml:2:4"
    assert written[:40] in problem.what
    assert '"' in problem.instead


def test_what_was_written_is_kept_for_values_that_are_not_text() -> None:
    documents, _ = yamltext.read("f.yaml", b"a: 1.10\nb: [0x10, x]\n")
    assert documents[0].written == {"a": "1.10", "b[0]": "0x10"}


def test_every_part_has_its_line_and_column() -> None:
    documents, _ = yamltext.read("f.yaml", b"# c\nspec:\n  args:\n    - -c\n    - x\n  source: {path: /x}\n")
    (document,) = documents
    assert document.mark == (2, 1)
    assert document.marks["spec"] == (2, 1)
    assert document.marks["spec.args"] == (3, 3)
    assert document.marks["spec.args[1]"] == (5, 7)
    assert document.marks["spec.source.path"] == (6, 18)
    assert document.keys["spec.source.path"] == (6, 12)


def test_a_duplicate_key_names_both_lines() -> None:
    problem = only_problem("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert str(problem.where) == "f.yaml:5:3"
    assert "first on line 3" in problem.what
    assert "lines 3 and 5" in problem.instead


def test_keys_that_are_equal_after_quotes_are_duplicates() -> None:
    assert "stands twice" in only_problem('a: 1\n"a": 2\n').what


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        (b"a: \xff\n", "f.yaml:1:4", "byte 0xff is not UTF-8"),
        (b"a: 1\nb: caf\xe9\n", "f.yaml:2:7", "byte 0xe9 is not UTF-8"),
        ("a: b".encode("utf-16"), "f.yaml:1:1", "UTF-16"),
        (b"a: 1\nb: x\x00y\n", "f.yaml:2:5", "NUL byte"),
        (b"a: x\x1b[31m\n", "f.yaml:1:5", "control character U+001B"),
        (b"a:\n\tb: 1\n", "f.yaml:2:1", "tab as indentation"),
        (b"a:\n  b: 1\n\tc: 2\n", "f.yaml:3:1", "tab as indentation"),
        (b"a: 1\n---\n\xef\xbb\xbfb: 2\n", "f.yaml:3:1", "byte order mark inside"),
        (b"a: 1\nb: 'x\n", "f.yaml:2:4", "never closed"),
        (b"a: [1, 2\nb: 3\n", "f.yaml:2:2", "is not closed"),
        (b"a: b: c\n", "f.yaml:1:5", "can't stand here"),
        (b"a: @x\n", "f.yaml:1:4", "can't begin with `@`"),
        (b"- a\nb: c\n", "f.yaml:2:1", "next item of the list"),
        (b"a: !vault x\n", "f.yaml:1:4", "tag !vault"),
        (b"a: !!binary aGk=\n", "f.yaml:1:4", "tag !!binary"),
        (b"a: !!python/object:os.system {}\n", "f.yaml:1:4", "tag !!python"),
        (b"a: !!int x\n", "f.yaml:1:4", "not what its tag says"),
        (b"a: &x {b: 1}\nc:\n  <<: *x\n", "f.yaml:3:3", "merge keys"),
        (b"true: 1\n", "f.yaml:1:1", "the key `true` is not text"),
        (b"1: a\n", "f.yaml:1:1", "the key `1` is not text"),
        (b"? [a]\n: b\n", "f.yaml:1:3", "a key must be text"),
        (b"{{ x }}: b\n", "f.yaml:1:1", "a key must be text"),
        (b"a: *x\n", "f.yaml:1:4", "no anchor &x"),
        (b"a: &x 1\n---\nb: *x\n", "f.yaml:3:4", "no anchor &x"),
        (b"a: &x [*x]\n", "f.yaml:1:8", "inside its own value"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_place(text: bytes, place: str, what: str) -> None:
    problem = only_problem(text)
    assert str(problem.where) == place
    assert what in problem.what
    assert problem.instead


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        (b"\xef\xbb\xbfa: 1\n", [{"a": 1}]),
        (b"a: 1\r\nb: 2\r\n", [{"a": 1, "b": 2}]),
        (b"# only a comment\n", []),
        (b"", []),
        (b"---\n---\na: 1\n---\n# x\n---\n", [{"a": 1}]),
        (b"%YAML 1.2\n---\na: 1\n", [{"a": 1}]),
        (b"a: &x {b: [1]}\nc: *x\n", [{"a": {"b": [1]}, "c": {"b": [1]}}]),
        (b'a: "x\\ty"\n', [{"a": "x\ty"}]),
        ("a: é漢😀\n".encode(), [{"a": "é漢😀"}]),
    ],
)
def test_what_is_harmless_is_allowed(text: bytes, documents: list[object]) -> None:
    assert read(text) == (documents, [])


def test_a_byte_order_mark_does_not_shift_columns() -> None:
    documents, _ = yamltext.read("f.yaml", b"\xef\xbb\xbfa: 1\n")
    assert documents[0].marks["a"] == (1, 4)


def test_problems_before_a_syntax_error_are_told_too() -> None:
    _, problems = read("a: 0777\na: 1\nb: [\n")
    assert [problem.split(":")[1] for problem in problems] == ["1", "2", "4"]


def test_a_file_over_one_mebibyte_is_refused_unread() -> None:
    assert only_problem(b"a: 1\n" + b"#" * 1024 * 1024).what.startswith("the file has 1,048,581 bytes")
    assert read(b"a: 1\n" + b"#" * (1024 * 1024 - 5)) == ([{"a": 1}], [])


def test_nesting_is_bounded_at_64_levels() -> None:
    deep = "[" * 64 + "]" * 64
    assert read(deep)[1] == []
    assert "more than 64 levels" in only_problem(f"[{deep}]").what


def test_nesting_through_aliases_counts_too() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 70)]
    problem = only_problem("\n".join(lines))
    assert "more than 64 levels" in problem.what


def test_more_than_a_thousand_aliases_are_refused() -> None:
    assert read("a: &x 1\nb: [" + "*x," * 1000 + "]\n")[1] == []
    assert "more than 1,000 aliases" in only_problem("a: &x 1\nb: [" + "*x," * 1001 + "]\n").what


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"{new}: &{new} [{','.join(['*' + old] * 9)}]"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert "more than 100,000 values" in only_problem("\n".join(lines)).what


@pytest.mark.parametrize(
    "unit",
    ["- ", "[", "{", "? ", "&a ", "- a\n", "---\n", "a: 1\n", '"', "!!!", "- - a\n", "x", "1", "[a,", "*a "],
)
def test_a_mebibyte_of_anything_is_read_or_refused_in_bounded_steps(unit: str) -> None:
    data = (unit * (1024 * 1024 // len(unit))).encode()
    documents, problems = yamltext.read("f.yaml", data)
    assert documents or problems or unit == "---\n"
    assert len(problems) <= yamltext.MAX_PROBLEMS
