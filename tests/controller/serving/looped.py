"""A loop over a pretended fleet in pretended time, and what a test looks at: the passes that it made."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from llmgw.controller.passes.halt import Halt
from llmgw.controller.repo.records import HistoryEntry
from llmgw.controller.serving.branch import Place
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.loop import Loop
from llmgw.controller.serving.pauses import Pace
from llmgw.controller.serving.snapshot import (
    CommitRefused,
    Event,
    LastPass,
    PassEnded,
    Snapshot,
    Snapshots,
)
from llmgw.model.desired import Desired
from llmgw.model.ids import Commit
from llmgw.model.problems import InvalidError, Problem, RetryError
from llmgw.model.record import Outcome
from tests.controller.passes.pretend import START, Branch, Model, World
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_virtual

POLL, RESYNC = 30.0, 300.0


def run(main: Coroutine[Any, Any, None]) -> None:
    """In pretended time: hours of waiting pass at once."""
    run_virtual(main, VirtualLoop())


class Moody(Branch):
    """A branch that can be out of reach, hold commits that nobody can apply, and break."""

    def __init__(self, nodes: tuple[str, ...], *models: Model) -> None:
        super().__init__(nodes, *models)
        self.trouble: Exception | None = None
        self.bad: set[Commit] = set()
        self.asked = 0

    async def newest(self) -> Commit:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return await super().newest()

    async def desired(self, commit: Commit, *, key_id: str) -> Desired:
        if commit in self.bad:
            raise InvalidError((Problem(what=f"nonsense in {int(commit, 16)}", instead="write sense"),))
        return await super().desired(commit, key_id=key_id)


@dataclass
class Looped:
    world: World
    branch: Moody
    hints: Hints = field(default_factory=Hints)
    stop: Halt = field(default_factory=Halt)
    events: list[Event] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    snapshots: Snapshots = field(
        default_factory=lambda: Snapshots(
            Snapshot(started=START, version="0", fleet="lab", holder="ann@desk")
        )
    )

    def told(self, event: Event) -> None:
        self.events.append(event)

    @property
    def passes(self) -> list[LastPass]:
        return [event.last for event in self.events if isinstance(event, PassEnded)]

    @property
    def refusals(self) -> list[CommitRefused]:
        return [event for event in self.events if isinstance(event, CommitRefused)]

    @property
    def elapsed(self) -> float:
        return asyncio.get_running_loop().time()

    def push(self, *models: Model, bad: bool = False) -> Commit:
        """A commit that the file system tells of."""
        commit = self.branch.commit_models(*models)
        if bad:
            self.branch.bad.add(commit)
        self.moved.set()
        return commit

    async def until(self, condition: Callable[[], object], *, within: float = 10.0) -> float:
        """Seconds of pretended time that it took."""
        since = self.elapsed
        while not condition():
            assert self.elapsed - since < within, f"{within:g} s in vain; passes: {self.passes[-3:]}"
            await asyncio.sleep(0.01)
        return self.elapsed - since

    async def rests(self, *, seconds: float = 20.0) -> None:
        """No pass for a while: everything that was heard is worked off."""
        while True:
            seen = len(self.passes)
            await asyncio.sleep(seconds)
            if len(self.passes) == seen:
                return

    async def history(self) -> tuple[HistoryEntry, ...]:
        return await self.world.store.history()


def unreachable() -> RetryError:
    return RetryError("asking the forge: it does not answer")


@asynccontextmanager
async def looped(
    *models: Model, nodes: tuple[str, ...] = ("gpu01",), ready: bool = True, watched: bool = True
) -> AsyncIterator[Looped]:
    """A loop at work; stopped and looked at in the end: nothing that it began may be left."""
    world = World(*models, nodes=nodes)
    branch = Moody(nodes, *(models or (Model(),)))
    world.branch = branch
    for agent in world.agents.values():
        agent.ready_at_once = ready
    it = Looped(world, branch)
    async with looping(it, watched=watched):
        yield it


@asynccontextmanager
async def looping(it: Looped, *, watched: bool = True) -> AsyncIterator[None]:
    async def watch(moved: asyncio.Event) -> None:
        while True:
            await it.moved.wait()
            it.moved.clear()
            moved.set()

    async def name() -> str:
        return "main"

    before = asyncio.all_tasks()
    loop = Loop(
        it.world.fleet(),
        pace=Pace(poll=POLL, jitter=3.0, resync=RESYNC),
        snapshots=it.snapshots,
        hints=it.hints,
        rng=Random(7),
        observers=(it,),
        place=Place(name=name, watch=watch if watched else None),
    )
    work = asyncio.create_task(loop.run(it.stop))
    try:
        yield
    finally:
        it.stop.now(Outcome.INTERRUPTED, "the test ends")
        await asyncio.wait({work}, timeout=600)
    assert work.done(), "it does not stop"
    work.result()
    await asyncio.sleep(60)  # agents finish what they were asked, whoever has gone
    left = asyncio.all_tasks() - before
    assert not left, f"tasks are left: {left}"
