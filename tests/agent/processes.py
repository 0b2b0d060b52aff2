"""Real agents as processes of a test, always ended, with their engines."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from llmgw.controller.nodes.link import StreamLink
from llmgw.controller.nodes.local import LocalTransport
from llmgw.model.claims import Claims
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import ReplicaId, ShardId
from llmgw.model.launch import HttpProbe, LaunchSpec, Probes, Process, ShardTimeouts
from llmgw.model.manifest import Local, NodeSpec, PortRange
from llmgw.model.problems import Where
from llmgw.model.report import Report, ShardReport
from llmgw.wire import codec
from llmgw.wire.messages import Accepted, ReportParams, StartParams, StopParams
from llmgw.wire.setup import LOCK, Holder
from tests.agent.agents import FLEET, command, until

ENGINE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"data": [{"id": "chat"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
print("engine is up", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def engine_spec(port: int, replica: str = "chat-1f0c9a2b-0.1") -> LaunchSpec:
    """A stand-in engine: Python's own HTTP server."""
    return LaunchSpec(
        shard=ShardId(f"{replica}-r0"),
        replica=ReplicaId(replica),
        rank=0,
        ranks=1,
        model="chat",
        profile="small",
        served_name="chat",
        spec_digest="1f0c9a2b" + "0" * 56,
        address="127.0.0.1",
        leader_address=f"127.0.0.1:{port}",
        processes=(Process(name="engine", argv=(sys.executable, "-c", ENGINE, str(port))),),
        probes=Probes(
            port=port,
            ready=(HttpProbe(path="/health"), HttpProbe(path="/v1/models", contains="chat")),
            alive=HttpProbe(path="/health"),
        ),
        claims=Claims(ports=(port,)),
        timeouts=ShardTimeouts(stop=5, startup=60, adopt_ready=60),
    )


@dataclass(slots=True)
class Machine:
    """Agents below one directory."""

    home: Path
    transport: LocalTransport
    nodes: list[DesiredNode] = field(default_factory=list)

    def node(
        self, name: str = "n1", *, pretended: Facts | None = None, work: str = "", **spec: Any
    ) -> DesiredNode:
        given = {"ports": PortRange(from_port=1024, to_port=65535), **spec}
        node = DesiredNode(
            name=name,
            labels={},
            spec=NodeSpec(transport="local", local=Local(work_dir=work or f"~/{name}"), **given),
            address="127.0.0.1",
            where=Where(file="nodes.yaml"),
            pretended=pretended,
        )
        self.nodes.append(node)
        return node

    def work(self, node: DesiredNode) -> Path:
        return self.transport.work(node)

    def holder(self, node: DesiredNode) -> Holder:
        return codec.loads(Holder, (self.work(node) / LOCK).read_bytes(), strict=True)

    def kill_agent(self, node: DesiredNode) -> None:
        """As the kernel's OOM killer would."""
        pid = self.holder(node).pid
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)

    @asynccontextmanager
    async def link(self, node: DesiredNode, fleet: str = FLEET) -> AsyncIterator[StreamLink]:
        link = await self.transport.connect(node, fleet=fleet)
        try:
            yield link
        finally:
            await link.close()

    async def report(self, node: DesiredNode) -> Report:
        async with self.link(node) as link:
            return await link.request("report", ReportParams(), Report, timeout=20)

    async def start(self, node: DesiredNode, spec: LaunchSpec, name: str = "start") -> Accepted:
        async with self.link(node) as link:
            params = StartParams(command=command(name), spec=spec)
            return await link.request("start", params, Accepted, timeout=20)

    async def stop(self, node: DesiredNode, shard: str, name: str = "stop") -> Accepted:
        async with self.link(node) as link:
            params = StopParams(command=command(name), shard=ShardId(shard))
            return await link.request("stop", params, Accepted, timeout=20)

    async def shard_when(self, node: DesiredNode, condition: Callable[[ShardReport], object]) -> ShardReport:
        """The node's one shard, once the condition holds."""
        found: list[ShardReport] = []
        end = asyncio.get_running_loop().time() + 30
        while not (found and condition(found[0])):
            assert asyncio.get_running_loop().time() < end, f"never came true: {found}"
            found = list((await self.report(node)).shards)
            await asyncio.sleep(0.05)
        return found[0]

    async def clean(self) -> None:
        """Ends every agent and every process that was started below it."""
        for node in self.nodes:
            await self.transport.stop_agent(node)
            work = str(self.work(node))
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.cwd().startswith(work) or any(work in word for word in process.cmdline()):
                        process.kill()


def on_machine(folder: Path, main: Callable[[Machine], Any], **changes: Any) -> None:
    """Runs ``main`` with a machine and cleans up whatever it left."""

    async def whole() -> None:
        environ = {"PATH": os.defpath, "HOME": str(folder)}
        machine = Machine(
            home=folder, transport=LocalTransport(**{"home": folder, "environ": environ, **changes})
        )
        try:
            await asyncio.wait_for(main(machine), timeout=90)
        finally:
            await machine.clean()

    asyncio.run(whole())


__all__ = ["Machine", "engine_spec", "free_port", "on_machine", "until"]
