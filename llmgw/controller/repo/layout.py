"""The record as files of the state branch, and back: which file holds what, and which have changed. Pure.

==================================  =====================================================================
record.json                         the head: fleet, serial, commit, models, the last pass
replicas/<model>/<replica>.json     one replica: spec, placement, reasons, phase
nodes/<node>.json                   what plans use of a node without asking it
endpoints.json                      where the ready replicas are: what a gateway reads
weights.json                        what is known of the models' weights, and what they were seen to take
plan.json                           the plan of a pass that has begun and has not told its outcome
==================================  =====================================================================
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Raw

from llmgw.model.ids import Commit, FleetId
from llmgw.model.plan import Plan
from llmgw.model.record import (
    FORMAT,
    Build,
    Endpoint,
    Forgotten,
    GivenUp,
    ModelRecord,
    NodeRecord,
    PassRecord,
    Record,
    ReplicaRecord,
    ReplicaSpec,
    Setback,
)
from llmgw.model.struct import Struct, field, fields
from llmgw.model.weights import Measured, Weights
from llmgw.wire.codec import CodecError, dumps_readable, loads

T = TypeVar("T")

HEAD = "record.json"
ENDPOINTS = "endpoints.json"
PLAN = "plan.json"
WEIGHTS = "weights.json"
REPLICAS = "replicas/"
NODES = "nodes/"
MAX_FILES = 100_000
MAX_BYTES = 256 * 1024 * 1024  # of all files together; 3,000 replicas and 1,000 nodes are about 15 MB

_PATH = re.compile(
    r"^(record|endpoints|plan|weights)\.json$|^replicas/[^/]+/[^/]+\.json$|^nodes/[^/]+\.json$"
)
_SAFE = re.compile(r"^[a-z0-9][a-z0-9.-]*$")


class LayoutError(ValueError):
    """A file of the record that can't be read; ``file`` says which."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{file}: {what}")
        self.file = file
        self.what = what


class NewerFormatError(ValueError):
    """A record written by a newer llmgw."""

    def __init__(self, found: int, written_by: str) -> None:
        super().__init__(
            f"format {found}, written by llmgw {written_by or '?'}; this one reads up to {FORMAT}"
        )


class Head(Struct):
    """record.json."""

    format: int
    fleet: FleetId
    serial: int
    commit: Commit | None = None
    partial: Commit | None = None
    keeps_removed: bool = False  # prune.enabled was false when that commit was applied
    key_id: str = ""
    tool_version: str = ""
    last_pass: PassRecord | None = None
    given_up: tuple[GivenUp, ...] = ()
    forgotten: Mapping[str, Forgotten] = field(default_factory=dict)
    setbacks: Mapping[str, Setback] = field(default_factory=dict)
    spent_plans: tuple[str, ...] = ()
    builds: tuple[Build, ...] = ()
    models: Mapping[str, ModelRecord] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


class Endpoints(Struct):
    """endpoints.json."""

    format: int
    endpoints: tuple[Endpoint, ...] = ()


class Sizes(Struct):
    """weights.json; absent where nothing is known."""

    format: int
    weights: Mapping[str, Weights] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)


class Kept(Struct):
    """Everything that one commit of the state branch holds."""

    record: Record
    plan: Plan | None = None


def is_ours(path: str) -> bool:
    """Whether a file of the branch belongs to the record; others are left alone."""
    return _PATH.match(path) is not None


# ---- writing -----------------------------------------------------------------------------------------------


def changes(old: Kept | None, new: Kept) -> dict[str, bytes | None]:
    """The files to write, and those to remove (None), to come from ``old`` to ``new``. ``old`` None: write all."""
    before = _parts(old) if old else {}
    after = _parts(new)
    files: dict[str, bytes | None] = {
        path: dumps_readable(value) for path, value in after.items() if before.get(path) != value
    }
    files.update(dict.fromkeys(before.keys() - after.keys()))
    return dict(sorted(files.items()))


def _parts(kept: Kept) -> dict[str, object]:
    record = kept.record
    parts: dict[str, object] = {
        HEAD: Head(
            format=FORMAT,
            fleet=record.fleet,
            serial=record.serial,
            commit=record.commit,
            partial=record.partial,
            key_id=record.key_id,
            tool_version=record.tool_version,
            last_pass=record.last_pass,
            given_up=record.given_up,
            forgotten=dict(sorted(record.forgotten.items())),
            setbacks=record.setbacks,
            spent_plans=record.spent_plans,
            builds=record.builds,
            models=dict(sorted(record.models.items())),
            numbers=dict(sorted(record.numbers.items())),
        ),
        ENDPOINTS: Endpoints(format=FORMAT, endpoints=record.endpoints),
    }
    for replica in record.replicas.values():
        parts[f"{REPLICAS}{_safe(replica.model)}/{_safe(replica.id)}.json"] = replica
    for node in record.nodes.values():
        parts[f"{NODES}{_safe(node.name)}.json"] = node
    if record.weights or record.measured:
        parts[WEIGHTS] = Sizes(format=FORMAT, weights=record.weights, measured=record.measured)
    if kept.plan is not None:
        parts[PLAN] = kept.plan
    return parts


def _safe(name: str) -> str:
    """Names become file names; manifests allow nothing else, and here it is the last time to look."""
    if not _SAFE.match(name):
        raise ValueError(f"{name!r:.80} can't be the name of a file of the record")
    return name


# ---- reading -----------------------------------------------------------------------------------------------


def read(files: Mapping[str, bytes]) -> Kept:
    """Raises LayoutError naming the file that can't be read, NewerFormatError for a record of a newer llmgw."""
    if HEAD not in files:
        raise LayoutError(HEAD, "it is missing")
    head = _head(files[HEAD])
    reader = _Replicas()
    replicas = [reader.read(path, data) for path, data in sorted(files.items()) if path.startswith(REPLICAS)]
    nodes = [_read(NodeRecord, path, data) for path, data in sorted(files.items()) if path.startswith(NODES)]
    _check_names(files, replicas, nodes)
    plan = _read(Plan, PLAN, files[PLAN]) if PLAN in files else None
    sizes = _sizes(files)
    record = Record(
        fleet=head.fleet,
        serial=head.serial,
        commit=head.commit,
        partial=head.partial,
        keeps_removed=head.keeps_removed,
        key_id=head.key_id,
        tool_version=head.tool_version,
        models=head.models,
        numbers=head.numbers,
        replicas={replica.id: replica for replica in replicas},
        nodes={node.name: node for node in nodes},
        endpoints=_endpoints(files),
        weights=sizes.weights,
        measured=sizes.measured,
        last_pass=head.last_pass,
        given_up=head.given_up,
        forgotten=head.forgotten,
        setbacks=head.setbacks,
        spent_plans=head.spent_plans,
        builds=head.builds,
    )
    return Kept(record=record, plan=plan)


class _Version(Struct):
    """What the head of any format has."""

    format: int
    tool_version: str = ""


def _head(data: bytes) -> Head:
    with suppress(CodecError):  # the reading of all of it says where it is wrong
        seen = loads(_Version, data, strict=False)
        if seen.format > FORMAT:
            raise NewerFormatError(seen.format, seen.tool_version)
    return _read(Head, HEAD, data)


def _endpoints(files: Mapping[str, bytes]) -> tuple[Endpoint, ...]:
    if ENDPOINTS not in files:
        raise LayoutError(ENDPOINTS, "it is missing")
    return _read(Endpoints, ENDPOINTS, files[ENDPOINTS]).endpoints


def _sizes(files: Mapping[str, bytes]) -> Sizes:
    if WEIGHTS not in files:
        return Sizes(format=FORMAT)
    return _read(Sizes, WEIGHTS, files[WEIGHTS])


def _read(kind: type[T], path: str, data: bytes) -> T:
    try:
        return loads(kind, data, strict=False)
    except CodecError as wrong:
        raise LayoutError(path, str(wrong)) from wrong


_OTHERS = tuple(one.name for one in fields(ReplicaRecord) if one.name != "spec")


class _File(ReplicaRecord):
    """A replica whose spec is not read yet."""

    spec: Raw  # type: ignore[assignment] # as it stands in the file


class _Replicas:
    """Reads them. Most of one model run one spec, which is two thirds of their files: the same text is read once, and shared."""

    def __init__(self) -> None:
        self._specs: dict[bytes, ReplicaSpec] = {}

    def read(self, path: str, data: bytes) -> ReplicaRecord:
        try:
            file = loads(_File, data, strict=False)
            spec = self._spec(bytes(file.spec))
        except CodecError:  # read as a whole it says where it is wrong
            return _read(ReplicaRecord, path, data)
        return ReplicaRecord(spec=spec, **{name: getattr(file, name) for name in _OTHERS})

    def _spec(self, text: bytes) -> ReplicaSpec:
        known = self._specs.get(text)
        if known is None:
            known = self._specs[text] = loads(ReplicaSpec, text, strict=False)
        return known


def _check_names(
    files: Mapping[str, bytes], replicas: Sequence[ReplicaRecord], nodes: Sequence[NodeRecord]
) -> None:
    """A file that says it is another one was put there by hand: two would be one, and one would be lost."""
    expected = {f"{REPLICAS}{replica.model}/{replica.id}.json" for replica in replicas}
    expected |= {f"{NODES}{node.name}.json" for node in nodes}
    for path in files:
        if path.startswith((REPLICAS, NODES)) and path not in expected:
            raise LayoutError(path, "the name inside is not the file's")
