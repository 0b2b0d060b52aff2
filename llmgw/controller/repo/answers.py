"""What git writes, taken apart. Pure: no process is started here."""

from collections.abc import Mapping, Sequence

from llmgw.controller.repo.refs import is_commit
from llmgw.model.ids import Commit
from llmgw.model.struct import Struct


class Entry(Struct):
    """One entry of a tree."""

    mode: str
    kind: str  # blob | tree | commit
    object: str
    path: str


class Listing(Struct):
    """A remote's refs as it told them: full name -> commit. ``head`` is the branch that its HEAD names."""

    refs: Mapping[str, Commit]
    head: str | None


class MissingError(Exception):
    """An object that should be here is not; the message is its id."""


def listing(text: str, *, wanted: frozenset[str]) -> Listing:
    """Of ``ls-remote --symref``; ``wanted`` empty: every branch."""
    refs: dict[str, Commit] = {}
    head = None
    for line in text.splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: ") and name == "HEAD":
            head = value.removeprefix("ref: ")
        elif is_commit(value) and (name in wanted or (not wanted and name.startswith("refs/heads/"))):
            refs[name] = Commit(value)
    return Listing(refs=refs, head=head)


def entries(out: bytes) -> tuple[Entry, ...]:
    """Of ``ls-tree -z``."""
    return tuple(_entry(line) for line in out.decode("utf-8", "surrogateescape").split("\0") if line)


def _entry(line: str) -> Entry:
    facts, _, path = line.partition("\t")
    mode, kind, object_id = facts.split(" ")
    return Entry(mode=mode, kind=kind, object=object_id, path=path)


def lines(objects: Sequence[str]) -> bytes:
    """What cat-file is asked with."""
    return ("\n".join(objects) + "\n").encode()


def sizes(out: bytes) -> dict[str, int]:
    """Of ``cat-file --batch-check`` with name and size."""
    found: dict[str, int] = {}
    for line in out.decode().splitlines():
        object_id, _, size = line.partition(" ")
        if size == "missing":
            raise MissingError(object_id)
        found[object_id] = int(size)
    return found


def contents(out: bytes, wanted: Sequence[str]) -> dict[str, bytes]:
    """Of ``cat-file --batch`` that was asked for these."""
    found: dict[str, bytes] = {}
    position = 0
    for object_id in wanted:
        end = out.index(b"\n", position)
        header = out[position:end].split()
        if header[-1] == b"missing":
            raise MissingError(object_id)
        size = int(header[2])
        found[object_id] = out[end + 1 : end + 1 + size]
        position = end + 1 + size + 1
    return found
