"""Who wrote a line of a manifest: the commit and its author."""

from llmgw.controller.repo.git import How
from llmgw.controller.repo.objects import ObjectStore
from llmgw.model.ids import Commit
from llmgw.model.problems import LlmgwError, Where

WITHIN = 10.0
"""Seconds: it is told beside what matters, and a history of that length is not worth waiting for."""
NAME = 80


async def who_wrote(objects: ObjectStore, commit: Commit, where: Where) -> str:
    """``commit 1f0c9a2b3d by Ann``; empty when nobody can tell."""
    if not where.line:
        return ""
    try:
        said = await objects.run(
            *("blame", "--porcelain", "-L", f"{where.line},{where.line}", commit, "--", where.file),
            doing=f"looking who wrote {where}",
            how=How(timeout=WITHIN),
        )
    except LlmgwError:
        return ""
    lines = said.text.splitlines()
    author = next((line.removeprefix("author ") for line in lines if line.startswith("author ")), "")
    return f"commit {lines[0][:10]}{f' by {author[:NAME]}' if author else ''}" if lines else ""
