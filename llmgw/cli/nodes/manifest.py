"""The manifests' work tree as node commands edit it: one file more, or one document less, checked and committed."""

from pathlib import Path
from typing import Final

from llmgw.cli.written import written
from llmgw.controller.opening import Opened
from llmgw.controller.worktree import WorkTree
from llmgw.manifests import nodetext
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import Manifests
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

OTHERWISE: Final = ", or --no-commit"


class Removal(Struct):
    """The manifest of a node, about to go: everything that could be wrong with that is checked."""

    node: str
    path: str
    rest: str  # what stays of the file; empty: nothing
    tree: WorkTree

    def carry_out(self) -> str:
        """The commit. StalledError with git's words; the file is as it was then."""
        file = self.tree.top / self.path
        before = file.read_bytes()
        if self.rest:
            file.write_text(self.rest, encoding="utf-8")
        else:
            file.unlink()
        try:
            return self.tree.commit(
                self.path, message=f"Remove node {self.node}", doing=f"committing {self.path}"
            )
        except StalledError:
            file.write_bytes(before)
            raise


async def removal(opened: Opened, node: DesiredNode) -> Removal | None:
    """None where there is no work tree to remove it from. StalledError and InvalidError where it can't be removed."""
    if opened.work_tree is None:
        return None
    here = written(opened, otherwise=OTHERWISE)
    doing = f"removing node {node.name}"
    found = next((one for one in here.manifests.nodes if one.metadata.name == node.name), None)
    if found is None:
        raise StalledError(
            f"{doing}: the work tree does not have it, the newest commit does ({node.where}): commit or undo that first, or"
            " --no-commit"
        )
    path = found.where.file
    here.tree.check(path, branch=await opened.followed(), doing=doing)
    if not here.tree.unchanged(path):
        raise StalledError(
            f"{doing}: {path} has changes that are not committed: commit or undo them, or --no-commit"
        )
    rest = nodetext.without_document(here.files[path].decode("utf-8-sig"), found.where.line)
    after = here.checked({path: rest.encode() if rest else None})
    _exactly_one_less(here.manifests, after, node.name, doing)
    return Removal(node=node.name, path=path, rest=rest, tree=here.tree)


def _exactly_one_less(before: Manifests, after: Manifests, name: str, doing: str) -> None:
    """Text was cut: what it means now is looked at, not believed."""

    def every(manifests: Manifests) -> set[tuple[str, str]]:
        fleet = (manifests.fleet,) if manifests.fleet else ()
        all_of = (*fleet, *manifests.nodes, *manifests.profiles, *manifests.models)
        return {(one.kind, one.metadata.name) for one in all_of}

    if every(before) - every(after) != {("Node", name)} or every(after) - every(before):
        raise StalledError(
            f"{doing}: its document can't be told from the rest of its file: remove it by hand, and --no-commit"
        )


def make(tree: WorkTree, path: str, text: str) -> None:
    """A new file. StalledError when something is there, or when it can't be written."""
    file: Path = tree.top / path
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as wrong:
        raise StalledError(f"writing {file}: {wrong.strerror}") from wrong
