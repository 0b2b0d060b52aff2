"""Commits that were applied stay readable in the mirror, whatever becomes of their branch."""

from llmgw.controller.repo import answers
from llmgw.controller.repo.git import How
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.refs import commit_id
from llmgw.controller.together import both
from llmgw.model.ids import Commit

_APPLIED = "refs/llmgw/applied/"
KEPT = 100  # of the commits whose history was rewritten since they were applied, the newest


async def keep(objects: ObjectStore, commit: Commit) -> None:
    """The commits that this one grew out of stay with it, and need no name of their own."""
    async with objects.writing() as held:
        every, behind = await both(
            _names(objects, "--sort=-committerdate"), _names(objects, f"--merged={commit_id(commit)}")
        )
        ours = f"{_APPLIED}{commit}"
        gone = {*behind, *every[KEPT:]} - {ours}
        await objects.run(
            "update-ref",
            "--stdin",
            doing=f"keeping commit {commit[:12]}",
            stdin=answers.lines([f"update {ours} {commit}", *(f"delete {name}" for name in sorted(gone))]),
            how=How(keep_open=held),
        )


async def _names(objects: ObjectStore, which: str) -> list[str]:
    said = await objects.run(
        "for-each-ref", "--format=%(refname)", which, _APPLIED, doing="listing what was applied"
    )
    return said.text.splitlines()
