"""Whether the machine that answers is the one that the manifest means. Pure: keys in, an error or nothing out."""

import base64
import binascii
import hashlib
from collections.abc import Sequence

from llmgw.model.problems import StalledError, Where
from llmgw.model.struct import Struct


class HostKey(Struct):
    """A public key as ssh-keyscan prints it, without the host name."""

    kind: str  # ssh-ed25519, ssh-rsa, ecdsa-sha2-nistp256, …
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ``ssh-keygen -lf`` shows it."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest}"

    @property
    def line(self) -> str:
        """As it stands in a manifest."""
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"


def parse(line: str) -> HostKey:
    """Raises ValueError saying what is wrong with the line."""
    kind, _, rest = line.strip().partition(" ")
    words = rest.split()
    if not words:
        raise ValueError("write the key's type and the key: ssh-ed25519 AAAA…")
    try:
        blob = base64.b64decode(words[0], validate=True)
    except binascii.Error as wrong:
        raise ValueError(f"the key is not whole: {wrong}") from wrong
    inside = blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii", errors="replace")
    if inside != kind:
        raise ValueError(f"it calls itself {kind}, and the key is of type {inside[:40] or 'unknown'}")
    return HostKey(kind=kind, blob=blob)


class Pinned(Struct):
    """The keys that a manifest names for one machine, and how messages call the place."""

    keys: tuple[HostKey, ...]
    where: Where
    field: str  # ssh.hostKeys

    def check(self, shown: HostKey, *, node: str, machine: str) -> None:
        """Raises StalledError unless ``shown`` is pinned."""
        if shown in self.keys:
            return
        if not self.keys:
            raise StalledError(
                f"node {node}: connecting to {machine}: {self.where} pins no key of it in {self.field}, so nothing tells it from"
                f" another machine: it shows {shown}; if `ssh-keygen -lf` says the same on that machine, write {self.field}:"
                f' ["{shown.line}"] (`llmgw node add` does)'
            )
        expected = " or ".join(str(key) for key in self.keys)
        raise StalledError(
            f"node {node}: connecting to {machine}: it shows {shown}, and {self.where} expects {expected}: if the machine was"
            f' installed anew, put "{shown.line}" into {self.field}; if not, somebody else answers in its place'
        )


def pinned(lines: Sequence[str], *, where: Where, field: str, node: str) -> Pinned:
    """Raises StalledError for a line that is no key."""

    def key(number: int, line: str) -> HostKey:
        try:
            return parse(line)
        except ValueError as wrong:
            raise StalledError(f"node {node}: {where}: {field}[{number}]: {wrong}") from wrong

    keys = tuple(key(number, line) for number, line in enumerate(lines))
    return Pinned(keys=keys, where=where, field=field)
