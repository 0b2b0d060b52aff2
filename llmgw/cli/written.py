"""The manifests' work tree as commands edit it: what lies there, and whether the whole fleet holds with a file changed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llmgw.cli.environment import environment
from llmgw.controller.opening import Opened
from llmgw.controller.worktree import WorkTree
from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests import paths
from llmgw.manifests.folder import read_folder
from llmgw.manifests.load import load
from llmgw.model.manifest import Manifests
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

SCHEMA: Final = ".schemas/node.schema.json"


class Written(Struct):
    """What lies in the work tree right now, and is valid."""

    tree: WorkTree
    files: Mapping[str, bytes]
    links: Mapping[str, str]
    folder: str
    manifests: Manifests

    def checked(self, changed: Mapping[str, bytes | None]) -> Manifests:
        """The whole fleet with some files other than they are (None: gone), as a plan would check it. Raises InvalidError."""
        files = {path: data for path, data in {**self.files, **changed}.items() if data is not None}
        return _valid(files, self.links, self.folder)

    def schema(self, path: str) -> str | None:
        """Where the fleet keeps the schemas for its editors, seen from a file."""
        for base in (paths.parent(self.folder) or ".", "."):
            there = os.path.normpath(f"{base}/{SCHEMA}")
            if (self.tree.top / there).is_file():
                return os.path.relpath(there, paths.parent(path) or ".")
        return None


def written(opened: Opened, *, otherwise: str = "") -> Written:
    """``otherwise``: see WorkTree. StalledError where there is no work tree, InvalidError where what lies there is wrong already."""
    top = opened.work_tree
    if top is None:
        raise StalledError(
            f"{opened.settings.repo} has no work tree here, and manifests are changed by commits: run this in a clone of it"
        )
    folder = opened.folder(top)
    files, links = read_folder(top, folder)
    chosen = folder if folder is not None else _usual(top, files)
    return Written(
        tree=WorkTree(top=top, environ=environment(), otherwise=otherwise),
        files=files,
        links=links,
        folder=chosen,
        manifests=_valid(files, links, chosen),
    )


def _usual(top: Path, files: Mapping[str, bytes]) -> str:
    """As commits of it are read. A repository without any manifest gets the usual folder."""
    folder = paths.fleet_path(f"{entry.name}/" for entry in top.iterdir() if entry.is_dir())
    return folder if any(paths.is_manifest(name, folder) for name in files) else paths.DEFAULT_FOLDER


def _valid(files: Mapping[str, bytes], links: Mapping[str, str], folder: str) -> Manifests:
    manifests = load(files, commit=None, links=links, path=folder)
    resolve(manifests, key_id="", adapters=ADAPTERS)
    return manifests
