"""The processes that one shard has started or adopted, and their ends."""

import asyncio
import logging
from collections.abc import Callable

from llmgw.agent.seams import Order, Running
from llmgw.agent.shards import autopsy
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.model.launch import ENGINE, LaunchSpec
from llmgw.model.report import Exit

log = logging.getLogger(__name__)


class Started:
    """``ended`` is called with the explained end of each process; ``mask`` takes secrets out of what they wrote."""

    def __init__(
        self,
        spec: LaunchSpec,
        around: Surroundings,
        ended: Callable[[Exit], None],
        mask: Callable[[str], str],
    ) -> None:
        self._mask = mask
        self._spec = spec
        self._around = around
        self._ended = ended
        self._running: dict[str, Running] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._begins: dict[str, int] = {}
        self._spawning: asyncio.Task[Running] | None = None

    @property
    def engine(self) -> Running | None:
        return self._running.get(ENGINE)

    @property
    def running(self) -> tuple[Running, ...]:
        """In the order of the spec."""
        names = [process.name for process in self._spec.processes]
        return tuple(self._running[name] for name in names if name in self._running)

    async def spawn(self, order: Order) -> Running:
        """A start that is cancelled is not abandoned: ``settle`` brings its process in."""
        self._begins[order.process] = self._around.logs.place(order.shard, order.process)
        self._spawning = asyncio.ensure_future(self._around.spawner.spawn(order))
        try:
            running = await asyncio.shield(self._spawning)
        except Exception:
            self._spawning = None
            raise
        self._spawning = None
        self.watch(running)
        return running

    async def settle(self) -> None:
        """Waits for a start that was under way when its launch was given up, and calls off what was only prepared."""
        await self._around.spawner.dismiss(self._spec.shard)
        if self._spawning is None:
            return
        try:
            self.watch(await self._spawning)
        except Exception as wrong:  # noqa: BLE001 - it has not started; that is all that matters here
            log.info("shard %s: a start that was given up has failed: %s", self._spec.shard, wrong)
        self._spawning = None

    def watch(self, running: Running) -> None:
        """From now on its end is seen."""
        self._running[running.process] = running
        self._watchers[running.process] = asyncio.ensure_future(self._await_end(running))

    async def ended_within(self, names: set[str], seconds: float) -> bool:
        """Whether all of them end in time."""
        tasks = {self._watchers[name] for name in names if name in self._watchers}
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=seconds)
        return not pending

    def forget(self) -> None:
        """When nothing is left."""
        for task in self._watchers.values():
            task.cancel()
        self._running.clear()
        self._watchers.clear()

    def tasks(self) -> list["asyncio.Task[None]"]:
        """For an agent that ends: the processes go on."""
        return list(self._watchers.values())

    def explain(self, exit_: Exit, evidence: autopsy.Evidence = autopsy.NOTHING_SEEN) -> Exit:
        return autopsy.explain(exit_, self.output(exit_.process), evidence)

    def output(self, process: str) -> str:
        """What it has written since its start, or the end of that; without secrets."""
        begin = self._begins.get(process, 0)
        return self._mask(self._around.logs.since(self._spec.shard, process, begin, most=autopsy.READ))

    async def _await_end(self, running: Running) -> None:
        path = self._around.status_file(running.shard, running.process)
        exit_ = await self._around.spawner.exited(running, path)
        self._running.pop(running.process, None)
        evidence = await self._around.evidence(exit_, running, self._spec)
        self._ended(self.explain(exit_, evidence))
