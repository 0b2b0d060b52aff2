"""Setting up a node by hand: the bootstrap that a plan does, with what only a person may allow."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from llmgw.controller.nodes.bootstrap.install import Bootstrap, Installed
from llmgw.controller.nodes.bootstrap.shell import Shell
from llmgw.controller.nodes.local import LocalTransport
from llmgw.controller.nodes.ssh.login import Surroundings
from llmgw.controller.nodes.ssh.transport import SshTransport
from llmgw.controller.nodes.transport import Transport
from llmgw.model.desired import DesiredNode
from llmgw.model.struct import Struct, replace


class ByHand(Struct):
    """``take_over``: an agent of another fleet, or of another node, becomes this one's. ``downgrade``: an agent that is newer
    makes way for an older one."""

    bootstrap: Bootstrap
    take_over: bool
    downgrade: bool
    told: Callable[[str], None]

    async def install(self, shell: Shell, node: DesiredNode, *, fleet: str) -> Installed:
        done = await self.bootstrap.install(
            shell, node, fleet=fleet, take_over=self.take_over, downgrade=self.downgrade
        )
        for note in done.notes:
            self.told(f"note: {note}")
        return done


@asynccontextmanager
async def insisting(
    local: LocalTransport, around: Surroundings, by_hand: ByHand
) -> AsyncIterator[Mapping[str, Transport]]:
    """The ways to nodes for a person who sets one up: what is being done is told, and what no plan does may be allowed."""
    over_ssh = SshTransport(around, bootstrapper=lambda: by_hand)
    try:
        yield {"local": replace(local, told=by_hand.told), "ssh": over_ssh}
    finally:
        await over_ssh.close()
