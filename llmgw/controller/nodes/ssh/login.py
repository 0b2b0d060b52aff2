"""Where a connection goes and as whom: from a node's manifest, and from ``~/.ssh/config`` when the manifest asks for it.

The manifest wins over the file. A user or port that the manifest leaves at its default is taken from the file if it says one.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llmgw.controller.nodes.ssh import hostkeys
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import Ssh
from llmgw.model.problems import StalledError, Where
from llmgw.model.struct import Struct, replace

CONFIG: Final = ".ssh/config"
MAX_CONFIG: Final = 1024 * 1024
MAX_HOPS: Final = 4
_DESTINATION: Final = re.compile(
    r"^(?:(?P<user>[^@\s]+)@)?(?:\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^\s:@\[\]]+))(?::(?P<port>\d{1,5}))?$"
)


class Credentials(Struct):
    """What we may show: a private key file, and the keys of the ssh-agent at a socket."""

    identity: Path | None = None
    agent: str | None = None


class Hop(Struct):
    """One machine on the way; the last one is the node."""

    host: str
    port: int
    user: str
    pinned: hostkeys.Pinned
    credentials: Credentials

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" if self.port == 22 else f"{self.user}@{host}:{self.port}"


class Login(Struct):
    """A whole way to a node. Two nodes with the same are the same machine to us, and one node whose manifest changes its
    way gets a new connection."""

    node: str
    hops: tuple[Hop, ...]
    sudo: bool

    @property
    def target(self) -> Hop:
        return self.hops[-1]


class Surroundings(Struct):
    """What of the controller's own machine a login may depend on. ``identity`` is for nodes that name none."""

    home: Path
    environ: Mapping[str, str]
    identity: Path | None = None

    def path(self, written: str) -> Path:
        """Relative paths count from the home directory, as ssh has it."""
        return self.home / written.removeprefix("~/")


def login_of(node: DesiredNode, around: Surroundings) -> Login:
    """Raises StalledError naming the manifest and the field where the way can't be told."""
    ssh = node.spec.ssh
    if ssh is None:
        raise StalledError(f"node {node.name}: {node.where} has no ssh: write ssh: {{host: …}}")
    given = _Given.of(node, ssh, around)
    hops = [_jump(word, ssh, node, given) for word in given.jumps]
    pins = hostkeys.pinned(ssh.host_keys, where=node.where, field="ssh.hostKeys", node=node.name)
    target = Hop(
        host=given.host, port=given.port, user=given.user, pinned=pins, credentials=given.credentials
    )
    return Login(node=node.name, hops=(*hops, target), sudo=ssh.become == "sudo")


class _Given(Struct):
    """Manifest and configuration file put together."""

    host: str
    port: int
    user: str
    credentials: Credentials
    jumps: tuple[str, ...]

    @classmethod
    def of(cls, node: DesiredNode, ssh: Ssh, around: Surroundings) -> "_Given":
        identity = around.path(ssh.identity.from_file) if ssh.identity else around.identity
        given = cls(
            host=ssh.host,
            port=ssh.port,
            user=ssh.user,
            credentials=Credentials(
                identity=identity, agent=_agent_socket(node, around) if ssh.agent else None
            ),
            jumps=(ssh.jump,) if ssh.jump else (),
        )
        if not ssh.config:
            return given
        said = _configured(ssh.host, around, node=node.name)
        identities = said.get("identityfile") or ()
        if ssh.identity is None and identities:
            given = replace(
                given, credentials=replace(given.credentials, identity=around.path(identities[0]))
            )
        jump = str(said.get("proxyjump") or "none")
        if not ssh.jump and jump.lower() != "none":
            given = replace(given, jumps=tuple(word.strip() for word in jump.split(",")))
        default = Ssh(host=ssh.host)
        return replace(
            given,
            host=str(said.get("hostname") or ssh.host),
            port=int(str(said["port"])) if ssh.port == default.port and "port" in said else ssh.port,
            user=str(said["user"]) if ssh.user == default.user and "user" in said else ssh.user,
        )


def _agent_socket(node: DesiredNode, around: Surroundings) -> str:
    found = around.environ.get("SSH_AUTH_SOCK")
    if not found:
        raise StalledError(
            f"node {node.name}: {node.where} says ssh.agent: true, and SSH_AUTH_SOCK is not set: start ssh-agent, or name a key"
            " file in ssh.identity"
        )
    return found


def _jump(written: str, ssh: Ssh, node: DesiredNode, given: _Given) -> Hop:
    """``[user@]host[:port]``; the user is the node's unless it is named, the keys shown are the same."""
    found = _DESTINATION.match(written)
    if found is None or len(given.jumps) >= MAX_HOPS:
        raise StalledError(
            f"node {node.name}: {node.where}: ssh.jump: {written!r:.200}: write one [user@]host[:port], or at most"
            f" {MAX_HOPS - 1} in ssh's configuration"
        )
    pins = hostkeys.pinned(ssh.jump_host_keys, where=node.where, field="ssh.jumpHostKeys", node=node.name)
    return Hop(
        host=found["v6"] or found["host"],
        port=int(found["port"] or 22),
        user=found["user"] or given.user,
        pinned=pins,
        credentials=given.credentials,
    )


def _configured(host: str, around: Surroundings, *, node: str) -> Mapping[str, str | list[str]]:
    """What ``~/.ssh/config`` says of a host, by lower-case keyword; nothing when there is no such file."""
    import paramiko  # noqa: PLC0415 - takes 0.2 s, and most nodes ask for no file

    file = around.home / CONFIG
    try:
        with file.open(errors="replace") as stream:
            text = stream.read(MAX_CONFIG)
    except FileNotFoundError:
        return {}
    except OSError as wrong:
        raise StalledError(f"node {node}: reading {file}: {wrong.strerror}") from wrong
    try:
        said = paramiko.SSHConfig.from_text(text).lookup(host)
    except (paramiko.SSHException, ValueError) as wrong:
        raise StalledError(f"node {node}: reading {file}: {wrong}") from wrong
    if str(said.get("proxycommand") or "none").lower() != "none":
        raise StalledError(
            f"node {node}: {file} reaches {host} by a ProxyCommand, which llmgw does not run: write ProxyJump there, or ssh.jump"
            " in the manifest"
        )
    return dict(said)


def addressed(where: Where, *, node: str, host: str, port: int, user: str) -> Login:
    """A way to a machine that no manifest names yet: to look at its host keys."""
    pins = hostkeys.Pinned(keys=(), where=where, field="ssh.hostKeys")
    hop = Hop(host=host, port=port, user=user, pinned=pins, credentials=Credentials())
    return Login(node=node, hops=(hop,), sudo=False)
