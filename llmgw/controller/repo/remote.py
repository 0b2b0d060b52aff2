"""Where a repository is. An address says where and nothing else: never who is asking, never a password."""

import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llmgw.model.ids import digest
from llmgw.model.problems import InvalidError, Problem
from llmgw.model.struct import Struct
from llmgw.redaction import without_userinfo

_SCP = re.compile(r"^(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!//)[^\s]+$")


class Remote(Struct):
    """A repository to read from or write to. A local path is a remote like any other.

    ``trusted`` says that a person named it: only then git may touch a local repository that belongs to another user.
    """

    address: str
    trusted: bool = True

    @property
    def local(self) -> Path | None:
        return Path(self.address) if self.address.startswith("/") else None

    @property
    def key(self) -> str:
        """Names its refs in the mirror."""
        return digest(self.address)[:8]

    @property
    def place(self) -> tuple[str, str]:
        """Host and path, whoever asks and however: the same for all addresses of one repository. The host of a local one is empty."""
        if self.local is not None:
            host, path = "", self.address
        elif "://" in self.address:
            parts = urlsplit(self.address)
            host, path = parts.hostname or "", parts.path
        else:
            host, _, path = self.address.rpartition("@")[2].partition(":")
        return host.lower(), path.strip("/").removesuffix("/.git").removesuffix(".git")

    def program(self, service: str) -> tuple[str, ...]:
        """Options for a local repository of another user: git's half there trusts it too. ``service`` is ``upload-pack``
        or ``receive-pack``."""
        if self.local is None or not self.trusted:
            return ()
        trust = shlex.quote(f"safe.directory={self.local}")
        trust_inner = shlex.quote(f"safe.directory={self.local / '.git'}")
        return (f"--{service}=git -c {trust} -c {trust_inner} {service}",)

    def __str__(self) -> str:
        return without_userinfo(self.address)


def remote_of(location: str, *, base: Path, what: str = "repo", trusted: bool = True) -> Remote:
    """A path (relative to ``base``), ``file://``, ``https://``, ``ssh://`` or ``user@host:path``.

    Raises InvalidError for anything else: other protocols send in clear or run programs."""
    text = location.strip()
    if text.startswith("-") or not text or any(ord(c) < 32 for c in text):
        raise _refused(text, what, "write a path or an address such as ssh://git@host/fleet.git")
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme == "file":
        return Remote(address=str(Path(unquote(urlsplit(text).path)).resolve()), trusted=trusted)
    if scheme == "https":
        return _https(text, what, trusted=trusted)
    if scheme == "ssh":
        return _ssh(text, what, trusted=trusted)
    if scheme:
        raise _refused(text, what, "only ssh, https and local paths are used")
    if "::" in text.partition("/")[0]:
        raise _refused(text, what, "remote helpers are never run; use ssh, https or a local path")
    if _SCP.match(text) and not (base / text).exists():
        return Remote(address=text, trusted=trusted)
    return Remote(address=str((base / Path(text).expanduser()).resolve()), trusted=trusted)


def _https(text: str, what: str, *, trusted: bool) -> Remote:
    parts = _parts(text, what)
    if parts.username is not None or parts.password is not None:
        host = parts.netloc.rpartition("@")[2]
        raise _refused(
            text,
            what,
            f"everybody who sees an address would see the password: write {what}: https://{host}{parts.path} and token: "
            "{fromFile: /etc/llmgw/token} (with tokenUser: NAME, where the host wants a certain one); if a token stood here, "
            "make a new one",
        )
    return Remote(address=text, trusted=trusted)


def _ssh(text: str, what: str, *, trusted: bool) -> Remote:
    parts = _parts(text, what)
    if parts.password is not None:
        raise _refused(text, what, "ssh uses keys: leave the password out, and name a key with gitIdentity")
    if (parts.username or "").startswith("-") or parts.hostname.startswith("-"):
        raise _refused(text, what, "neither a user nor a host begins with a dash")
    return Remote(address=text, trusted=trusted)


class _Parts(Struct, kw_only=False):
    netloc: str
    hostname: str
    path: str
    username: str | None
    password: str | None


def _parts(text: str, what: str) -> _Parts:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as wrong:
        raise _refused(text, what, f"the address is not whole: {wrong}") from wrong
    if not parts.hostname:
        raise _refused(text, what, "the host is missing")
    return _Parts(parts.netloc, parts.hostname, parts.path, parts.username, parts.password)


def _refused(text: str, what: str, instead: str) -> InvalidError:
    return InvalidError((Problem(what=f"{what}: {without_userinfo(text)!r} can't be used", instead=instead),))
