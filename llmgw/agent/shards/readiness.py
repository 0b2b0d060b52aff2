"""Is it ready, does it still answer, has it drained: the questions a shard is asked while its engine runs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from llmgw.agent.seams import Answer
from llmgw.agent.shards import checks, progress
from llmgw.agent.shards.standstill import Standstill
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.core.life import Drained, Event, PortOpen, ProbeFailed, Ready, Waiting
from llmgw.core.lifecycle import DRAIN_SETTLE
from llmgw.model.launch import HttpProbe, LaunchSpec

OK = 200
CONNECT_WITHIN = 2.0
TOKEN_WITHIN = 120.0
"""Seconds for the first token: engines compile and warm up under it."""
ALIVE_FAILURES = 5
"""In a row, until it is asked whether a ready shard that does not answer does anything at all, and so on."""
DRAIN_EVERY = 1.0
FIRST_PAUSE = 0.1
PAUSE = 0.05
"""Of the time between two questions to an engine that is ready, until its answer is looked at: by then most have come."""
MAX_ANSWER = 160

Tell = Callable[[Event], None]


def pauses(longest: float) -> Iterator[float]:
    """Short first: small models are up at once."""
    pause = min(FIRST_PAUSE, longest)
    while True:
        yield pause
        pause = min(pause * 1.5, longest)


def _until_next(every: float) -> float:
    """Seconds until the next multiple: shards that are asked as often are asked together, which wakes the agent once and
    costs half of what each would by itself."""
    return every - asyncio.get_running_loop().time() % every


def _this_time(every: float) -> float:
    """The multiple that has come, for their answers to be looked at together as well."""
    now = asyncio.get_running_loop().time()
    return now - now % every


class Questions:
    """``key`` is the replica's, for probes that need it. ``prepare`` is done once all answers are good, before it is ready."""

    def __init__(
        self,
        spec: LaunchSpec,
        around: Surroundings,
        key: str | None,
        tell: Tell,
        *,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        self._prepare = prepare
        self._spec = spec
        self._probes = spec.probes
        self._around = around
        self._key = key
        self._tell = tell
        self._looked = False

    async def await_port(self) -> None:
        probes = self._probes
        assert probes.port is not None, "a shard without HTTP has no port to wait for"
        for pause in pauses(self._spec.timeouts.health):
            if await self._around.probe.port_open(probes.host, probes.port, timeout=CONNECT_WITHIN):
                self._tell(PortOpen())
                return
            await asyncio.sleep(pause)

    async def await_ready(self, *, was_ready: bool) -> None:
        """``was_ready``: another agent has seen it so. It may be slow, and is looked at as one that is ready: whether it answers
        nothing and does nothing."""
        if self._probes.port is None:
            await asyncio.sleep(self._spec.timeouts.alive_grace)
            self._tell(Ready())
            return
        for pause in pauses(self._spec.timeouts.health):
            why = await self._not_ready(self._probes.port)
            if why is None:
                await self._prepare()
                self._tell(Ready())
                return
            self._tell(Waiting(reason=why))
            if was_ready and (dead := await self._dead()):
                self._tell(ProbeFailed(why=dead))
                return
            await asyncio.sleep(pause)

    async def watch(self) -> None:
        """As long as it is ready: until it does nothing, and answers nothing or nothing but that it is well."""
        alive = self._probes.alive
        standstill = Standstill(self._spec, self._around, self._key)
        every = self._spec.timeouts.health
        while alive is not None and self._probes.port is not None:
            await asyncio.sleep(_until_next(every))
            answers = not await self._wrong(
                alive, timeout=self._spec.timeouts.health_request, look_at=_this_time(every) + every * PAUSE
            )
            if dead := await (standstill.found() if answers else self._silent(alive)):
                self._tell(ProbeFailed(why=dead))
                return
            if not answers:
                self._tell(Waiting(reason=""))

    async def _dead(self) -> str | None:
        alive = self._probes.alive
        if alive is None or not await self._wrong(alive, timeout=self._spec.timeouts.health_request):
            return None
        return await self._silent(alive)

    async def _silent(self, alive: HttpProbe) -> str | None:
        """Why it counts as dead; None when it answers again."""
        first = before = await progress.look(self._spec, self._around, self._key)
        failures = 1
        while True:
            await asyncio.sleep(self._spec.timeouts.health)
            why = await self._wrong(alive, timeout=self._spec.timeouts.health_request)
            if not why:
                return None
            failures += 1
            if failures % ALIVE_FAILURES:
                continue
            now = await progress.look(self._spec, self._around, self._key)
            work = progress.between(first, before, now)
            if not work:
                return f"{why}; {progress.idle(first, before, now)}"
            self._tell(Waiting(reason=f"busy: {why}; {work}"))
            before = now

    async def drain(self) -> None:
        """What can't be counted is waited for until the deadline."""
        await asyncio.sleep(DRAIN_SETTLE)
        metric, port = self._probes.in_flight, self._probes.port
        if metric is None or port is None:
            self._tell(Waiting(reason="requests in flight that this engine does not count"))
            return
        while True:
            count = await self._around.probe.in_flight(
                self._probes.host, port, metric, key=self._key, timeout=self._spec.timeouts.health_request
            )
            if count == 0:
                self._tell(Drained())
                return
            told = "an unknown number of" if count is None else f"{count:.0f}"
            self._tell(Waiting(reason=f"{told} requests in flight"))
            await asyncio.sleep(DRAIN_EVERY)

    async def _not_ready(self, port: int) -> str | None:
        """Three questions and a token; the first that fails. Who listens is asked before the key is shown to anybody, else at
        last, and once at the first failure, because it explains best: it costs much on a node with thousands of processes."""
        ours = False
        for probe in self._probes.ready:
            if probe.authorized and not ours and (stranger := await self._stranger(port)):
                return stranger
            ours = ours or probe.authorized
            if why := await self._wrong(probe, timeout=self._spec.timeouts.health_request):
                return (None if ours else await self._explained(port)) or why
        if not ours and (stranger := await self._stranger(port)):
            return stranger
        if self._probes.token is not None:
            return await self._wrong(self._probes.token, timeout=TOKEN_WITHIN)
        return None

    async def _explained(self, port: int) -> str | None:
        if self._looked:
            return None
        self._looked = True
        return await self._stranger(port)

    async def _stranger(self, port: int) -> str | None:
        """A healthy answer proves nothing when somebody else gives it."""
        found = await self._around.spawner.listener(port)
        if found is None:
            return f"nothing listens on port {port} any more"
        if found[1] == self._spec.shard:
            return None
        return await checks.held(port, found, self._around.spawner)

    async def _wrong(self, probe: HttpProbe, *, timeout: float, look_at: float = 0.0) -> str | None:
        answer = await self._around.probe.ask(
            self._probes.host, self._probes.port or 0, probe, key=self._key, timeout=timeout, look_at=look_at
        )
        return wrong_with(probe, answer)


def wrong_with(probe: HttpProbe, answer: Answer) -> str | None:
    if answer.status == 0:
        return f"{probe.path}: {answer.text}"
    if answer.status != OK:
        text = " ".join(answer.text.split())[:MAX_ANSWER]
        return f"{probe.path} answered {answer.status}" + (f": {text}" if text else "")
    if probe.contains is not None and probe.contains not in answer.text:
        return f"{probe.path} does not name {probe.contains}"
    return None
