"""A host's agent, asked past the controller: over its socket, in the host's own file system."""

import socket
from pathlib import Path
from typing import Any, Final, Self

from llmgw import __version__
from llmgw.model.ids import Commit, Fence, ShardId
from llmgw.model.launch import LaunchSpec
from llmgw.model.report import Report
from llmgw.wire import codec, rpc
from llmgw.wire.messages import (
    PROTOCOL,
    Accepted,
    Command,
    HelloParams,
    HelloResult,
    ReportParams,
    Request,
    Response,
    StartParams,
    StopParams,
)

WORK: Final = "/var/lib/llmgw-agent"


class Line:
    """One connection. Raises OSError when nobody listens or answers in time."""

    def __init__(self, init: int, *, within: float = 20) -> None:
        """``init`` is process 1 of the host, by this machine's number."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(within)
        self._lines = rpc.Lines()
        self._last = 0
        try:
            self._socket.connect(f"/proc/{init}/root{WORK}/agent.sock")
            hello = HelloParams(protocol=PROTOCOL, tool_version=__version__)
            self.hello = codec.from_json(HelloResult, self._ask("hello", hello), strict=False)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def report(self) -> Report:
        return codec.from_json(Report, self._ask("report", ReportParams()), strict=False)

    def start(self, spec: LaunchSpec, name: str) -> Accepted:
        """With the fence of the last command, as the same controller would; of nobody's, where none has commanded since the agent
        lost what it knew of that."""
        return codec.from_json(
            Accepted, self._ask("start", StartParams(command=self._command(name), spec=spec)), strict=False
        )

    def stop(self, shard: ShardId, name: str) -> Accepted:
        return codec.from_json(
            Accepted, self._ask("stop", StopParams(command=self._command(name), shard=shard)), strict=False
        )

    def _command(self, name: str) -> Command:
        assert self.hello.fleet is not None, "no fleet owns this agent"
        nobody = Fence(fleet=self.hello.fleet, serial=0, intent=Commit("0" * 40))
        return Command(id=name, fence=self.hello.fence or nobody)

    def _ask(self, method: str, params: Any) -> Any:
        self._last += 1
        self._socket.sendall(rpc.encode(Request(method=method, id=self._last, params=codec.to_json(params))))
        while data := self._socket.recv(65536):
            for line in self._lines.feed(data):
                answer = rpc.read_answer(line)
                if isinstance(answer, Response):
                    if answer.error is not None:
                        raise rpc.refusal(answer.error)
                    return answer.result
        raise ConnectionError(f"{method}: the agent closed the connection")


def orders(root: Path) -> list[Path]:
    """The files of its standing orders, below the host's root."""
    return sorted((root / WORK.lstrip("/") / "shards").glob("*.json"))
