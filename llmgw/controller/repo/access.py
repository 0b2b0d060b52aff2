"""How this controller proves itself to Git hosts, and how they prove themselves to it.

Git gets all of it by its environment or an open file: nothing secret stands in an argument, an address, a file on disk or an
environment variable. A token goes to one host only, whatever that host redirects to.
"""

import dataclasses
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from llmgw.controller.nodes.ssh import hostkeys
from llmgw.controller.nodes.ssh.hostkeys import HostKey
from llmgw.controller.repo.remote import Remote
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct, field

SSH_OPTIONS: Final = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    "ForwardAgent=no",
    "PermitLocalCommand=no",
    "ConnectTimeout=10",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",  # a dead line ends by itself, even with nobody watching
)
PROTOCOLS: Final = "ssh:https:file"
USER: Final = "llmgw"
"""Beside a token whose user is not told: most hosts look at the token only."""
_ALIAS: Final = "llmgw-git-host"
"""The name that pinned keys stand under, whatever the host is called in an address or in ssh's own configuration."""
_SHOWN = re.compile(
    r"fingerprint for the (?P<kind>\S+) key sent by the remote host is\s+(?P<print>SHA256:\S+)"
)
_OFFENDING = re.compile(r"Offending \S+ key in (?P<file>.+):(?P<line>\d+)\s*$", re.MULTILINE)
_NONE_KNOWN = re.compile(r"No (?P<kind>\S+) host key is known for (?P<host>\S+)")
_MAX_KNOWN_HOSTS: Final = 4 * 1024 * 1024  # bytes


class Pins(Struct):
    """Keys that Git hosts may show. ``where`` says who wrote them; ``file`` is written by us, for ssh to read."""

    keys: tuple[HostKey, ...]
    where: str  # /etc/llmgw/llmgw.yaml:4:1
    file: Path


class Way(Struct):
    """What one call of git gets so that it can talk to a host."""

    config: tuple[tuple[str, str], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What an https host wants to see. ``value`` is asked for each time, so that a new one counts at once."""

    value: Callable[[], str] = dataclasses.field(repr=False)
    user: str = USER


class Access(Struct):
    """``identity``: the only private key that is shown, None: what the user's ssh would show. ``pins`` None: the user's
    known_hosts. ``tokens`` by the address of the repository that each is for; it goes to that host only. ``ca_file``: the only
    authorities that are believed, None: the system's."""

    identity: Path | None = None
    pins: Pins | None = None
    tokens: Mapping[str, Token] = field(default_factory=dict)
    ca_file: Path | None = None

    @contextmanager
    def toward(self, remote: Remote | None) -> Iterator[Way]:
        """None: nobody is talked to, and git may not. StalledError for a file that was named and can't be read."""
        if remote is None:
            yield Way(variables={"GIT_ALLOW_PROTOCOL": "none"})
            return
        variables = {"GIT_ALLOW_PROTOCOL": PROTOCOLS}
        if remote.local is not None:
            yield Way(variables=variables)
            return
        host = https_host(remote.address)
        if not host:
            yield Way(variables={**variables, "GIT_SSH_COMMAND": self._ssh(), "GIT_SSH_VARIANT": "ssh"})
            return
        if self.ca_file is not None:
            _readable(self.ca_file, "caFile", remote)
            variables["GIT_SSL_CAINFO"] = str(self.ca_file)
        token = self.tokens.get(remote.address)
        if token is None:
            yield Way(variables=variables)
            return
        descriptor = _in_memory(f"username={token.user}\npassword={token.value()}\n")
        try:
            helper = f'!f() {{ test "$1" = get && cat /dev/fd/{descriptor}; }}; f'
            yield Way(
                config=(("credential.helper", ""), (f"credential.https://{host}.helper", helper)),
                variables=variables,
                descriptors=(descriptor,),
            )
        finally:
            os.close(descriptor)

    def host_trouble(self, words: str) -> str:
        """What ssh's refusal of a host comes to, with both fingerprints and who says so; empty: nothing of that."""
        none_known = _NONE_KNOWN.search(words)
        shown = _SHOWN.search(words)
        if shown is None and none_known is None:
            return ""
        shows = (
            f"the host shows {shown['kind']} {shown['print'].rstrip('.')}"
            if shown
            else f"the host shows a key of type {none_known['kind'] if none_known else 'unknown'}"
        )
        if self.pins is not None:
            expected = " or ".join(str(key) for key in self.pins.keys)
            return f"{shows}, and {self.pins.where} expects {expected}"
        if (place := _OFFENDING.search(words)) is not None:
            return f"{shows}, and {place['file']}:{place['line']} expects {_known(place)}"
        return f"{shows}, and no key of it is known"

    def _ssh(self) -> str:
        options = list(SSH_OPTIONS)
        identity: tuple[str, ...] = ()
        if self.identity is not None:
            _readable(self.identity, "the key for the Git host", None)
            identity = ("-i", str(self.identity))
            options.append("IdentitiesOnly=yes")
        if self.pins is not None:
            _write_pins(self.pins)
            options += [
                f"UserKnownHostsFile={_ssh_path(self.pins.file)}",
                "GlobalKnownHostsFile=/dev/null",
                "KnownHostsCommand=none",
                "VerifyHostKeyDNS=no",
                f"HostKeyAlias={_ALIAS}",
            ]
        return shlex.join(["ssh", *identity, *(word for option in options for word in ("-o", option))])


def https_host(address: str) -> str:
    """``host`` or ``host:port`` of an https address, as git's credential settings name it; empty for others."""
    parts = urlsplit(address)
    return parts.netloc if parts.scheme == "https" else ""


def _in_memory(text: str) -> int:
    """A file on no disk, which git's helper reads as often as it is asked."""
    descriptor = os.memfd_create("llmgw-token")
    try:
        os.write(descriptor, text.encode())
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _readable(path: Path, name: str, remote: Remote | None) -> None:
    about = f" of {remote}" if remote is not None else ""
    try:
        with path.open("rb"):
            pass
    except OSError as wrong:
        raise StalledError(
            f"reading {name}{about} {path}: {wrong.strerror or wrong}: put it there, or let this user read it"
        ) from wrong


def _write_pins(pins: Pins) -> None:
    text = "".join(f"{_ALIAS} {key.line}\n" for key in pins.keys)
    try:
        if pins.file.exists() and pins.file.read_text() == text:
            return
        pins.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = pins.file.with_name(f".{pins.file.name}.{os.getpid()}")
        beside.write_text(text)
        beside.rename(pins.file)
    except OSError as wrong:
        raise StalledError(
            f"writing the Git host's keys to {pins.file}: {wrong.strerror or wrong}: let this user write there, or choose "
            "another stateDir"
        ) from wrong


def _ssh_path(path: Path) -> str:
    """In this option ssh splits at blanks and expands ``%``."""
    return '"' + str(path).replace("%", "%%") + '"'


def _known(place: "re.Match[str]") -> str:
    """The key at a line of known_hosts that ssh has named."""
    try:
        with Path(place["file"]).open("rb") as file:
            lines = file.read(_MAX_KNOWN_HOSTS).decode("utf-8", "replace").splitlines()
        words = lines[int(place["line"]) - 1].split()
        start = 2 if words[0].startswith("@") else 1
        return str(hostkeys.parse(" ".join(words[start : start + 2])))
    except (OSError, IndexError, ValueError):
        return "another key"
