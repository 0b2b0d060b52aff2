"""Where things lie on a node that is reached over SSH: what bootstrap makes, connections find and removal takes away."""

import hashlib
import posixpath
import shlex
from typing import Final

from llmgw.model.manifest import NodeSpec
from llmgw.model.problems import StalledError

CURRENT: Final = "current"
"""A link to the agent that runs, below ``dirs.work``: switching it is how an agent is upgraded."""
USUAL_WORK: Final = "/var/lib/llmgw-agent"
UNUSABLE: Final = "%$\\\"'"
"""What units, crontabs, init scripts and authorized_keys each read in a way of their own."""
ENGINE_USER: Final = "llmgw-engine"


def work_of(node: str, spec: NodeSpec) -> str:
    """The work directory, as bootstrap makes it. Raises StalledError when it can't be one."""
    written = spec.dirs.work
    if not written.startswith("/") or not written.isprintable() or any(sign in written for sign in UNUSABLE):
        raise StalledError(f"node {node}: dirs.work {written!r}: write an absolute path, without {UNUSABLE}")
    work = _plain(written)
    if work.count("/") < 2:
        raise StalledError(
            f"node {node}: dirs.work {work}: choose a directory of its own, such as {USUAL_WORK}"
        )
    return work


def agent_program(spec: NodeSpec) -> str:
    """The agent's command on the node."""
    return launcher(_plain(spec.dirs.work))


def launcher(work: str) -> str:
    """The agent's command below a work directory: ``daemon``, ``bridge``, ``status``."""
    return f"{work}/{CURRENT}/bin/llmgw-agent"


def bridge_command(spec: NodeSpec) -> tuple[str, ...]:
    """Connects standard input and output of an SSH channel to the agent. docs/security.md tells how a key can be held to
    this one command, so its words are part of what people rely on."""
    return (agent_program(spec), "bridge", "--work", _plain(spec.dirs.work))


def forced_command(spec: NodeSpec) -> str:
    """The options of a line of authorized_keys whose key can do nothing but talk to the agent."""
    sudo = spec.ssh is not None and spec.ssh.become == "sudo"
    command = shlex.join((*(("sudo", "-n") if sudo else ()), *bridge_command(spec)))
    return f'restrict,command="{command}"'


def command_link(work: str) -> str:
    """Where the agent's command is linked to for people at the node; empty for further agents of a machine."""
    return "/usr/local/bin/llmgw-agent" if work == USUAL_WORK else ""


def service_name(work: str) -> str:
    """One agent a machine is usual; further work directories get a name of their own."""
    if work == USUAL_WORK:
        return "llmgw-agent"
    return f"llmgw-agent-{hashlib.sha256(work.encode()).hexdigest()[:8]}"


def _plain(path: str) -> str:
    """Without doubled slashes, dots and a slash at the end: one directory, one name."""
    return posixpath.normpath("/" + path.lstrip("/"))
