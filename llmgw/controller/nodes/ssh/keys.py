"""The keys we show to a machine: a file's, and those that an ssh-agent holds. What is secret in them never leaves here."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import paramiko
from paramiko.agent import AgentSSH

from llmgw.controller.nodes.ssh.login import Credentials
from llmgw.model.problems import StalledError

MAX_SHOWN: Final = 5
"""sshd ends a connection after six refused keys (MaxAuthTries)."""
AGENT_WITHIN: Final = 5.0
"""Seconds; a hardware key that wants to be touched may take that long."""


@contextmanager
def offered(credentials: Credentials, *, node: str) -> Iterator[tuple[paramiko.PKey, ...]]:
    """The file's key first. Raises StalledError where there is none to show, saying what to write."""
    found: list[paramiko.PKey] = []
    if credentials.identity is not None:
        found.append(_of_file(credentials.identity, node=node))
    if credentials.agent is None:
        if not found:
            raise StalledError(
                f"node {node}: there is no key to log in with: write ssh.identity: {{fromFile: ~/.ssh/id_ed25519}} or"
                " ssh.agent: true in its manifest, or sshIdentity in llmgw.yaml"
            )
        yield tuple(found)
        return
    with _agent(credentials.agent, node=node) as agent:
        found.extend(agent.get_keys())
        if not found:
            raise StalledError(
                f"node {node}: the ssh-agent at {credentials.agent} holds no key: add one with ssh-add"
            )
        yield tuple(found[:MAX_SHOWN])


def _of_file(file: Path, *, node: str) -> paramiko.PKey:
    doing = f"node {node}: reading the private key {file}"
    try:
        mode = file.stat().st_mode
        if stat.S_IMODE(mode) & 0o077 and os.geteuid() == file.stat().st_uid:
            raise StalledError(f"{doing}: others may read it too: chmod 600 {file}")
        return paramiko.PKey.from_path(file)
    except FileNotFoundError as wrong:
        raise StalledError(
            f"{doing}: no such file: relative paths and ~ count from the home directory of whoever runs llmgw"
        ) from wrong
    except OSError as wrong:
        raise StalledError(f"{doing}: {wrong.strerror}") from wrong
    except (paramiko.PasswordRequiredException, TypeError) as wrong:
        raise StalledError(
            f"{doing}: it has a passphrase: load it with ssh-add and write ssh.agent: true, or use a key of its own without one"
        ) from wrong
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError) as wrong:
        raise StalledError(f"{doing}: it is no private key that can be used here") from wrong


class _Agent(AgentSSH):
    """At a socket of our choice; paramiko's own looks into the process environment."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connect(connection)  # type: ignore[attr-defined] # what its own subclasses call


@contextmanager
def _agent(path: str, *, node: str) -> Iterator[AgentSSH]:
    doing = f"node {node}: asking the ssh-agent at {path} for keys"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(AGENT_WITHIN)
        try:
            connection.connect(path)
            agent = _Agent(connection)
        except OSError as wrong:
            raise StalledError(f"{doing}: {wrong.strerror or wrong}: is it running?") from wrong
        except paramiko.SSHException as wrong:
            raise StalledError(f"{doing}: {wrong}") from wrong
        yield agent


def shown(key: paramiko.PKey) -> str:
    """The public half, as people compare it."""
    return f"{key.get_name()} {key.fingerprint}"
