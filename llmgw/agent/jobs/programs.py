"""Where the program of an engine lies that somebody else has put on the node: where it is started, or a directory or two
below; of several builds one for CUDA, where there are GPUs to use it."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

DEPTH = 2
MAX_ENTRIES = 10_000
MAX_LOOKED_INTO = 1024**3
_LIBRARIES = ("", "../lib", "../lib64")
_MARKS = (b"libcudart.so", b"libcuda.so", b"ggml_cuda")


def find_program(started: Path, *, below: Path, name: str | None, gpus: bool) -> Path | None:
    """The program whose help tells most of ``below``: ``started`` itself if it is there. None: nothing is."""
    if _runs(started):
        return started
    if name is None or not below.is_dir():
        return None
    found = sorted(_below(below, name), key=lambda path: (len(path.parts), str(path)))
    if gpus:
        found.sort(key=lambda path: not for_cuda(path))
    return next(iter(found), None)


def for_cuda(program: Path) -> bool:
    """Whether a build computes on NVIDIA GPUs: by the library beside it, or by what is linked into it."""
    for folder in _LIBRARIES:
        if any((program.parent / folder).glob("libggml-cuda*")):
            return True
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as seen:
            return any(seen.find(mark, 0, MAX_LOOKED_INTO) >= 0 for mark in _MARKS)
    except (OSError, ValueError):
        return False


def _below(folder: Path, name: str) -> Iterator[Path]:
    """Breadth first, and not for ever: somebody may have named the root of a disk."""
    left, waiting = MAX_ENTRIES, [(folder, 0)]
    while waiting:
        at, depth = waiting.pop(0)
        try:
            entries = sorted(os.scandir(at), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            left -= 1
            if left < 0:
                return
            if entry.name == name and _runs(Path(entry.path)):
                yield Path(entry.path)
            elif depth < DEPTH and entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), depth + 1))


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
