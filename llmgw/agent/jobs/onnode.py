"""Weights that somebody else has put on the node: looked at and measured, never touched."""

import os
import stat
import threading
from collections.abc import Iterator
from grp import getgrall
from itertools import islice
from pathlib import Path
from pwd import getpwnam

from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import copy_hashed, mismatch, tree_size
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

MAX_LOOKED_AT = 10_000
READ, ENTER = 4, 1


class User(Struct):
    """Whom files must let in, by numbers."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, about: os.stat_result, right: int) -> bool:
        """By the file's mode; a list of rights beyond it is not looked at, so its users are taken at their mode's word."""
        if self.uid == 0:
            return True
        if about.st_uid == self.uid:
            shift = 6
        elif about.st_gid in self.groups:
            shift = 3
        else:
            shift = 0
        return bool(stat.S_IMODE(about.st_mode) >> shift & right)


def user(name: str | None) -> User | None:
    """None: engines run as the agent's own user, who finds out by itself."""
    if name is None:
        return None
    try:
        entry = getpwnam(name)
    except KeyError:
        return None
    also = (group.gr_gid for group in getgrall() if name in group.gr_mem)
    return User(name=name, uid=entry.pw_uid, groups=frozenset((entry.pw_gid, *also)))


def check_path(spec: FetchSpec, *, reader: User | None, stop: threading.Event, progress: Progress) -> int:
    """Size in bytes. Raises StalledError when nothing is there, the engine can't read it, or it is not what the hash says."""
    path = Path(spec.path or "")
    doing = f"looking for weights at {path}"
    if not path.exists():
        raise StalledError(f"{doing}: nothing is there on this node: copy them there")
    if (part := first_barred(path, reader)) is not None:
        who = reader.name if reader is not None else "the agent's user"
        raise StalledError(f"{doing}: {who} may not read {part}: chmod o+rX it and the folders above it")
    if spec.sha256 is not None:
        _verify(path, spec, stop, progress)
    return tree_size(path) if path.is_dir() else path.stat().st_size


def first_barred(path: Path, reader: User | None) -> Path | None:
    """What keeps the reader from a path or from something below it; None: nothing does. A reader of None is this process."""
    return next(_barred(path, reader), None)


def _barred(path: Path, reader: User | None) -> Iterator[Path]:
    """What the reader can't get at: a folder on the way, the file, or one of the files below."""
    real = path.resolve()
    for folder in (*reversed(real.parents), *([real] if real.is_dir() else [])):
        if not _may(folder, reader, ENTER):
            yield folder
            return
    for each in islice(_everything(real), MAX_LOOKED_AT):
        if not _may(each, reader, READ | (ENTER if each.is_dir() else 0)):
            yield each


def _everything(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir():
        for parent, folders, names in os.walk(path):
            yield from (Path(parent) / name for name in (*folders, *names))


def _may(path: Path, reader: User | None, rights: int) -> bool:
    if reader is None:
        return os.access(path, (os.R_OK if rights & READ else 0) | (os.X_OK if rights & ENTER else 0))
    try:
        about = path.stat()
    except OSError:
        return False
    return all(reader.may(about, right) for right in (READ, ENTER) if rights & right)


def _verify(path: Path, spec: FetchSpec, stop: threading.Event, progress: Progress) -> None:
    if not path.is_file():
        raise StalledError(f"verifying {path}: a sha256 is for one file, and this is a directory")
    progress.bytes(0, path.stat().st_size)
    with path.open("rb") as source:
        found = copy_hashed(source, None, stop=stop, told=progress.bytes)
    if found != spec.sha256:
        raise mismatch(spec.description, found=found, expected=spec.sha256 or "")
