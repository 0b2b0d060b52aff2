"""What the pages say about each other: every link leads to a file that is there, and to a heading in it."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


@cache
def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings, as forges write them in addresses."""
    titles = re.findall(r"(?m)^#+ +(.*?) *$", prose(page))
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {link}: no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: {link}: no such heading"


def test_links_lead_somewhere() -> None:
    assert len(pages()) > 20
    assert [each for page in pages() for each in broken(page)] == []


def test_links_that_lead_nowhere_are_seen() -> None:
    page = ROOT / "docs" / "git.md"
    assert "signed-commits" in anchors(page)
    assert "signed-commit" not in anchors(page)
    assert "llmgwyaml" not in anchors(page)  # a comment in a block is no heading


def test_every_row_about_a_fault_names_tests_that_are_there() -> None:
    page = ROOT / "docs" / "faults.md"
    rows = re.findall(r"(?m)^\| (?!fault |---).*\|$", prose(page))
    assert len(rows) > 50
    for row in rows:
        tests = re.findall(r"\[([^\]]+)\]\(\.\./(tests/[^)]+\.py)\)", row.split(" | ")[2])
        assert tests, row
        for name, file in tests:
            written = (ROOT / file).read_text(encoding="utf-8")
            assert f"def test_{name.replace(' ', '_')}(" in written, f"{file}: {name}"


def test_every_story_is_read_from_some_page() -> None:
    told = "".join(prose(page) for page in pages())
    stories = sorted((ROOT / "tests" / "golden" / "stories").glob("*.txt"))
    assert stories
    assert [it.name for it in stories if f"golden/stories/{it.name})" not in told] == []
