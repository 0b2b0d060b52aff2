"""Nodes as manifests would describe a rig's hosts, and work done from where the rig's controller is."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from llmgw.controller.nodes.ssh.connection import SshConnection
from llmgw.controller.nodes.ssh.login import Login, Surroundings, login_of
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import FromFile, NodeSpec, Ssh
from llmgw.model.problems import Where
from llmgw.model.struct import replace
from tests.rig.host import Host
from tests.rig.rig import Rig

T = TypeVar("T")
WHERE = Where(file="manifests/nodes.yaml", line=7, column=1)


def node_of(host: Host, /, *, spec: NodeSpec | None = None, **ssh: Any) -> DesiredNode:
    """``ssh`` are fields of the manifest's ``ssh`` that differ from what the rig has."""
    given: dict[str, Any] = {
        "host": host.address,
        "host_keys": host.host_keys,
        "identity": FromFile(from_file=str(host.identity)),
    }
    made = replace(spec or NodeSpec(), ssh=Ssh(**(given | ssh)))
    return DesiredNode(name=host.name, labels={}, spec=made, address=host.address, where=WHERE)


def login(host: Host, /, *, home: Path = Path("/nowhere"), environ: Any = None, **ssh: Any) -> Login:
    return login_of(node_of(host, **ssh), Surroundings(home=home, environ=environ or {}))


def inside(rig: Rig, main: Callable[[], Awaitable[T]]) -> T:
    """An event loop in the controller's network, to the end of ``main``."""

    async def body() -> T:
        return await main()

    return rig.controller.inside(lambda: asyncio.run(body()))


def connected(rig: Rig, way: Login, main: Callable[[SshConnection], Awaitable[T]]) -> T:
    """``main`` with an open connection, closed in the end."""

    async def body() -> T:
        connection = await SshConnection.open(way)
        try:
            return await main(connection)
        finally:
            await connection.close()

    return inside(rig, body)
