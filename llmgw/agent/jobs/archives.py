"""Unpacks an engine's archive (tar or zip) that its hash has proved: nothing lands outside of the directory, nothing grows
past the disk, links stay inside. The programs that are asked for are found and linked into ``bin``.
"""

import gzip
import lzma
import os
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import CHUNK, Stopped, require_space
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    EOFError,
    RuntimeError,  # an encrypted zip
    NotImplementedError,  # a compression that this Python does not have
)
MAX_MEMBERS = 100_000
MAX_BYTES = 64 * 1024**3
"""CUDA builds with their libraries take some 2 GiB; what wants more than this is a bomb."""
MAX_LINK = 4096
DEPTH = 3
"""Directories that a program may lie deep: ``build/bin`` of the one, the release's own name of the other."""


class _Member(Struct):
    """``link``: where a symbolic link points to."""

    path: PurePosixPath
    size: int
    mode: int
    link: str | None = None
    folder: bool = False


def unpack(
    archive: Path, folder: Path, *, name: str, reserve: int, stop: threading.Event, progress: Progress
) -> None:
    """Raises StalledError when it is no archive or holds what must not be unpacked."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                _unpack(_of_zip(opened), folder, name=name, reserve=reserve, stop=stop, progress=progress)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as opened_tar:
                _unpack(_of_tar(opened_tar), folder, name=name, reserve=reserve, stop=stop, progress=progress)
        else:
            raise StalledError(f"unpacking {name}: it is neither a tar nor a zip archive: correct engine.url")
    except _BROKEN as wrong:
        raise StalledError(f"unpacking {name}: {wrong}: see who made that archive") from wrong


def link_programs(folder: Path, names: tuple[str, ...], *, archive: str) -> None:
    """``bin/<name>`` of the directory leads to the one program of that name."""
    for name in names:
        if "/" in name:
            raise StalledError(f"looking for {name!r:.60} in {archive}: that is no name of a program")
        found = sorted(_find(folder, name), key=lambda path: (len(path.parts), str(path)))
        if not found:
            there = ", ".join(sorted(path.name for path in folder.iterdir())[:10])
            raise StalledError(
                f"looking for the program {name} in {archive}: it is not within {DEPTH} directories, which hold {there}:"
                " name an archive that holds it in engine.url"
            )
        if found[0] == folder / "bin" / name:
            continue
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).symlink_to(os.path.relpath(found[0], folder / "bin"))


def _find(folder: Path, name: str) -> Iterator[Path]:
    for depth in range(DEPTH + 1):
        for path in folder.glob("/".join(["*"] * depth + [name])):
            if path.is_file():
                path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
                yield path


# ---- members ---------------------------------------------------------------------------------------------


Members: TypeAlias = Iterator[tuple[_Member, Callable[[], IO[bytes]]]]
"""Each with what opens it."""


def _of_zip(archive: zipfile.ZipFile) -> Members:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        link = None
        if stat.S_ISLNK(mode):
            with archive.open(info) as source:
                link = source.read(MAX_LINK).decode(errors="replace")
        member = _Member(
            path=PurePosixPath(info.filename), size=info.file_size, mode=mode, link=link, folder=info.is_dir()
        )
        yield member, partial(archive.open, info)


def _of_tar(archive: tarfile.TarFile) -> Members:
    for info in archive:
        if not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
            raise StalledError(
                f"unpacking: {info.name!r:.100} is neither file, directory nor link: see who made that archive"
            )
        link = info.linkname if info.issym() else None
        if info.islnk():  # a hard link names a member, counted from the top
            link = os.path.relpath(info.linkname, PurePosixPath(info.name).parent)
        member = _Member(
            path=PurePosixPath(info.name), size=info.size, mode=info.mode, link=link, folder=info.isdir()
        )
        yield member, partial(_opened, archive, info)


def _opened(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    opened = archive.extractfile(info)
    assert opened is not None  # it is a file
    return opened


def _unpack(
    members: Members,
    folder: Path,
    *,
    name: str,
    reserve: int,
    stop: threading.Event,
    progress: Progress,
) -> None:
    done = 0
    links: list[tuple[Path, str]] = []
    progress.say(f"unpacking {name}")
    for count, (member, open_it) in enumerate(members):
        if count >= MAX_MEMBERS or done + member.size > MAX_BYTES:
            raise StalledError(
                f"unpacking {name}: more than {MAX_MEMBERS} members or {MAX_BYTES // 1024**3} GiB: see who made it"
            )
        target = _inside(folder, member.path, name)
        if target == folder or member.folder:
            target.mkdir(mode=0o755, parents=True, exist_ok=True)
            continue
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if member.link is not None:
            links.append((target, _link(folder, target, member.link, name)))
            continue
        require_space(folder, member.size, reserve=reserve, what=f"unpacking {name}")
        with open_it() as source:
            _write(source, target, member, name, stop)
        done += member.size
        progress.bytes(done)
    _make_links(folder, links, name)


def _make_links(folder: Path, links: list[tuple[Path, str]], name: str) -> None:
    """Last, so that nothing was written through one. One that leads out over another is seen only when both are there."""
    for target, link in links:
        target.unlink(missing_ok=True)
        target.symlink_to(link)
    for target, link in links:
        try:
            inside = target.resolve().is_relative_to(folder.resolve())
        except (OSError, RuntimeError):  # a circle
            inside = False
        if not inside:
            raise _leads_out(target, link, name)


def _inside(folder: Path, path: PurePosixPath, name: str) -> Path:
    if path.is_absolute() or ".." in path.parts or any("\0" in part for part in path.parts):
        raise StalledError(
            f"unpacking {name}: its member {str(path)!r:.100} leads out of the directory: nothing of it is used"
        )
    return folder.joinpath(*path.parts)


def _link(folder: Path, target: Path, link: str, name: str) -> str:
    leads = os.path.normpath(target.parent / link)
    if PurePosixPath(link).is_absolute() or not Path(leads).is_relative_to(folder):
        raise _leads_out(target, link, name)
    return link


def _leads_out(target: Path, link: str, name: str) -> StalledError:
    return StalledError(
        f"unpacking {name}: its link {target.name!r:.100} leads out of the directory, to {link!r:.100}: nothing of it is used"
    )


def _write(source: IO[bytes], target: Path, member: _Member, name: str, stop: threading.Event) -> None:
    """At most what the member says of itself: a compressed one may hold more than it admits."""
    left = member.size
    target.unlink(missing_ok=True)
    with target.open("xb") as sink:
        while data := source.read(min(CHUNK, left + 1)):
            if stop.is_set():
                raise Stopped
            left -= len(data)
            if left < 0:
                raise StalledError(f"unpacking {name}: {target.name} is longer than it says: see who made it")
            sink.write(data)
    if left:
        raise StalledError(f"unpacking {name}: {target.name} is shorter than it says: see who made it")
    executable = bool(member.mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))
    target.chmod(0o755 if executable else 0o644)
