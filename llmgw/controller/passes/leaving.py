"""Taking the agent of a node away: under the fleet's lock, while nobody is applying, and only from a node of ours."""

from collections.abc import Callable

from llmgw.controller.fleet import Fleet
from llmgw.controller.nodes.bootstrap.install import Bootstrap
from llmgw.controller.nodes.local import LocalTransport
from llmgw.controller.nodes.ssh.transport import SshTransport
from llmgw.controller.passes.lease import crashed_pass
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import FleetId
from llmgw.model.struct import Struct, replace


class Ways(Struct):
    """What an agent is taken away with."""

    ssh: SshTransport
    local: LocalTransport
    bootstrap: Bootstrap


async def uninstall(
    node: DesiredNode,
    *,
    fleet: Fleet,
    owner: FleetId,
    ways: Ways,
    lock_timeout: float,
    everything: bool,
    told: Callable[[str], None],
) -> tuple[str, ...]:
    """What is left on the machine. Engines are not touched; ``everything``: weights, installed engines and logs go too.

    HeldError while somebody is applying; StalledError when it is not this fleet's node."""
    async with fleet.lock(lock_timeout):
        stored = await fleet.store.read()
        crashed_pass(stored.record, holder=fleet.holder, now=fleet.clock.now(), instance=fleet.instance)
        if node.spec.transport == "local":
            await ways.local.stop_agent(node)
            work = str(ways.local.work(node))
            if not everything:
                return (work,)
            return tuple(f"{work}/{name}" for name in await ways.local.clear(node))
        bootstrap = replace(ways.bootstrap, told=told)
        connection = await ways.ssh.connection(node)
        return await bootstrap.uninstall(connection, node, fleet=owner, everything=everything)
