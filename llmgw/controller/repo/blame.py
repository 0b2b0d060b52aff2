"""Who wrote the lines of a manifest: the commit that changed them last, its author and its subject."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from llmgw.controller.repo.git import How
from llmgw.controller.repo.objects import ObjectStore
from llmgw.model.ids import Commit
from llmgw.model.problems import LlmgwError, Where
from llmgw.model.struct import Struct

WITHIN = 10.0
"""Seconds: it is told beside what matters, and a history of that length is not worth waiting for."""
NAME = 80
SUBJECT: Final = 200


class Wrote(Struct):
    """``line`` is the one of that commit's, in the file as it was asked for."""

    commit: Commit
    author: str  # "Ann <ann@example.org>"
    at: datetime  # when it was committed
    subject: str
    line: int


async def who_wrote(objects: ObjectStore, commit: Commit, where: Where) -> str:
    """``commit 1f0c9a2b3d by Ann``; empty when nobody can tell."""
    found = await last_change(objects, commit, where, where.line or 0)
    if found is None:
        return ""
    name = found.author.partition(" <")[0]
    return f"commit {found.commit[:10]}{f' by {name}' if name else ''}"


async def last_change(objects: ObjectStore, commit: Commit, where: Where, end: int) -> Wrote | None:
    """The newest of the commits that wrote the lines from ``where`` up to ``end``, as they stand in ``commit``; a file that was moved is
    followed. None when nobody can tell."""
    if not where.line:
        return None
    try:
        said = await objects.run(
            *("blame", "--porcelain", "-L", f"{where.line},{max(end, where.line)}", commit, "--", where.file),
            doing=f"looking who wrote {where}",
            how=How(timeout=WITHIN),
        )
    except LlmgwError:
        return None
    return max(_wrote(said.text.splitlines()), key=lambda one: (one.at, -one.line), default=None)


def _wrote(lines: list[str]) -> Iterator[Wrote]:
    """Git tells of each commit once, before its first line. A line of the file begins with a tab."""
    told: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        if line.startswith("\t"):
            if "committer-time" in told:
                yield Wrote(
                    commit=Commit(told["commit"]),
                    author=f"{told.get('author', '')[:NAME]} {told.get('author-mail', '')[:NAME]}".strip(),
                    at=datetime.fromtimestamp(int(told["committer-time"]), UTC),
                    subject=told.get("summary", "")[:SUBJECT],
                    line=int(told["line"]),
                )
            told = {}
        elif len(key) == 40 and not told:
            told = {"commit": key, "line": value.split()[1]}
        else:
            told[key] = value
