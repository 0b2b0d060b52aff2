"""The seam to nodes: how the controller reaches an agent, whatever lies between.

A transport carries requests and streams of wire/messages; who implements it decides how. ``local`` speaks to an
agent of this machine; SSH comes beside it. The fake, :class:`llmgw.controller.nodes.memory.MemoryTransport`, hands
requests to agents in the same process and can cut the line at any point.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeVar

from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.wire.messages import HelloResult

T = TypeVar("T")


class Link(Protocol):
    """An open connection to one agent, greeted."""

    @property
    def hello(self) -> HelloResult: ...

    async def request(self, method: str, params: Any, result: type[T], *, timeout: float) -> T:
        """One method of the protocol; ``params`` and ``result`` are the dataclasses of wire/messages.

        Raises :class:`~llmgw.model.problems.AgentError` when the agent refuses, :class:`~llmgw.model.problems.UnknownOutcomeError` when
        the line or the time ran out after the request was sent."""
        ...

    def stream(self, method: str, params: Any, item: type[T]) -> AsyncIterator[T]:
        """``watch`` or ``logs``; ends when the agent ends it, raises RetryError when the line is lost."""
        ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """Ways to a node. Each call is bounded in time by the transport."""

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        """Raises :class:`~llmgw.model.problems.NoAgentError` when the machine answers but no agent does, RetryError when the machine does
        not answer, StalledError when it refuses for good (another fleet's, another protocol)."""
        ...

    async def probe(self, node: DesiredNode) -> Facts:
        """Read-only facts of a machine without an agent."""
        ...

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        """Install and start the agent, or upgrade it; safe to repeat. Done when it answers ``hello``."""
        ...

    async def close(self) -> None: ...
