"""One fleet as the passes see it: its manifests, its record, the ways to its nodes, its secret, the clock.

Only seams and values stand here, so that the simulation builds a fleet of fakes; what wires the real ones is
:mod:`llmgw.controller.opening`.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Protocol

from llmgw.clock import Clock
from llmgw.controller.nodes.transport import Transport
from llmgw.controller.repo.records import RecordStore, Stored
from llmgw.controller.weights.remote import Wanted
from llmgw.core.adapter import EngineAdapter
from llmgw.model.desired import Desired
from llmgw.model.ids import Commit, FleetId
from llmgw.model.problems import Where
from llmgw.model.record import LEASE
from llmgw.model.struct import Struct
from llmgw.model.weights import Inspection


class Source(Protocol):
    """The manifests, by commit."""

    async def newest(self) -> Commit:
        """The commit that the fleet's branch points to right now. RetryError when the repository does not
        answer, StalledError when there is no such branch."""
        ...

    async def commit(self, name: str) -> Commit:
        """The commit that a person means by a branch, tag or (short) id."""
        ...

    async def desired(self, commit: Commit, *, key_id: str) -> Desired:
        """What the commit asks for. InvalidError with every problem of every file."""
        ...

    async def is_ancestor(self, older: Commit, newer: Commit) -> bool:
        """Whether ``newer`` grew out of ``older``; False as well when one of them is not there any more."""
        ...

    async def unpushed(self, commit: Commit) -> bool:
        """Whether the repository has remotes and none of them holds the commit."""
        ...

    async def keep(self, commit: Commit) -> None:
        """An applied commit must stay readable, whatever becomes of the branch."""
        ...

    async def who_wrote(self, commit: Commit, where: Where) -> str:
        """``commit 1f0c9a2b3d by Ann``, who wrote that line; empty when nobody can tell."""
        ...


class FleetSecret(Protocol):
    """What the replicas' keys are made from."""

    def load(self) -> bytes | None:
        """None: this machine has none."""
        ...

    def make(self) -> bytes:
        """For a fleet that never had one: make and keep it, or return the one that is there."""
        ...

    def kept(self) -> Mapping[str, bytes]:
        """Earlier ones that some replicas still have their keys from, by key id."""
        ...

    def rotate(self) -> str:
        """Makes a new one and keeps the one that was there. The new one's key id."""
        ...

    def drop(self, key: str) -> None:
        """Forgets an earlier one for good."""
        ...

    @property
    def place(self) -> str:
        """Where it lies or should lie, for messages."""
        ...

    def place_of(self, key: str) -> str:
        """The same of an earlier one."""
        ...


class RemoteWeights(Protocol):
    """A look at weights that no node has yet."""

    async def look(self, wanted: Wanted) -> Inspection | None:
        """Never fails: see Inspection.problem. None: such a source can't be looked at from here."""
        ...


def _learns_nothing(_: str) -> None:
    """For those who print nothing."""


def _any_build() -> str:
    """For those whose agents are made of nothing."""
    return ""


class Fleet(Struct):
    """``first_id`` becomes the fleet's id if it has no record yet. ``lock`` keeps other passes of this machine out:
    entered with the seconds to wait for them, it raises HeldError naming the holder; ``instance`` says which lock that is. ``environment`` is where
    ``fromEnv`` values come from; ``learn`` is told every secret that is looked up, so that it never shows."""

    name: str
    source: Source
    store: RecordStore
    transports: Mapping[str, Transport]
    adapters: Mapping[str, EngineAdapter]
    clock: Clock
    secret: FleetSecret
    lock: Callable[[float], AbstractAsyncContextManager[object]]
    first_id: FleetId
    holder: str
    instance: str = ""
    agent_build: Callable[[], str] = _any_build  # of the files that agents are made of here
    lease: timedelta = LEASE  # for how long an intent of this controller keeps others out
    actor: str
    trigger: str = "manual"
    environment: Mapping[str, str]
    learn: Callable[[str], object] = _learns_nothing
    remembered: Callable[[], Awaitable[Stored]] | None = None
    """The record as it was read last, asking nobody. None: it is not kept."""
    last_known: Callable[[], Awaitable[Commit | None]] | None = None
    """The newest commit as it was read last, asking nobody."""
    remote_weights: RemoteWeights | None = None
