"""Death in the middle of anything: an *incarnation* is one life of a process that is pretended, and everything it does
to the world goes through guarded seams. When it dies, every later call of its seams raises as well, so that no
``finally`` of a dead process can touch the world.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, cast

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process has just died, as by kill -9."""


CURRENT: ContextVar["Incarnation | None"] = ContextVar("CURRENT", default=None)
"""Whose code runs: tasks inherit it, so that a dead incarnation's tasks can be found."""


class Incarnation:
    """One life of a controller or an agent. ``reached`` hears of every seam call, before and after it."""

    def __init__(self, name: str, reached: Callable[["Incarnation", str], None]) -> None:
        self.name = name
        self.dead = False
        self.calls = 0
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)
        self._reached = reached
        self._crash_in: int | None = None
        self._freeze_in: tuple[int, float] | None = None
        self._frozen_until = 0.0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_death: list[Callable[[], None]] = []

    def crash_in(self, calls: int) -> None:
        """Die at the ``calls``-th seam call from now on; 0: not any more."""
        self._crash_in = calls or None

    def freeze_in(self, calls: int, seconds: float) -> None:
        """Stand still for a while at the ``calls``-th seam call from now on, as a machine that sleeps does."""
        self._freeze_in = (self.calls + calls, seconds)

    async def thawed(self) -> None:
        left = self._frozen_until - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    def when_dead(self, do: Callable[[], None]) -> None:
        self._on_death.append(do)

    def reach(self, point: str) -> None:
        """Every seam method comes by here before it does anything and after it has done it."""
        if self.dead:
            raise SimulatedCrash(self.name)
        self.calls += 1
        self._reached(self, point)
        if self._freeze_in is not None and self.calls >= self._freeze_in[0]:
            self._frozen_until = asyncio.get_running_loop().time() + self._freeze_in[1]
            self._freeze_in = None
        if self._crash_in is not None:
            self._crash_in -= 1
            if self._crash_in <= 0:
                self.die()
                raise SimulatedCrash(self.name)

    def die(self) -> None:
        if self.dead:
            return
        self.dead = True
        for task in self._tasks:
            if not task.done():
                task.cancel()
        for do in self._on_death:
            do()

    def own(self, task: "asyncio.Task[Any]") -> None:
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that belongs to this incarnation, whoever asks for it."""
        return asyncio.get_running_loop().create_task(work, context=self.context.copy())


def own_tasks(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Context | None = None
) -> "asyncio.Task[Any]":
    """Task factory: each task is known to the incarnation whose code made it."""
    owner = context.run(CURRENT.get) if context is not None else CURRENT.get()
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    if owner is not None:
        owner.own(task)
        if owner.dead:
            task.cancel()
    return task


class _Outcome(Awaitable[T]):
    """An awaitable that was handed out before it had anything to tell."""

    def __init__(self, inner: Awaitable[T], after: Callable[[], None]) -> None:
        self._inner = inner
        self._after = after

    def __await__(self) -> Generator[Any, None, T]:
        result = yield from self._inner.__await__()
        self._after()
        return result


class Guard:
    """Stands in front of any seam: same methods, each of which may be the last. ``delay`` gives the seconds that an
    asynchronous call takes, before it does its work and after it."""

    def __init__(self, seam: Any, life: Incarnation, name: str, delay: Callable[[], float]) -> None:
        self._seam = seam
        self._life = life
        self._name = name
        self._delay = delay

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._seam, attribute)
        if not callable(value):
            return value
        point = f"{self._name}.{attribute}"
        guarded = self._slow if inspect.iscoroutinefunction(value) else self._quick
        method = guarded(value, point)
        setattr(self, attribute, method)  # the next look finds it without coming here
        return method

    def _slow(self, do: Callable[..., Awaitable[Any]], point: str) -> Callable[..., Awaitable[Any]]:
        begins, acts, acted, returns = (
            f"{point} {what}" for what in ("begins", "acts", "has acted", "returns")
        )
        life, delay, sleep = self._life, self._delay, asyncio.sleep

        async def call(*args: Any, **kwargs: Any) -> Any:
            life.reach(begins)
            await sleep(delay())
            await life.thawed()
            life.reach(acts)
            result = await do(*args, **kwargs)
            life.reach(acted)
            if (takes := delay()) > 0:
                await sleep(takes)
            await life.thawed()
            life.reach(returns)
            return result

        return call

    def _quick(self, do: Callable[..., Any], point: str) -> Callable[..., Any]:
        acts, acted, returns = (f"{point} {what}" for what in ("acts", "has acted", "returns"))
        life = self._life

        def call(*args: Any, **kwargs: Any) -> Any:
            life.reach(acts)
            result = do(*args, **kwargs)
            life.reach(acted)
            if inspect.isasyncgen(result):
                return self._items(result, point)
            if inspect.isawaitable(result):
                return _Outcome(result, lambda: life.reach(returns))
            return result

        return call

    async def _items(self, items: AsyncIterator[Any], point: str) -> AsyncIterator[Any]:
        async for item in items:
            self._life.reach(f"{point} tells")
            yield item


def guard(seam: T, life: Incarnation, name: str, delay: Callable[[], float]) -> T:
    """The seam itself to whoever uses it."""
    return cast("T", Guard(seam, life, name, delay))
