"""One shard: brings what happens to the lifecycle's table, writes what it says to disk, and carries it out. The only
writer of the shard's life. Decides nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from llmgw.agent.cancelling import cancelled
from llmgw.agent.seams import Running
from llmgw.agent.shards import autopsy, clearing, computing, launching, reports
from llmgw.agent.shards.adapters import Adapters
from llmgw.agent.shards.jobs import await_jobs
from llmgw.agent.shards.measuring import measured
from llmgw.agent.shards.orders import StoredOrder, with_adapters
from llmgw.agent.shards.readiness import Questions
from llmgw.agent.shards.started import Started
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import (
    LIVE,
    TERMINAL,
    Action,
    Adopted,
    DeadlinePassed,
    DrainAsked,
    Event,
    Exited,
    JobsFailed,
    LaunchRefused,
    Life,
    Ordered,
    ProbeFailed,
    Rebooted,
    StopAsked,
    Waiting,
)
from llmgw.core.lifecycle import describe_exit, is_adopted, rules_of, step
from llmgw.model.facts import Gpu
from llmgw.model.launch import ENGINE, LaunchSpec, LoraAdapter
from llmgw.model.problems import LlmgwError, StalledError
from llmgw.model.report import ByHand, ComputesOn, Exit, ShardReport, ShardState
from llmgw.model.struct import Struct, replace
from llmgw.model.weights import Measured
from llmgw.wire.codec import CodecError

log = logging.getLogger(__name__)

TELLING = frozenset({ShardState.READY, ShardState.BACKOFF, ShardState.FAILED})
"""When an engine has said what it has to say of its memory: that it has got it, or that it could not."""
AGAIN_AFTER = 5.0
"""Seconds until an activity that has broken is begun again."""


class _Letter(Struct):
    """An event on its way to the table. ``turn`` is the activity's or the deadline's that it belongs to: what was
    overtaken by another says nothing any more. None: whenever it comes."""

    event: Event | None  # None: only to know that everything before it has been taken in
    turn: int | None = None
    taken: "asyncio.Future[None] | None" = None


class Shard:
    """Begun by ``begin`` with what has become of it; then ``tell`` commands. ``close`` leaves its processes alone."""

    def __init__(
        self, order: StoredOrder, around: Surroundings, secrets: Mapping[str, str], *, lost: str = ""
    ) -> None:
        self._order = order
        self._lost = lost
        self._around = around
        self._rules = rules_of(order.spec)
        self._inbox: asyncio.Queue[_Letter] = asyncio.Queue()
        self._secrets = dict(secrets)
        self._started = Started(order.spec, around, self._ended, self.masked)
        self._adapters = Adapters(
            lambda: self.spec, around, tell=lambda: around.events(self.report()), mask=self.masked
        )
        self._main: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._activity: asyncio.Task[None] | None = None
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_turn = 0
        self._problem = ""
        self._measured: Measured | None = None

    @property
    def spec(self) -> LaunchSpec:
        return self._order.spec

    @property
    def life(self) -> Life:
        return self._order.life

    @property
    def order(self) -> StoredOrder:
        return self._order

    @property
    def terminal(self) -> bool:
        return self.life.state in TERMINAL

    @property
    def lost(self) -> str:
        """What is missing of its order; an order that comes again brings it."""
        return self._lost

    @property
    def problem(self) -> str:
        return self._problem

    @property
    def how_it_ended(self) -> str:
        """The last end of its engine; empty while one runs, and when none has run."""
        exit_ = self.life.last_exit
        return describe_exit(exit_) if exit_ is not None and self._started.engine is None else ""

    def masked(self, text: str) -> str:
        """Without the shard's secrets, those it had before included."""
        return autopsy.mask(text, self._secrets.values())

    def learn(self, secrets: Mapping[str, str]) -> None:
        """New ones, used from the next question and the next start on."""
        earlier = {f"earlier {name}": value for name, value in self._secrets.items()}
        self._secrets = {**earlier, **secrets}
        self._lost = ""

    def report(self) -> ShardReport:
        shown = self.life.state in LIVE or self.life.state in (ShardState.DRAINING, ShardState.STOPPING)
        seen = reports.Seen(
            engine=self._started.engine,
            last_line=self.masked(self._around.logs.last_line(self.spec.shard, ENGINE)) if shown else "",
            by_hand=self._order.by_hand,
            lost=self._lost,
            problem=self._problem,
            measured=self._measured,
            computes_on=self._computes_on,
            adapters=self._adapters.reports(),
        )
        return reports.report(self.spec, self.life, seen)

    def begin(self, *events: Event, running: tuple[Running, ...] = ()) -> None:
        """``running``: processes found, whose ends are watched from now on."""
        for one in running:
            self._started.watch(one)
        for event in events:
            self._inbox.put_nowait(_Letter(event=event))
        self._main = asyncio.ensure_future(self._run())
        if self.spec.lora is not None:
            self._keeping = asyncio.ensure_future(self._adapters.keep())

    async def tell(self, event: Event) -> None:
        """Returns when the event has been taken in and what it means is on disk."""
        await self._taken_in(event)

    async def commanded(self, by_hand: ByHand | None) -> None:
        """By whom it was told last is part of its order: a person on the node; None: the controller."""
        if by_hand == self._order.by_hand:
            return
        self._order = replace(self._order, by_hand=by_hand)
        await self._save()
        self._around.events(self.report())

    async def change_adapters(self, adapters: tuple[LoraAdapter, ...]) -> None:
        """Raises StalledError when the disk refuses the order, which then stays as it was."""
        before = self.spec
        self._order = replace(self._order, spec=with_adapters(before, adapters))
        try:
            await self._around.orders.save(self._order)
        except StalledError:
            self._order = replace(self._order, spec=before)
            raise
        self._adapters.changed()
        self._around.events(self.report())

    async def sampled(self, gpus: tuple[Gpu, ...]) -> None:
        """A look at the node's GPUs. What it tells of this shard is kept for a time when nobody can tell."""
        engine = self._started.engine
        on = computing.seen(self.spec, gpus)
        if engine is None or engine.engine is None or on is None:
            return
        before = self._computes_on
        self._order = replace(self._order, computing=computing.Computing(on=on, engine=engine.engine))
        if before is None or set(before.gpus) != set(on.gpus):  # not for each MiB
            await self._save()

    @property
    def _computes_on(self) -> ComputesOn | None:
        engine, known = self._started.engine, self._order.computing
        return (
            known.on if known is not None and engine is not None and engine.engine == known.engine else None
        )

    async def settled(self) -> None:
        """Returns when what it was begun with has been taken in."""
        await self._taken_in(None)

    async def _taken_in(self, event: Event | None) -> None:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(_Letter(event=event, taken=taken))
        assert self._main is not None, "begun before it is told anything"
        await asyncio.wait({taken, self._main}, return_when=asyncio.FIRST_COMPLETED)
        if not taken.done():
            self._main.result()  # the watch over this shard has ended: say why, rather than wait for ever

    async def close(self) -> None:
        """Stops watching; the processes run on."""
        self._disarm()
        await cancelled(self._main, self._activity, self._keeping, *self._started.tasks())

    # ---- The table ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            letter = await self._inbox.get()
            try:
                timely = letter.turn is None or letter.turn in (self._turn, self._timer_turn)
                if timely and letter.event is not None:
                    await self._advance(letter.event)
            except Exception:
                # One event that could not be taken in must not end the watch over a running engine.
                log.exception("shard %s: taking in %r", self.spec.shard, type(letter.event).__name__)
            # Only here: an agent that dies in between has taken nothing in.
            if letter.taken is not None and not letter.taken.done():
                letter.taken.set_result(None)

    async def _advance(self, event: Event) -> None:
        if isinstance(event, DeadlinePassed):
            self._timer = None
        before = self.life
        life, actions = step(before, event, self._around.clock.now(), self._rules)
        if life == before and not actions:
            return
        self._order = replace(self._order, life=life, processes=self._started.running)
        self._publish(before, life)  # whoever watches need not wait for the disk
        news = replace(life, reason="") != replace(before, reason="") or actions
        if news and not _known_to_the_next(event, before):
            await self._save(lasting=isinstance(event, StopAsked | DrainAsked | Rebooted))
        if life.deadline != before.deadline or self._timer is None:
            self._arm(life)
        for action in actions:
            await self._begin_activity(action)

    async def _save(self, *, lasting: bool = True) -> None:
        """What is not a command need not outlive a power failure: no process does, and the next agent sees that."""
        before = self._problem
        try:
            await self._around.orders.save(self._order, lasting=lasting)
        except LlmgwError as wrong:
            if not before:
                self._around.events(reports.problem(self.spec.shard, str(wrong)))
            self._problem = str(wrong)
        else:
            self._problem = ""
        if self._problem != before:
            self._around.events(self.report())

    def _publish(self, before: Life, life: Life) -> None:
        if life.state is not before.state:
            if life.state is not ShardState.DRAINING:
                self._adapters.serving(life.state)
            log.info(
                "shard %s: %s -> %s: %s", self.spec.shard, before.state.value, life.state.value, life.reason
            )
            self._around.events(reports.moved(self.spec, before.state, life))
            if life.state in TELLING and self.spec.measure is not None:
                self._measured = measured(self.spec, self._started.output(ENGINE)) or self._measured
        self._around.events(self.report())

    # ---- Time ---------------------------------------------------------------------------------------------

    def _arm(self, life: Life) -> None:
        """A deadline is turned into the loop's time once, whatever happens before it, so that a clock that is set moves none."""
        self._disarm()
        if life.deadline is None:
            return
        seconds = (life.deadline - self._around.clock.now()).total_seconds()
        self._timer_turn = self._next_turn()
        letter = _Letter(event=DeadlinePassed(), turn=self._timer_turn)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(seconds, 0), self._inbox.put_nowait, letter)

    def _disarm(self) -> None:
        self._timer_turn = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_turn(self) -> int:
        return max(self._turn, self._timer_turn) + 1

    # ---- Activities ---------------------------------------------------------------------------------------

    async def _begin_activity(self, action: Action) -> None:
        await cancelled(self._activity)
        self._activity = None
        self._turn = self._next_turn()
        if action is Action.REST:
            return
        if action is Action.LAUNCH and self._problem:
            # What can't be written isn't started: the next agent would not know of it.
            refused = LaunchRefused(error=f"its order can't be written: {self._problem}", mismatch=True)
            self._inbox.put_nowait(_Letter(event=refused, turn=self._turn))
            return
        self._activity = asyncio.ensure_future(self._perform(action, self._turn))

    async def _perform(self, action: Action, turn: int) -> None:
        def tell(event: Event) -> None:
            self._inbox.put_nowait(_Letter(event=event, turn=turn))

        while True:
            try:
                await self._activities(action, tell)()
            except Exception as wrong:
                log.exception("shard %s: %s has broken", self.spec.shard, action.value)
                tell(_broken(action, wrong))
            else:
                return
            if action in (Action.AWAIT_JOBS, Action.LAUNCH):
                return
            await asyncio.sleep(AGAIN_AFTER)

    def _activities(self, action: Action, tell: Callable[[Event], None]) -> Callable[[], Awaitable[None]]:
        match action:
            case Action.AWAIT_JOBS:
                return lambda: await_jobs(self.spec, self._around, tell)
            case Action.LAUNCH:
                return lambda: launching.launch(self.spec, self._around, self._started, tell)
            case Action.CLEAR:
                return lambda: clearing.clear(self.spec, self._around, self._started, tell)
            case Action.AWAIT_PORT | Action.AWAIT_READY | Action.WATCH | Action.DRAIN:
                return lambda: self._ask(action, tell)
            case Action.REST:
                raise AssertionError("resting is no activity")

    async def _ask(self, action: Action, tell: Callable[[Event], None]) -> None:
        try:
            secrets = await self._around.orders.secrets(self.spec.shard)
        except CodecError as wrong:
            tell(Waiting(reason=str(wrong)))
            secrets = {}
        questions = Questions(
            self.spec,
            self._around,
            secrets.get("key"),
            lambda event: tell(self._clean(event)),
            prepare=self._adapters.first,
        )
        match action:
            case Action.AWAIT_PORT:
                await questions.await_port()
            case Action.AWAIT_READY:
                await questions.await_ready(was_ready=is_adopted(self.life))
            case Action.WATCH:
                await questions.watch()
            case _:
                await questions.drain()

    def _clean(self, event: Event) -> Event:
        """An engine's refusal may quote the key that it refuses."""
        if isinstance(event, Waiting):
            return replace(event, reason=self.masked(event.reason))
        return replace(event, why=self.masked(event.why)) if isinstance(event, ProbeFailed) else event

    def _ended(self, exit_: Exit) -> None:
        told = reports.ended(self.spec.shard, exit_, told=self.life.state is ShardState.STOPPING)
        self._around.logs.note(self.spec.shard, told.text)
        self._around.events(told)
        process = next((one for one in self.spec.processes if one.name == exit_.process), None)
        if process is None or not process.optional:
            self._inbox.put_nowait(_Letter(event=Exited(exit=exit_)))


def _broken(action: Action, wrong: Exception) -> Event:
    text = f"{action.value} has broken: {type(wrong).__name__}: {wrong}"
    match action:
        case Action.AWAIT_JOBS:
            return JobsFailed(error=text, retry=True)
        case Action.LAUNCH:
            return LaunchRefused(error=text, processes=True)
        case _:
            return Waiting(reason=text)


def _known_to_the_next(event: Event, before: Life) -> bool:
    """Whether the next agent comes to the same by what is on disk: an order has just been written, and what is adopted is found
    running again. Waiting for the disk, 32 shards would be adopted one after another."""
    return isinstance(event, Ordered) or (isinstance(event, Adopted) and before.state in LIVE)
