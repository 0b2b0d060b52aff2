"""The world of one history: nodes, store, commits, controllers, one pretended clock, one source of chance."""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from llmgw.agent.fakes import PretendedNode
from tests.sim.commits import Commits, FleetWish, NodeWish, address_of
from tests.sim.controllers import Controllers, Machine, broken, died
from tests.sim.crash import Incarnation, own_tasks
from tests.sim.invariants import Invariants
from tests.sim.loop import LoopClock, VirtualLoop
from tests.sim.node import SimNode, SimTransport
from tests.sim.store import OpenStore, SimStore

LAST_ACTIONS = 40


class World:
    """Everything that happens is told here; ``digest`` sums up every seam call, so that two runs can be compared."""

    def __init__(
        self,
        rng: Random,
        wish: FleetWish,
        *,
        machines: Sequence[NodeWish] = (),
        allow_prune: bool = True,
        opened: OpenStore | None = None,
    ) -> None:
        """``machines``: those that become nodes later among them; otherwise those of the wish."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.set_task_factory(own_tasks)  # type: ignore[arg-type] # typeshed wants it generic in the task's kind
        loop.set_exception_handler(self._unhandled)
        self.loop = loop
        self.rng = rng
        self.clock = LoopClock(loop)
        self.actions: deque[str] = deque(maxlen=4000)
        self.calls = 0
        self.violations: list[str] = []
        self._digest = hashlib.sha256()
        self.commits = Commits()
        self.commits.add(wish)
        self.store = SimStore(rng, self.clock, opened=opened, wrote=self._wrote)
        self._network: dict[str, PretendedNode] = {}
        self.nodes = {node.name: self._node(node.name, node.gpus) for node in machines or wish.nodes}
        self.invariants = Invariants(self)
        self.controllers = Controllers(
            commits=self.commits,
            store=self.store,
            transport=SimTransport(self.nodes),
            machines={
                name: Machine(holder=name, clock=LoopClock(loop), store=self.store.at(name))
                for name in ("ann@desk", "bob@laptop")
            },
            delay=self.delay,
            life=self.life,
            told=self.told,
            violate=self.violate,
            sending=self.invariants.sending,
            allow_prune=allow_prune,
        )
        self._background: set[asyncio.Task[Any]] = set()
        self._listening = _Errors(self)
        logging.getLogger("llmgw").addHandler(self._listening)

    def _node(self, name: str, gpus: int) -> SimNode:
        node = SimNode(
            name,
            gpus,
            rng=self.rng,
            clock=LoopClock(self.loop),
            life=self.life,
            delay=self.delay,
            told=self.told,
            watched=self._watched,
            network=self._network,
        )
        self._network[address_of(name)] = node.machine
        node.machine.on_signal = lambda process, number: self.invariants.signalled(node, process, number)
        node.machine.on_begin = lambda: self.invariants.began(node)
        node.machine.on_end = lambda shard: self.invariants.ended(node, shard)
        node.on_write = lambda path, data: self.invariants.written(node, path, data)
        node.on_wipe = lambda: self.invariants.wiped(node)
        node.on_death = lambda: self.invariants.agent_died(node)
        node.on_answer = lambda: self.invariants.agent_is_back(node)
        return node

    def close(self) -> None:
        logging.getLogger("llmgw").removeHandler(self._listening)
        for task, life in list(self.controllers.running.items()):
            life.die()
            task.cancel()
        for node in self.nodes.values():
            node.kill_agent()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Goes on beside the history; that it can't is told by whoever needs it."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.told(f"background: {error}")

    def set_clocks(self, seconds: float, *clocks: LoopClock) -> None:
        """As somebody sets them, or NTP does; all of them if none is named."""
        controllers = [machine.clock for machine in self.controllers.machines.values()]
        nodes = [node.clock for node in self.nodes.values()]
        for clock in clocks or (self.clock, *controllers, *nodes):
            clock.step += timedelta(seconds=seconds)
        steps = {clock.step for clock in controllers}
        self.invariants.clocks_differ = self.invariants.clocks_differ or len(steps) > 1

    # ---- what happens --------------------------------------------------------------------------------

    def life(self, name: str) -> Incarnation:
        return Incarnation(name, self._reached)

    def delay(self) -> float:
        """Most calls take no time; some take long enough for others to come in between."""
        draw = self.rng.random()
        return 0.0 if draw < 0.9 else 0.005 if draw < 0.97 else self.rng.uniform(0.05, 1.5)

    def told(self, text: str) -> None:
        self.actions.append(f"{self.loop.elapsed:9.3f} {text}")
        self._digest.update(f"{self.loop.elapsed!r} {text}\n".encode())
        if text.startswith("TWICE"):
            self.violate(text)

    def violate(self, text: str) -> None:
        self.violations.append(f"{self.loop.elapsed:9.3f} {text}")
        self.told(f"VIOLATION {text}")

    def digest(self) -> str:
        return self._digest.hexdigest()

    def _reached(self, life: Incarnation, point: str) -> None:
        self.calls += 1
        self._digest.update(f"{life.name} {point}\n".encode())
        self.invariants.step()

    def _wrote(self) -> None:
        written = self.store.written[-1]
        self.told(f"record serial {written.record.serial}: {written.message.splitlines()[0]}")
        self.invariants.wrote(written)

    def _watched(self, node: str, method: str, params: Mapping[str, Any], outcome: Any) -> None:
        command = params["command"]
        if outcome is None:
            self.told(f"{node} <- {command['id']}")
            self.invariants.arrived(node, method, params)
        elif isinstance(outcome, BaseException):
            self.told(f"{node} refuses {command['id']}: {outcome}")
            self.invariants.refused(method, params)
        else:
            shard = (outcome or {}).get("shard") or {}
            self.told(
                f"{node} accepts {command['id']} {shard.get('state', '')} {(outcome or {}).get('detail', '')}"
            )
            self.invariants.accepted(node, method, params)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not died(error):
            self.violate(f"nobody handled {broken(error)} ({context.get('message')})")


class _Errors(logging.Handler):
    """What the product itself logs as an error is one: nothing in a history is expected to break its code."""

    def __init__(self, world: World) -> None:
        super().__init__(level=logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, BaseException):
            self._world.violate(f"logged as an error: {record.getMessage()}: {broken(error)}")
        else:
            self._world.violate(f"logged as an error: {record.getMessage()}")
