"""The transport to nodes that are this machine: agents that run as the current user below ``local.workDir``, several side
by side, each with its own directory."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import llmgw
from llmgw.controller.nodes.agentprocess import POLL, AgentProcess, lives, reap
from llmgw.controller.nodes.agentsettings import agent_settings, may_stay, pretended_bytes
from llmgw.controller.nodes.bootstrap.programs import Place, call
from llmgw.controller.nodes.bootstrap.shell import LocalShell
from llmgw.controller.nodes.link import StreamLink, open_link
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.manifest import Local
from llmgw.model.problems import NoAgentError, RetryError, StalledError
from llmgw.model.struct import Struct, field
from llmgw.wire import codec
from llmgw.wire.doorway import SOCKET
from llmgw.wire.setup import PRETENDED, SETTINGS, AgentSettings

PROBE: Final = Path(llmgw.__file__).parent / "runtime" / "factprobe.py"
PROBE_WITHIN: Final = 30.0
UP_WITHIN: Final = 60.0
"""Seconds for a started agent to answer: Python's start and the adoption of what runs, on a machine that is busy."""
STARTS_IT: Final = "the next `llmgw apply` starts it"
MAX_SETTINGS: Final = 1024 * 1024
MAX_FACTS: Final = 8 * 1024 * 1024


class LocalTransport(Struct):
    """``home`` stands for ``~``; ``environ`` is where ``fromEnv`` values and the agent's proxy settings come from.
    ``told`` hears what bootstrap is doing."""

    home: Path
    environ: Mapping[str, str]
    python: str = sys.executable
    up_within: float = UP_WITHIN
    told: Callable[[str], None] = field(default=lambda _: None)

    # ---- the seam --------------------------------------------------------------------------------

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> StreamLink:
        work = self.work(node)

        async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_unix_connection(sock=_dial(node.name, work))

        return await open_link(dial, node=node.name, fleet=fleet)

    async def probe(self, node: DesiredNode) -> Facts:
        work = self.work(node)
        process = await asyncio.create_subprocess_exec(
            self.python,
            "-I",
            "-S",
            str(PROBE),
            f"--ports={node.spec.ports.from_port}-{node.spec.ports.to_port}",
            str(work),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": self.environ.get("PATH", os.defpath)},
            limit=MAX_FACTS,
        )  # fmt: skip - the program and its arguments on one line
        try:
            async with asyncio.timeout(PROBE_WITHIN):
                out, err = await process.communicate()
        except TimeoutError as late:
            raise RetryError(
                f"node {node.name}: looking at this machine took over {PROBE_WITHIN:g} s"
            ) from late
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            facts = codec.loads(Facts, out, strict=False)
        except codec.CodecError as wrong:
            said = err.decode(errors="replace").strip()[-500:]
            raise StalledError(f"node {node.name}: looking at this machine: {wrong}: {said}") from wrong
        return facts.pretending(node.pretended) if node.pretended is not None else facts

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        """Nothing is done when the right agent with the right settings answers already. An agent of an older version or
        with other settings is restarted; engines run on."""
        process = self._process(node)
        self._refuse_stranger(node, process.work, fleet)
        settings = agent_settings(node, fleet, self.environ, engine_user=node.spec.engine_user)
        pretended = pretended_bytes(node)
        wanted = settings.digest(pretended)
        running = process.holder()
        if (
            running is not None
            and lives(running)
            and may_stay(version=running.version, same_settings=running.settings == wanted, node=node.name)
        ):
            self.told("the agent runs already")
            if await self._until_up(node, process, fleet=fleet, pid=None):
                return
            running = process.holder()  # it ended before it answered
        self._lay_out(process.work, settings, pretended)
        if running is not None:
            self.told(f"restarting the agent {running.version}, pid {running.pid}")
            await process.stop()
        before = process.log_size()
        pid = process.start()
        self.told(f"agent started, pid {pid}")
        await self._until_up(node, process, fleet=fleet, pid=pid, before=before)

    async def close(self) -> None:
        """Nothing is held open here: links are closed by whoever opened them."""

    # ---- beside the seam -------------------------------------------------------------------------

    async def stop_agent(self, node: DesiredNode) -> None:
        """Ends the node's agent, if one runs. Its engines go on, for the next agent to adopt."""
        await self._process(node).stop()

    async def clear(self, node: DesiredNode) -> tuple[str, ...]:
        """Deletes what the agent, which is stopped, has kept, as on any other machine. Returns what is left in its directory;
        StalledError while shards have orders there."""
        here = Place(node=node.name, shell=LocalShell(), python=self.python, sudo=False)
        words = ("remove", str(self.work(node)), "", "everything", "")
        done = await call(here, "setup", *words, doing="deleting what its agent kept")
        return tuple(done["left"])

    def work(self, node: DesiredNode) -> Path:
        """The node's work directory, ``~`` expanded."""
        written = (node.spec.local or Local()).work_dir
        if written == "~" or written.startswith("~/"):
            return self.home / written[2:]
        path = Path(written)
        if not path.is_absolute():
            raise StalledError(
                f"node {node.name}: local.workDir {written} is relative: write it from / or from ~"
            )
        return path

    def _process(self, node: DesiredNode) -> AgentProcess:
        return AgentProcess(work=self.work(node), python=self.python, environ=self.environ)

    def _refuse_stranger(self, node: DesiredNode, work: Path, fleet: str) -> None:
        """Whose directory it is, is looked at before anything in it is changed."""
        file = work / SETTINGS
        try:
            with file.open("rb") as stream:
                kept = codec.loads(AgentSettings, stream.read(MAX_SETTINGS), strict=False)
        except FileNotFoundError:
            return
        except OSError as wrong:
            raise StalledError(f"node {node.name}: reading {file}: {wrong.strerror}") from wrong
        except codec.CodecError:
            return  # written anew: nobody's agent can start from it either
        if kept.fleet not in (None, fleet) or kept.node not in (node.name, *node.formerly):
            raise StalledError(
                f"node {node.name}: {work} is the work directory of node {kept.node} of fleet {kept.fleet}, this is fleet"
                f" {fleet}: give the node a local.workDir of its own"
            )

    def _lay_out(self, work: Path, settings: AgentSettings, pretended: bytes) -> None:
        try:
            work.mkdir(parents=True, exist_ok=True)
            work.chmod(0o711)
            if pretended:
                _write(work / PRETENDED, pretended)
            _write(work / SETTINGS, (json.dumps(codec.to_json(settings), indent=2) + "\n").encode())
        except OSError as wrong:
            raise StalledError(
                f"node {settings.node}: making its work directory: {wrong.strerror}: {wrong.filename or work}: choose another"
                " local.workDir, or free space"
            ) from wrong

    async def _until_up(
        self, node: DesiredNode, process: AgentProcess, *, fleet: str, pid: int | None, before: int = 0
    ) -> bool:
        """True when the agent answers hello; False when one that is not our child (``pid`` None) ends instead. Raises
        StalledError with the end of its log, without the ``before`` bytes that earlier ones wrote."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.up_within
        while True:
            try:
                link = await self.connect(node, fleet=fleet)
            except (NoAgentError, RetryError) as wrong:  # noqa: PERF203 - it is not up until it is
                if pid is None and ((holder := process.holder()) is None or not lives(holder)):
                    return False
                code = reap(pid) if pid is not None else None
                if code is not None or loop.time() > until:
                    ended = (
                        f"it ended with {code}" if code is not None else f"no answer in {self.up_within:g} s"
                    )
                    raise StalledError(
                        f"node {node.name}: starting its agent in {process.work}: {ended}; the end of its log:\n"
                        f"{process.log_tail(before)}"
                    ) from wrong
                await asyncio.sleep(POLL)
            else:
                await link.close()
                return True


def _dial(node: str, work: Path) -> socket.socket:
    """A Unix socket's address holds 108 bytes, and work directories may be longer: the directory is named through an open
    descriptor."""
    try:
        folder = os.open(work, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as wrong:
        raise NoAgentError(f"node {node}: no agent in {work}: {wrong.strerror}: {STARTS_IT}") from wrong
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.setblocking(False)
        connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
    except (FileNotFoundError, ConnectionRefusedError) as wrong:
        connection.close()
        raise NoAgentError(f"node {node}: no agent listens in {work}: {STARTS_IT}") from wrong
    except BlockingIOError as wrong:
        connection.close()
        raise RetryError(f"node {node}: its agent in {work} is too busy to take connections") from wrong
    except OSError as wrong:
        connection.close()
        raise StalledError(f"node {node}: connecting to its agent in {work}: {wrong.strerror}") from wrong
    finally:
        os.close(folder)
    return connection


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all, 0600: settings may hold secrets. What is there already is left: on a full disk an agent must
    come up again, for the engines that run there."""
    with suppress(OSError):
        if file.read_bytes() == data and file.stat().st_mode & 0o777 == 0o600:
            return
    beside = file.with_name(file.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, 0o600)
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)
    beside.replace(file)
