"""The transport to nodes over SSH: the seam of controller/nodes/transport.py on connections of connection.py.

One connection a node carries everything: a channel for commands, one for each stream, one for each command of bootstrap. Where the
server allows too few sessions on one, another is opened beside it. paramiko is loaded when the first node is reached.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import llmgw
from llmgw.controller.nodes.layout import bridge_command
from llmgw.controller.nodes.link import StreamLink, open_link
from llmgw.controller.nodes.ssh.login import Login, Surroundings, login_of
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.problems import NoAgentError, StalledError
from llmgw.wire import codec
from llmgw.wire.doorway import BRIDGE_MAGIC

if TYPE_CHECKING:
    from llmgw.controller.nodes.ssh.connection import NotBegunError, SshConnection

PROBE: Final = Path(llmgw.__file__).parent / "runtime" / "factprobe.py"
PROBE_WITHIN: Final = 30.0
PYTHON: Final = """\
for python in /usr/bin/python3 /usr/local/bin/python3 python3; do
  if command -v "$python" >/dev/null 2>&1; then exec "$python" -I -S - "$@"; fi
done
echo 'there is no python3' >&2
exit 127
"""
"""The system's own first: what a PATH leads to may be a shim that takes a second to start."""
MAX_CONNECTIONS: Final = 4
"""To one node. A server that allows a single session on each still serves commands and three streams."""
HELLO_WITHIN: Final = 10.0
HELLO_PAUSE: Final = 0.2
NOBODY: Final = 69
NOT_FOUND: Final = ("No such file or directory", "command not found", "not found")


class Bootstrapper(Protocol):
    """Installs agents; :class:`llmgw.controller.nodes.bootstrap.install.Bootstrap` is one."""

    async def install(self, shell: "SshConnection", node: DesiredNode, *, fleet: str) -> object:
        """Done when the agent listens. Safe to repeat, and to be cut off anywhere."""
        ...


class SshTransport:
    """``around`` is what of this machine a login may depend on. ``bootstrapper`` is made when a machine needs one; without it
    bootstrap is refused."""

    def __init__(
        self, around: Surroundings, *, bootstrapper: Callable[[], Bootstrapper] | None = None
    ) -> None:
        self._around = around
        self._bootstrapper = bootstrapper
        self._open: defaultdict[Login, list[SshConnection]] = defaultdict(list)
        self._opening: defaultdict[Login, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._closed = False

    # ---- the seam --------------------------------------------------------------------------------

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> StreamLink:
        return await open_link(lambda: self._dial(node), node=node.name, fleet=fleet)

    async def probe(self, node: DesiredNode) -> Facts:
        spec = node.spec
        folders = [path for path in (spec.dirs.work, spec.dirs.weights, spec.dirs.engines) if path]
        asked = (f"--ports={spec.ports.from_port}-{spec.ports.to_port}", *folders)
        command = (
            (spec.python, "-I", "-S", "-", *asked)
            if spec.python
            else ("sh", "-c", PYTHON, "llmgw-probe", *asked)
        )
        connection = await self.connection(node)
        ended = await connection.run(command, stdin=PROBE.read_bytes(), timeout=PROBE_WITHIN)
        doing = f"node {node.name}: looking at the machine"
        try:
            return codec.loads(Facts, ended.must(doing), strict=False)
        except codec.CodecError as wrong:
            raise StalledError(f"{doing}: {wrong}: {ended.said}") from wrong

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        if self._bootstrapper is None:
            raise StalledError(f"node {node.name}: nothing here can install an agent over SSH")
        await self._bootstrapper().install(await self.connection(node), node, fleet=fleet)
        await self._hello(node, fleet)

    async def close(self) -> None:
        self._closed = True
        connections = [one for several in self._open.values() for one in several]
        self._open.clear()
        await asyncio.gather(*(one.close() for one in connections))

    # ---- beside the seam -------------------------------------------------------------------------

    async def connection(self, node: DesiredNode) -> "SshConnection":
        """The connection to a node, opened if there is none that lives. Raises what SshConnection.open raises."""
        return await self._roomy(self._login(node))

    # ---- inside ----------------------------------------------------------------------------------

    async def _hello(self, node: DesiredNode, fleet: str) -> None:
        """The proof of a bootstrap, by the way that everything else will take."""
        until = asyncio.get_running_loop().time() + HELLO_WITHIN
        while True:
            try:
                link = await self.connect(node, fleet=fleet)
            except NoAgentError as wrong:  # noqa: PERF203 - it listens a moment later, or never
                if asyncio.get_running_loop().time() > until:
                    raise StalledError(
                        f"node {node.name}: its agent was installed and started, and does not answer over SSH: {wrong}"
                    ) from wrong
                await asyncio.sleep(HELLO_PAUSE)
            else:
                await link.close()
                return

    def _login(self, node: DesiredNode) -> Login:
        return login_of(node, self._around)

    async def _connection(self, login: Login, number: int) -> "SshConnection":
        """The first, second, … connection of a login; dead ones are put away."""
        from llmgw.controller.nodes.ssh.connection import SshConnection  # noqa: PLC0415 - loads paramiko

        async with self._opening[login]:
            living = self._open[login]
            for dead in [one for one in living if one.lost is not None]:
                living.remove(dead)
                await dead.close()
            while len(living) <= number:
                opened = await SshConnection.open(login)
                if self._closed:
                    await opened.close()
                    raise StalledError(f"node {login.node}: connecting: this side is closing")
                living.append(opened)
            return living[number]

    async def _dial(self, node: DesiredNode) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        from llmgw.controller.nodes.ssh.connection import NotBegunError, SessionsError  # noqa: PLC0415 - loads paramiko

        login = self._login(node)
        command = bridge_command(node.spec)
        while True:
            connection = await self._roomy(login)
            try:
                return await connection.open_channel(command, sudo=login.sudo, magic=BRIDGE_MAGIC)
            except SessionsError:
                if not self._more(login):
                    raise
            except NotBegunError as wrong:
                raise _meant(wrong, node, login) or wrong from wrong

    async def _roomy(self, login: Login) -> "SshConnection":
        """The first connection with room for another session; the last one where none has."""
        for number in range(MAX_CONNECTIONS):
            connection = await self._connection(login, number)
            if connection.has_room:
                break
        return connection

    def _more(self, login: Login) -> bool:
        """Whether another connection can still be tried."""
        living = self._open[login]
        return len(living) < MAX_CONNECTIONS or any(one.has_room for one in living)


def _meant(wrong: "NotBegunError", node: DesiredNode, login: Login) -> Exception | None:
    """Why there is no bridge, in words; None: the error says it already."""
    work = node.spec.dirs.work
    ended = wrong.ended
    said = ended.said
    if ended.code == NOBODY and "Permission denied" in said:
        return StalledError(
            f"node {node.name}: {login.target} may not talk to the agent in {work}: write ssh.become: sudo, or ssh.user: the user"
            " that it runs as"
        )
    if ended.code == NOBODY:
        return NoAgentError(f"node {node.name}: an agent is installed in {work}, and none runs there")
    missing = ended.code == 127 or (login.sudo and ended.code == 1)
    if missing and any(sign in said for sign in NOT_FOUND) and bridge_command(node.spec)[0] in said:
        return NoAgentError(f"node {node.name}: no agent is installed in {work}")
    return None
