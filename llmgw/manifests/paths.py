"""Which files of a repository are manifests, and where its symbolic links lead. Repository paths only, no disk."""

from collections.abc import Iterable, Iterator, Mapping

from llmgw.model.problems import Problem, Where
from llmgw.model.struct import Struct

MANIFEST_SUFFIXES = (".yaml", ".yml")
FACTS_SUFFIX = ".json"
DEFAULT_FOLDER = "manifests"
CONFIGURATION = "llmgw.yaml"
"""The controller's own file, at the repository's top or beside the manifests: none of them."""
_MAX_LINKS = 40  # the same bound as the kernel's


def fleet_path(paths: Iterable[str]) -> str:
    """``manifests`` where a repository has that folder, else ``.`` (all of it)."""
    return DEFAULT_FOLDER if any(path.startswith(f"{DEFAULT_FOLDER}/") for path in paths) else "."


def below(path: str, folder: str) -> str | None:
    """``path`` as seen from ``folder``; None when it lies elsewhere."""
    folder = folder.strip("/")
    if folder in ("", "."):
        return path
    return path.removeprefix(f"{folder}/") if path.startswith(f"{folder}/") else None


def is_manifest(path: str, folder: str = ".") -> bool:
    """Whether a file is read as a manifest of the fleet at ``folder``. Names that begin with a dot are skipped."""
    if CONFIGURATION in (path, below(path, folder)):
        return False
    return path.endswith(MANIFEST_SUFFIXES) and is_visible(path, folder)


def is_visible(path: str, folder: str = ".") -> bool:
    inside = below(path, folder)
    return inside is not None and not any(part.startswith(".") for part in inside.split("/"))


def may_be_needed(path: str) -> bool:
    """Whether loading may ask for a file: manifests, and facts that manifests point to. The rest of a repository need
    not be read."""
    return path.endswith((*MANIFEST_SUFFIXES, FACTS_SUFFIX)) and is_visible(path)


def join(folder: str, relative: str) -> str | None:
    """``relative`` as seen from ``folder``, without ``.`` and ``..``; None when it leaves the repository."""
    if relative.startswith("/"):
        return None
    parts: list[str] = []
    for part in f"{folder}/{relative}".split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def parent(path: str) -> str:
    return path.rpartition("/")[0]


class Links(Struct):
    """The symbolic links of a tree: path to target, as written."""

    targets: Mapping[str, str]

    def resolve(self, path: str) -> str | None:
        """The real path behind ``path``, every part of it followed; None when it leaves the repository or runs in a
        circle."""
        done: list[str] = []
        todo = path.split("/")
        followed = 0
        while todo:
            part = todo.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                continue
            here = "/".join([*done, part])
            target = self.targets.get(here)
            if target is None:
                done.append(part)
                continue
            followed += 1
            if target.startswith("/") or followed > _MAX_LINKS:
                return None
            todo = [*target.split("/"), *todo]
        return "/".join(done)


def linked_manifests(
    files: Mapping[str, bytes], links: Mapping[str, str], folder: str
) -> Iterator[tuple[str, str] | Problem]:
    """Manifests that are only reached by a link: (path, path that holds the bytes); and what is wrong with links.

    A link to what is a manifest of this fleet anyway is nothing new and left out.
    """
    follow = Links(targets=links)
    for link in sorted(path for path in links if is_visible(path, folder)):
        is_file = link.endswith(MANIFEST_SUFFIXES)
        if not is_file and "." in link.rpartition("/")[2]:
            continue  # a link to some other kind of file: nothing of ours
        real = follow.resolve(link)
        if real is None:
            what = f"a symbolic link to {links[link]}, which leads out of the repository or in a circle"
            instead = "put the file itself here, or link inside the repository"
            yield Problem(what=what, instead=instead, where=Where(file=link))
        elif is_file:
            yield from _linked_file(files, link, real, links[link], folder)
        else:
            yield from _linked_folder(files, link, real, links[link], folder)


def _linked_file(
    files: Mapping[str, bytes], link: str, real: str, target: str, folder: str
) -> Iterator[tuple[str, str] | Problem]:
    if is_manifest(real, folder) and real in files:
        return
    if real in files:
        yield link, real
    elif link in files:  # who read the files has followed the link
        yield link, link
    else:
        what = f"a symbolic link to {target}, which is not a file of this repository"
        yield Problem(what=what, instead="correct or remove the link", where=Where(file=link))


def _linked_folder(
    files: Mapping[str, bytes], link: str, real: str, target: str, folder: str
) -> Iterator[tuple[str, str] | Problem]:
    """A name without an ending may be a folder with manifests in it."""
    if not real or below(f"{real}/x", folder) is not None:
        return  # its manifests are this fleet's anyway
    inside = [(path, rest) for path in files if (rest := below(path, real)) is not None]
    for path, rest in inside:
        if is_manifest(rest) and not is_manifest(path, folder):
            yield f"{link}/{rest}", path
    if not inside and real not in files and link not in files:
        what = f"a symbolic link to {target}, which may hold manifests and was not read"
        yield Problem(what=what, instead="link the manifest files one by one", where=Where(file=link))
