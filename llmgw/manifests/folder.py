"""Reads the files of a work tree. For editing and checking; what is applied is read from a commit."""

import os
from pathlib import Path

from llmgw.manifests import load, paths, yamltext
from llmgw.model.problems import InvalidError, Problem, Where

MAX_TOTAL = 256 * 1024 * 1024
"""Bytes of all files together: about 500,000 manifests. More means that this is not a fleet's folder."""


def read_folder(root: Path, folder: str | None = None) -> tuple[dict[str, bytes], dict[str, str]]:
    """Files that loading may need, by path relative to ``root`` (the repository's top), and symbolic links by path.

    Reads what lies in ``folder`` (default: the usual one) and, elsewhere below ``root``, only what manifests and links
    there point to. Raises InvalidError naming the file that can't be read."""
    usual = paths.fleet_path(f"{entry.name}/" for entry in root.iterdir() if entry.is_dir())
    reader = _Reader(root)
    chosen = folder if folder is not None else usual
    reader.walk(root / chosen)
    follow = paths.Links(targets=reader.links)
    for link in list(reader.links):
        reader.outside(follow.resolve(link))
    for path in load.facts_paths(reader.files, links=reader.links, path=chosen):
        reader.outside(follow.resolve(path))
    return reader.files, reader.links


class _Reader:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self._total = 0

    def walk(self, top: Path) -> None:
        """Follows no link and enters no folder whose name begins with a dot."""
        for folder, folders, names in os.walk(top, onerror=_refuse):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in (*folders, *names):
                path = Path(folder, name)
                if path.is_symlink():
                    self.links[self._shown(path)] = os.readlink(path)  # noqa: PTH115 - the target as written
                elif name.endswith((*paths.MANIFEST_SUFFIXES, paths.FACTS_SUFFIX)) and path.is_file():
                    self._read(path)

    def outside(self, path: str | None) -> None:
        """What lies at a repository path, if that is really inside the repository."""
        if path is None or path in self.files:
            return
        place = self.root / path
        if not place.resolve().is_relative_to(self.root.resolve()):
            return
        if place.is_dir():
            self.walk(place)
        elif place.is_file():
            self._read(place)

    def _read(self, path: Path) -> None:
        shown = self._shown(path)
        try:
            with path.open("rb") as file:
                self.files[shown] = file.read(yamltext.MAX_BYTES + 1)
        except OSError as wrong:
            problem = Problem(
                what=f"can't be read: {wrong.strerror}", instead="make it readable", where=Where(file=shown)
            )
            raise InvalidError((problem,)) from wrong
        self._total += len(self.files[shown])
        if self._total > MAX_TOTAL:
            what = f"reading {self.root}: more than {MAX_TOTAL:,} bytes of YAML and JSON"
            raise InvalidError((Problem(what=what, instead="name the fleet's own folder"),))

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def _refuse(wrong: OSError) -> None:
    what = f"reading the folder {wrong.filename}: {wrong.strerror}"
    raise InvalidError((Problem(what=what, instead="make it readable, or name another"),)) from wrong
