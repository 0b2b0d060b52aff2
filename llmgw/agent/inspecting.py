"""What lies at a weights' path, read from headers alone: how many bytes of which types, and the model's own settings.

Interprets nothing: what an architecture means for memory is the controller's affair. Every read is bounded, in a thread, and
remembered as long as the files stay as they are.
"""

import asyncio
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmgw.model.struct import replace
from llmgw.model.weights import MAX_CONFIG, Inspection
from llmgw.wire import gguf, safetensors

MAX_ENTRIES = 10_000
"""Entries of a directory that are looked at: a large model has a few hundred files."""
REMEMBERED = 256
CHUNK = 256 * 1024
OLDER = (".bin", ".pt", ".pth")
"""Weights without a header that could be read without loading them: their files' sizes are what is known."""
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
MAX_SPLITS = 1_000

_Stamp = tuple[tuple[str, int, int], ...]


class _Unusable(Exception):  # noqa: N818 - no error of the agent: it is what is told of the weights
    """Why they can't be used; the text is what is told."""


class Inspector:
    """Answers for many paths; one at a time, so that a slow disk is not made slower."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Stamp, Inspection]] = {}
        self._lock = asyncio.Lock()

    async def inspect(self, path: str) -> Inspection:
        """Never fails: what is wrong stands in ``problem``."""
        async with self._lock:
            return await asyncio.to_thread(self._inspect, path)

    def _inspect(self, path: str) -> Inspection:
        try:
            files = _files(Path(path))
            stamp = tuple((file.name, size, changed) for file, size, changed in files)
            known = self._known.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            found = look(path, {file.name: file for file, _, _ in files})
        except _Unusable as wrong:
            return Inspection(path=path, problem=str(wrong))
        except OSError as wrong:
            why = f"reading weights at {path}: {wrong.strerror}: give the agent's user the right to read them"
            return Inspection(path=path, problem=why)
        self._known.pop(path, None)
        self._known[path] = (stamp, found)
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return found


def _files(path: Path) -> list[tuple[Path, int, int]]:
    """The regular files there, by name: path, bytes, when they changed."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        raise _Unusable(f"nothing is at {path} on this node: copy the weights there") from None
    if stat.S_ISREG(kind):
        splits = _SPLIT.search(path.name)
        if splits is None:
            return [_entry(path)]
        count = min(int(splits[2]), MAX_SPLITS)
        names = (f"{path.name[: splits.start()]}-{n:05}-of-{splits[2]}.gguf" for n in range(1, count + 1))
        return _all_there(path.parent, names)
    if not stat.S_ISDIR(kind):
        raise _Unusable(f"{path} is neither a file nor a directory")
    found = []
    with os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_ENTRIES:
                raise _Unusable(f"{path} has more than {MAX_ENTRIES} entries: name the model's own directory")
            if entry.is_file():
                found.append(_entry(Path(entry.path)))
    return sorted(found)


def _entry(file: Path) -> tuple[Path, int, int]:
    seen = file.stat()
    return file, seen.st_size, seen.st_mtime_ns


def _all_there(folder: Path, names: Iterable[str]) -> list[tuple[Path, int, int]]:
    wanted = list(names)
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _Unusable(f"{folder} lacks {missing[0]}{more} of {len(wanted)} files: copy the whole model")
    return [_entry(folder / name) for name in wanted]


def look(path: str, files: Mapping[str, Path]) -> Inspection:
    """``files``: those that lie there, by name. Raises OSError."""
    config = files.get("config.json")
    base = Inspection(path=path, config=_text(config) if config is not None else None)
    tensors = _tensor_files(path, files)
    if tensors:
        return _safetensors(base, tensors)
    ggufs = [file for name, file in sorted(files.items()) if name.lower().endswith(".gguf")]
    if ggufs:
        return _gguf(base, ggufs)
    others = [file for name, file in sorted(files.items()) if name.lower().endswith(OLDER)]
    size = sum(file.stat().st_size for file in others)
    return replace(base, format="other", files=len(others), size=size)


def _text(file: Path) -> str:
    with file.open("rb") as stream:
        data = stream.read(MAX_CONFIG + 1)
    if len(data) > MAX_CONFIG:
        raise _Unusable(f"{file} is larger than {MAX_CONFIG} bytes: it is no model's config.json")
    return data.decode(errors="replace")


def _tensor_files(path: str, files: Mapping[str, Path]) -> list[Path]:
    """Those that the index names; without an index all, but not the second copy that some repositories hold."""
    index = files.get(safetensors.INDEX)
    if index is not None:
        with index.open("rb") as stream:
            data = stream.read(safetensors.MAX_INDEX + 1)
        try:
            _, names = safetensors.indexed(data)
        except safetensors.BadHeaderError as wrong:
            raise _Unusable(f"{index}: {wrong}: copy the model again") from wrong
        if apart := next((name for name in names if "/" in name), None):
            raise _Unusable(f"{index} names {apart:.200}, which is not beside it: copy the model again")
        return [file for file, _, _ in _all_there(Path(path), names)]
    found = [file for name, file in sorted(files.items()) if name.endswith(".safetensors")]
    rest = [file for file in found if not file.name.startswith("consolidated")]
    return (rest or found)[: safetensors.MAX_FILES]


def _safetensors(base: Inspection, files: list[Path]) -> Inspection:
    tensors: dict[str, int] = {}
    size = 0
    for file in files:
        try:
            with file.open("rb") as stream:
                length = safetensors.length(stream.read(safetensors.PREFIX))
                found = safetensors.tensor_bytes(stream.read(length))
                whole = os.fstat(stream.fileno()).st_size
        except safetensors.BadHeaderError as wrong:
            raise _Unusable(f"{file}: {wrong}: copy it again") from wrong
        needed = safetensors.PREFIX + length + sum(found.values())
        if whole != needed:  # no engine loads a file that its header does not tell in whole
            raise _Unusable(f"{file} has {whole} bytes, its header names {needed}: copy it again")
        size += whole
        for kind, count in found.items():
            tensors[kind] = tensors.get(kind, 0) + count
    return replace(
        base, format="safetensors", files=len(files), size=size, tensors=dict(sorted(tensors.items()))
    )


def _gguf(base: Inspection, files: list[Path]) -> Inspection:
    """One file, or all parts of one model: settings stand in the first."""
    if len(files) > 1 and not all(_SPLIT.search(file.name) for file in files):
        names = ", ".join(file.name for file in files[:3])
        raise _Unusable(f"{base.path} holds {len(files)} GGUF files ({names}): name the one to serve")
    parts: dict[str, int] = {}
    types: dict[str, int] = {}
    settings: Mapping[str, object] = {}
    for file in files:
        try:
            with file.open("rb") as stream:
                header = gguf.read(_Window(stream.fileno()))
        except gguf.BadHeaderError as wrong:
            raise _Unusable(f"{file}: {wrong}") from wrong
        except gguf.TooShortError as wrong:
            raise _Unusable(f"{file} ends within its header: copy it again") from wrong
        settings = settings or header.settings
        for total, found in ((parts, header.parts), (types, header.types)):
            for name, count in found.items():
                total[name] = total.get(name, 0) + count
    size = sum(file.stat().st_size for file in files)
    if size < sum(parts.values()):
        raise _Unusable(
            f"{base.path} has {size} bytes, its tensors need {sum(parts.values())}: copy it again"
        )
    return replace(
        base,
        format="gguf",
        files=len(files),
        size=size,
        tensors=dict(sorted(types.items())),
        parts=parts,
        metadata=settings,
    )


class _Window:
    """A file's beginning as the header's reader wants it, never more than a chunk of it in memory."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = min(os.fstat(descriptor).st_size, gguf.MAX_HEADER)
        self._begin = 0
        self._chunk = b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, wanted: slice) -> bytes:
        begin, end = wanted.start, wanted.stop
        if not self._begin <= begin <= end <= self._begin + len(self._chunk):
            self._begin = begin
            self._chunk = os.pread(self._descriptor, max(CHUNK, end - begin), begin)
        return self._chunk[begin - self._begin : end - self._begin]
