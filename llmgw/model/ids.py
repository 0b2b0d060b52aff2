"""Names, digests and the fence: how things are called, so that two parties mean the same thing.

A replica id says what it is: ``chat-1f0c9a2b-0.3`` is the third placement of ordinal 0 of the model that was
first called ``chat``, running the spec whose digest begins with ``1f0c9a2b``. Numbers only grow, so a late
command about an old copy can never touch a new one.
"""

import hashlib
import json
import re
from typing import Any, NewType

from llmgw.model.struct import Struct

FleetId = NewType("FleetId", str)
ReplicaId = NewType("ReplicaId", str)
ShardId = NewType("ShardId", str)
JobId = NewType("JobId", str)
Digest = NewType("Digest", str)  # 64 hex digits, SHA-256
Commit = NewType("Commit", str)  # 40 (or 64) hex digits

NAME_PATTERN = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
"""Names of manifests: what fits a DNS label with dots, so that they can be file names and host names."""

_REPLICA = re.compile(
    r"^(?P<prefix>[a-z0-9][a-z0-9.-]*)-(?P<digest8>[0-9a-f]{8})-(?P<ordinal>\d+)\.(?P<n>\d+)$"
)
_SHARD = re.compile(r"^(?P<replica>.+)-r(?P<rank>\d+)$")


class ReplicaName(Struct):
    """A replica id, taken apart."""

    prefix: str
    digest8: str
    ordinal: int
    n: int  # placements of this ordinal so far, this one included; from 1

    def __str__(self) -> str:
        return f"{self.prefix}-{self.digest8}-{self.ordinal}.{self.n}"


def replica_id(*, prefix: str, spec_digest: str, ordinal: int, n: int) -> ReplicaId:
    return ReplicaId(str(ReplicaName(prefix=prefix, digest8=spec_digest[:8], ordinal=ordinal, n=n)))


def parse_replica_id(text: str) -> ReplicaName | None:
    """None when the text is no replica id."""
    found = _REPLICA.match(text)
    if found is None:
        return None
    return ReplicaName(
        prefix=found["prefix"], digest8=found["digest8"], ordinal=int(found["ordinal"]), n=int(found["n"])
    )


def shard_id(replica: str, rank: int) -> ShardId:
    return ShardId(f"{replica}-r{rank}")


def parse_shard_id(text: str) -> tuple[ReplicaId, int] | None:
    """Replica id and rank; None when the text is no shard id."""
    found = _SHARD.match(text)
    if found is None or parse_replica_id(found["replica"]) is None:
        return None
    return ReplicaId(found["replica"]), int(found["rank"])


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""Made once: ``json.dumps`` makes one for every call that asks for another form than the usual."""


def digest(value: Any) -> Digest:
    """SHA-256 of a JSON value in one canonical form: sorted keys, no spaces, UTF-8."""
    return Digest(hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest())


def key_id(secret: bytes) -> str:
    """Names a fleet secret without telling it: 8 hex digits of its hash."""
    return hashlib.sha256(b"llmgw key id\0" + secret).hexdigest()[:8]


class Fence(Struct):
    """Carried by every mutating command. Agents refuse a lower serial, and the same serial with another
    intent commit: a controller that slept through its lease can do no harm."""

    fleet: FleetId
    serial: int
    intent: Commit
