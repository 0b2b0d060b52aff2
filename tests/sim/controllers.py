"""Controllers of a history: each is one life on one machine, which may end at any seam call.

What a life does is a coroutine over a fleet of fakes, its links and a halt: one pass, passes until all has settled, or
whatever else works that way (see ``Work``).
"""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from llmgw.clock import Clock
from llmgw.controller.fleet import Fleet
from llmgw.controller.nodes.transport import Link, Transport
from llmgw.controller.passes.custody import Custody
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Prepared, Wish, prepare
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.rotation import begin_rotation
from llmgw.controller.passes.settle import settle
from llmgw.controller.passes.values import PassRequest, PassResult
from llmgw.controller.repo.records import RecordStore
from llmgw.controller.secrets import MemorySecret
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import FleetId
from llmgw.model.problems import HeldError, InvalidError, LlmgwError
from llmgw.model.record import Outcome
from llmgw.model.struct import replace
from tests.sim.commits import Commits
from tests.sim.crash import Guard, Incarnation, SimulatedCrash, guard
from tests.sim.loop import LoopClock
from tests.sim.node import MUTATING
from tests.sim.store import SimStore

SLEEPS = 200.0
"""Seconds that a machine sleeps with an apply at work: longer than its lease."""
LOCKED = 10.0
"""Seconds that somebody waits for another apply of the same machine."""
FLEET = FleetId("fleet-of-the-simulation")


Sending = Callable[[Clock, str, Any], None]
"""Told of each command before it is sent: the clock that its sender goes by, method, parameters."""
Work = Callable[[Fleet, Links, Halt], Awaitable[PassResult | None]]
"""What a controller does with its life."""


SECRET = b"a secret that is long enough for the purpose"


@dataclass(slots=True)
class Machine:
    """A machine that people apply from: its holder name, its clock, its own way to the record, and its kernel lock,
    which a dead process gives back, and the files of its secret."""

    holder: str
    clock: LoopClock
    store: RecordStore
    secret: MemorySecret = field(default_factory=lambda: MemorySecret(SECRET))
    inside: Incarnation | None = None

    @asynccontextmanager
    async def lock(self, timeout: float, life: Incarnation) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout
        while self.inside is not None and not self.inside.dead:
            if loop.time() >= give_up:
                raise HeldError(f"another apply is at work on this machine ({self.inside.name})")
            await asyncio.sleep(0.5)
        self.inside = life
        try:
            yield
        finally:
            if self.inside is life:
                self.inside = None


class GuardedLink(Guard):
    """A link of one life, which tells of commands that are about to be sent."""

    def __init__(
        self,
        link: Link,
        life: Incarnation,
        delay: Callable[[], float],
        sending: Callable[[str, Any], None],
    ) -> None:
        super().__init__(link, life, "link", delay)
        self._sending = sending
        self._request = self._slow(link.request, "link.request")

    async def request(self, method: str, params: Any, result: type[Any], *, timeout: float) -> Any:
        if method in MUTATING:
            self._sending(method, params)
        return await self._request(method, params, result, timeout=timeout)


class GuardedTransport:
    """A transport of one life: its links are guarded as well."""

    def __init__(
        self,
        transport: Transport,
        life: Incarnation,
        delay: Callable[[], float],
        sending: Callable[[str, Any], None],
    ) -> None:
        self._sending = sending
        self._transport = guard(transport, life, "transport", delay)
        self._life = life
        self._delay = delay

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        link = await self._transport.connect(node, fleet=fleet)
        return cast("Link", GuardedLink(link, self._life, self._delay, self._sending))

    async def probe(self, node: DesiredNode) -> Facts:
        return await self._transport.probe(node)

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        await self._transport.bootstrap(node, fleet=fleet)

    async def close(self) -> None:
        await self._transport.close()


@dataclass(slots=True, kw_only=True)
class Controllers:
    """Begins controllers of one fleet. ``running`` holds those that have not ended, each with its life."""

    commits: Commits
    store: SimStore
    transport: Transport
    machines: Mapping[str, Machine]
    delay: Callable[[], float]
    life: Callable[[str], Incarnation]
    told: Callable[[str], None]
    violate: Callable[[str], None]
    sending: Sending
    allow_prune: bool = True
    passes: int = 0
    running: dict[asyncio.Task[PassResult | None], Incarnation] = field(default_factory=dict)

    def begin(
        self,
        machine: str,
        work: Work | None = None,
        *,
        crash_in: int | None = None,
        freeze_in: int | None = None,
        at_work: bool = False,
    ) -> "asyncio.Task[PassResult | None]":
        """A controller that works beside whatever else happens, one pass if nothing else is said; None: it died, or could not
        go on. ``at_work``: the calls until it dies or falls asleep count from its intent."""
        self.passes += 1
        life = self.life(f"pass{self.passes} {machine}")

        def arm() -> None:
            if crash_in is not None:
                life.crash_in(crash_in)
            if freeze_in is not None:
                life.freeze_in(freeze_in, SLEEPS)

        if at_work:
            self.store.at_intent[machine] = arm
        else:
            arm()
        task = life.spawn(self._lives(self.machines[machine], life, work or self.once))
        self.running[task] = life
        task.add_done_callback(lambda done: self.running.pop(done, None))
        return task

    async def _lives(self, machine: Machine, life: Incarnation, work: Work) -> PassResult | None:
        links = Links({"local": self._transport(machine, life, self.delay)})
        try:
            result = await work(self.fleet(machine, life), links, Halt())
        except InvalidError as wrong:
            self.violate(f"{life.name}: the history's manifests are wrong: {wrong}")
            return None
        except LlmgwError as refused:
            self.told(f"{life.name}: {type(refused).__name__}: {refused}")
            return None
        except BaseException as end:  # noqa: BLE001 - whatever ends a pass must not end the history
            if not (life.dead and died(end)):
                self.violate(f"{life.name} broke: {broken(end)}")
            return None
        finally:
            if not life.dead:
                await links.close()
        if result is not None and result.outcome is not None:
            self.told(f"{life.name}: serial {result.record.serial} {result.outcome.value} {result.halted}")
        return result

    async def once(self, fleet: Fleet, links: Links, halt: Halt) -> PassResult:
        """One pass."""
        return await self._pass(fleet, links, halt, self._request())

    def once_with(self, **wish: Any) -> Work:
        """One pass with what somebody asks for beside the commit; see prepare.Wish."""

        async def work(fleet: Fleet, links: Links, halt: Halt) -> PassResult:
            return await self._pass(fleet, links, halt, self._request(**wish))

        return work

    def takes(self, custody: Custody) -> Work:
        """One pass by which somebody forgets or adopts what runs."""

        async def work(fleet: Fleet, links: Links, halt: Halt) -> PassResult:
            request = replace(self._request(), instead=custody.plan, amend=custody.amend)
            return await self._pass(fleet, links, halt, request)

        return work

    async def rotates(self, fleet: Fleet, links: Links, halt: Halt) -> PassResult:
        """`secret rotate`: another secret, and a pass of what was applied last."""
        rotation = await begin_rotation(fleet, patience=LOCKED)
        return await self._pass(fleet, links, halt, self._request(commit=rotation.commit))

    @property
    def secret(self) -> MemorySecret:
        """Of whoever rotates it."""
        return self.machines["ann@desk"].secret

    @staticmethod
    def hand_over(keeper: Machine, other: Machine) -> None:
        """A copy of the secret's files."""
        other.secret.secret, other.secret.earlier = keeper.secret.secret, dict(keeper.secret.earlier)

    @staticmethod
    async def _pass(fleet: Fleet, links: Links, halt: Halt, request: PassRequest) -> PassResult:
        return await one_pass(fleet, request, links=links, halt=halt, progress=Silent())

    def until_settled(self, patience: float) -> Work:
        """Passes as `apply --wait` makes them, until somebody presses Ctrl-C after so many seconds."""

        async def wait(fleet: Fleet, links: Links, halt: Halt) -> PassResult:
            loop = asyncio.get_running_loop()
            interrupt = loop.call_later(patience, halt.now, Outcome.INTERRUPTED, "Ctrl-C")
            try:
                done = await settle(fleet, self._request(), links=links, halt=halt, progress=Silent())
            finally:
                interrupt.cancel()
            self.told(f"{fleet.holder} waited for {done.passes} passes: {done.last.halted or 'settled'}")
            return done.last

        return wait

    def _request(self, **wish: Any) -> PassRequest:
        return PassRequest(wish=Wish(allow_prune=self.allow_prune, **wish))

    async def look(self) -> Prepared:
        """What ``llmgw plan`` would see now."""
        machine, life = self.machines["ann@desk"], self.life("plan")
        links = Links({"local": self._transport(machine, life, lambda: 0.0)})
        try:
            return await prepare(self.fleet(machine, life), self._request().wish, links)
        finally:
            await links.close()

    def _transport(self, machine: Machine, life: Incarnation, delay: Callable[[], float]) -> GuardedTransport:
        return GuardedTransport(self.transport, life, delay, partial(self.sending, machine.clock))

    def fleet(self, machine: Machine, life: Incarnation) -> Fleet:
        return Fleet(
            name="sim",
            source=guard(self.commits, life, "source", self.delay),
            store=guard(machine.store, life, "store", self.delay),
            transports={},
            adapters=ADAPTERS,
            clock=machine.clock,
            secret=guard(machine.secret, life, "secret", self.delay),
            lock=lambda timeout: machine.lock(timeout, life),
            first_id=FLEET,
            holder=machine.holder,
            actor=machine.holder,
            environment={},
        )


def broken(error: BaseException) -> str:
    """An error and the place that it comes from, in a line."""
    if group := _group(error):
        return "; ".join(broken(one) for one in group)
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))
    return f"{type(error).__name__}: {error} at {places}"


def died(end: BaseException) -> bool:
    """Whether this is only how a simulated crash looks from outside."""
    if group := _group(end):
        return all(died(one) for one in group)
    return isinstance(end, SimulatedCrash | asyncio.CancelledError)


def _group(error: BaseException) -> tuple[BaseException, ...]:
    """What a group of errors holds; the linter's oldest Python does not know the class."""
    return getattr(error, "exceptions", ())
