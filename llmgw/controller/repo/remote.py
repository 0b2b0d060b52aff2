"""Where a repository is, as git is told and as people are told: the two differ where a URL holds a password."""

import base64
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from llmgw.model.ids import digest
from llmgw.model.problems import InvalidError, Problem
from llmgw.redaction import without_userinfo

_SCP = re.compile(r"^(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!//)[^\s]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A repository to read from or write to. A local path is a remote like any other.

    ``trusted`` says that a person named it: only then git may touch a local repository that belongs to another user.
    """

    address: str  # what git gets; never holds a password
    header: str | None = field(default=None, repr=False)  # stands in for the password of an https URL
    trusted: bool = True

    @property
    def local(self) -> Path | None:
        return Path(self.address) if self.address.startswith("/") else None

    @property
    def key(self) -> str:
        """Names its refs in the mirror."""
        return digest(self.address)[:8]

    @property
    def config(self) -> tuple[tuple[str, str], ...]:
        """Settings for every call that talks to it: by environment, so that the password is in no argv."""
        if self.header is None:
            return ()
        return ((f"http.{self.address}.extraHeader", self.header),)

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
        if urlsplit(text).password is not None:
            raise _refused(text, what, "ssh uses keys: leave the password out")
        return Remote(address=text, trusted=trusted)
    if scheme:
        raise _refused(text, what, "only ssh, https and local paths are used")
    if "::" in text.partition("/")[0]:
        raise _refused(text, what, "remote helpers are never run; use ssh, https or a local path")
    if _SCP.match(text) and not (base / text).exists():
        return Remote(address=text, trusted=trusted)
    return Remote(address=str((base / Path(text).expanduser()).resolve()), trusted=trusted)


def _https(text: str, what: str, *, trusted: bool) -> Remote:
    parts = urlsplit(text)
    if not parts.hostname:
        raise _refused(text, what, "the host is missing")
    if parts.username is None:
        return Remote(address=text, trusted=trusted)
    host = parts.netloc.rpartition("@")[2]
    address = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    header = f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}"
    return Remote(address=address, header=header, trusted=trusted)


def _refused(text: str, what: str, instead: str) -> InvalidError:
    return InvalidError((Problem(what=f"{what}: {without_userinfo(text)!r} can't be used", instead=instead),))
