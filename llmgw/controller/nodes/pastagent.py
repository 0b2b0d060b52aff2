"""Past an agent that does not answer: its own program is there all the same, and examines the node by itself."""

import json
import sys
from pathlib import Path
from typing import Final

import llmgw
from llmgw.controller.nodes.bootstrap.shell import Ended, LocalShell
from llmgw.controller.nodes.layout import agent_program, work_of
from llmgw.controller.nodes.local import LocalTransport
from llmgw.controller.nodes.ssh.transport import SshTransport
from llmgw.model.checkup import Checkup
from llmgw.model.desired import DesiredNode
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct
from llmgw.wire import codec

WITHIN: Final = 60.0
FOUND: Final = frozenset({0, 1})
"""Exit codes of an examination: nothing failed, something did."""
MAIN: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from llmgw.agent.__main__ import main; sys.exit(main())"
)


class PastAgent(Struct):
    """By the ways to nodes that there are."""

    ssh: SshTransport
    local: LocalTransport

    async def doctor(self, node: DesiredNode) -> Checkup:
        """Raises LlmgwError when there is no such program, or nothing that can be read of it."""
        doing = f"node {node.name}: examining it without its agent"
        ended = await (self._over_ssh(node) if node.spec.transport == "ssh" else self._here(node))
        if ended.code not in FOUND:
            said = (ended.err.strip() or ended.out.strip()).decode(errors="replace")[-500:]
            raise StalledError(f"{doing}: it ended with {ended.code}: {said or 'it said nothing'}")
        try:
            return codec.from_json(Checkup, json.loads(ended.out), strict=False)
        except ValueError as wrong:
            raise StalledError(f"{doing}: what it said is no checkup: {wrong}") from wrong

    async def _over_ssh(self, node: DesiredNode) -> Ended:
        connection = await self.ssh.connection(node)
        words = (agent_program(node.spec), "doctor", "--json", "--work", work_of(node.name, node.spec))
        return await connection.run(words, timeout=WITHIN, sudo=connection.login.sudo)

    async def _here(self, node: DesiredNode) -> Ended:
        package = str(Path(llmgw.__file__).parents[1])
        words = ("doctor", "--json", "--work", str(self.local.work(node)))
        return await LocalShell().run((sys.executable, "-c", MAIN, package, *words), timeout=WITHIN)
