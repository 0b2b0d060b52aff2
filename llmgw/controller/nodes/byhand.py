"""Setting up a node by hand: the bootstrap that a plan does, with what only a person may allow."""

from collections.abc import Callable
from dataclasses import dataclass

from llmgw.controller.nodes.bootstrap.install import Bootstrap, Installed
from llmgw.controller.nodes.bootstrap.shell import Shell
from llmgw.model.desired import DesiredNode


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
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
