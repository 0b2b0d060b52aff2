"""Looking at a machine that is to become a node: its host keys, what it is, what bootstrap would want of it. Reads only."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmgw.controller.nodes import adding
from llmgw.controller.nodes.adding import Door
from llmgw.controller.nodes.bootstrap import checks
from llmgw.controller.nodes.bootstrap.checks import Asked
from llmgw.controller.nodes.bootstrap.install import Bootstrap
from llmgw.controller.nodes.ssh.login import Surroundings, addressed, login_of
from llmgw.controller.nodes.ssh.transport import SshTransport
from llmgw.model.facts import Facts
from llmgw.model.manifest import FromFile, NodeSpec, Ssh
from llmgw.model.problems import Problem, Where
from llmgw.model.struct import Struct, replace

if TYPE_CHECKING:
    from llmgw.controller.nodes.ssh.hostkeys import HostKey

USUAL_KEYS: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
AGENT_SOCKET: Final = "SSH_AUTH_SOCK"
NEW: Final = "its manifest to be"
"""How messages call the file of a node that has none yet. The node itself they call by its host."""


class Looked(Struct):
    """``problems`` keep an agent from being installed as it is; ``notes`` are worth knowing."""

    name: str
    facts: Facts
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


class Words(Struct):
    """What a person says of the way to a machine. None: nothing."""

    user: str | None = None
    port: int | None = None
    identity: str | None = None
    agent: bool = False
    become: str = "none"
    jump: str | None = None
    pool: str = "default"
    python: str | None = None


def draft(at: Door, words: Words, *, around: Surroundings, cwd: Path) -> NodeSpec:
    """A Node as far as a person's words go. Without a word about keys: what this machine offers, in the order in which a
    person would try it: ``sshIdentity`` of the settings, the ssh-agent, the usual files."""
    ssh = Ssh(
        host=at.host,
        port=words.port or at.port or 22,
        user=words.user or at.user or "root",
        become="sudo" if words.become == "sudo" else "none",
        jump=words.jump,
        agent=words.agent,
    )
    if words.identity is not None:
        file = written_path(words.identity, home=around.home, cwd=cwd)
        ssh = replace(ssh, identity=FromFile(from_file=file))
    if words.identity is None and not words.agent and around.identity is None:
        ssh = _with_usual_key(ssh, around)
    return NodeSpec(pool=words.pool, transport="ssh", ssh=ssh, python=words.python)


def _with_usual_key(ssh: Ssh, around: Surroundings) -> Ssh:
    if around.environ.get(AGENT_SOCKET):
        return replace(ssh, agent=True)
    for name in USUAL_KEYS:
        if (around.home / ".ssh" / name).is_file():
            return replace(ssh, identity=FromFile(from_file=f"~/.ssh/{name}"))
    return ssh


def written_path(given: str, *, home: Path, cwd: Path) -> str:
    """As manifests should have it: from ``~`` where it lies below the home directory, else from the root; a relative one
    counts from where the person stands."""
    if given.startswith("~/"):
        return given
    path = Path(os.path.normpath(cwd / given))
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and home != Path("/") else str(path)


async def jump_keys(spec: NodeSpec) -> "tuple[HostKey, ...]":
    """What the machine on the way shows."""
    assert spec.ssh is not None
    assert spec.ssh.jump is not None
    at = adding.door(spec.ssh.jump)
    way = addressed(
        Where(file=NEW), node=at.host, host=at.host, port=at.port or 22, user=at.user or spec.ssh.user
    )
    return await _shown(way)


async def machine_keys(spec: NodeSpec, around: Surroundings) -> "tuple[HostKey, ...]":
    """What the machine itself shows; by the jump host where there is one, which must be pinned already."""
    assert spec.ssh is not None
    if spec.ssh.jump is None:
        ssh = spec.ssh
        way = addressed(Where(file=NEW), node=ssh.host, host=ssh.host, port=ssh.port, user=ssh.user)
    else:
        way = login_of(adding.node_of(spec.ssh.host, spec, file=NEW), around)
    return await _shown(way)


async def _shown(way: object) -> "tuple[HostKey, ...]":
    from llmgw.controller.nodes.ssh import dialing  # noqa: PLC0415 - loads paramiko

    return await asyncio.to_thread(dialing.host_keys, way)  # type: ignore[arg-type] # a Login


async def look(
    spec: NodeSpec, *, ssh: SshTransport, bootstrap: Bootstrap, fleet: str, name: str | None
) -> Looked:
    """Logs in with the keys pinned and looks. ``name`` None: what the machine's name gives. Raises RetryError or StalledError
    where that can't be done."""
    assert spec.ssh is not None
    host = spec.ssh.host
    node = adding.node_of(name or host, spec, file=NEW)
    machine = await bootstrap.look(await ssh.connection(node), node)
    facts = await ssh.probe(node)
    name = name or adding.name_of(host, facts)
    found = checks.problems(machine, Asked(node=name, fleet=fleet, spec=spec))
    return Looked(name=name, facts=facts, problems=found, notes=checks.notes(machine))


def pinned(spec: NodeSpec, keys: "Sequence[HostKey]", *, jump: bool = False) -> NodeSpec:
    assert spec.ssh is not None
    lines = tuple(key.line for key in keys)
    changed = replace(spec.ssh, jump_host_keys=lines) if jump else replace(spec.ssh, host_keys=lines)
    return replace(spec, ssh=changed)
