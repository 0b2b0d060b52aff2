"""Reads the files of a work tree. For editing and checking; what is applied is read from a commit."""

import os
from pathlib import Path

from llmgw.manifests import paths, yamltext
from llmgw.model.problems import InvalidError, Problem, Where

MAX_TOTAL = 256 * 1024 * 1024
"""Bytes of all files together: about 500,000 manifests. More means that this is not a fleet's folder."""


def read_folder(root: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """Files that loading may need, by path relative to ``root``, and symbolic links by path. Follows no link and enters
    no folder whose name begins with a dot. Raises InvalidError naming the file that can't be read."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    total = 0
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in (*folders, *names):
            path = Path(folder, name)
            shown = path.relative_to(root).as_posix()
            if path.is_symlink():
                links[shown] = os.readlink(path)  # noqa: PTH115 - the target as written, not as Path normalises it
            elif paths.may_be_needed(shown) and path.is_file():
                files[shown] = _bytes(path, shown)
                total += len(files[shown])
                if total > MAX_TOTAL:
                    what = f"reading {root}: more than {MAX_TOTAL:,} bytes of YAML and JSON"
                    raise InvalidError((Problem(what=what, instead="name the fleet's own folder"),))
    return files, links


def _bytes(path: Path, shown: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(yamltext.MAX_BYTES + 1)
    except OSError as wrong:
        what = f"can't be read: {wrong.strerror}"
        problem = Problem(what=what, instead="make it readable", where=Where(file=shown))
        raise InvalidError((problem,)) from wrong


def _refuse(wrong: OSError) -> None:
    what = f"reading the folder {wrong.filename}: {wrong.strerror}"
    raise InvalidError((Problem(what=what, instead="make it readable, or name another"),)) from wrong
