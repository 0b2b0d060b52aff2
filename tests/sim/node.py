"""A pretended machine of a history: what lies and runs on it outlives its agents, each of which is one life."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from llmgw import __version__
from llmgw.agent.events import Events
from llmgw.agent.fakes import (
    Contents,
    FakeChecks,
    FakeGpus,
    FakeProbe,
    FakeSpawner,
    MemoryDisk,
    PretendedNode,
    Process,
    Script,
)
from llmgw.agent.jobs.fakes import FakeDoer, FakeTargets
from llmgw.agent.jobs.runner import Jobs
from llmgw.agent.journal import Journal, MemoryJournalStore
from llmgw.agent.ownership import Ownership
from llmgw.agent.sampling import Sampler
from llmgw.agent.seams import Answer, Gpus, Order
from llmgw.agent.service import AgentService
from llmgw.agent.shards.keeper import Shards
from llmgw.agent.shards.surroundings import ShardSettings
from llmgw.controller.nodes.agentsettings import may_stay
from llmgw.controller.nodes.memory import MemoryNode, MemoryTransport
from llmgw.core.life import TERMINAL
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Disk, Facts, Gpu
from llmgw.model.ids import FleetId
from llmgw.model.launch import HttpProbe
from llmgw.model.manifest import GIB
from llmgw.model.problems import LlmgwError, RetryError
from llmgw.model.report import AgentInfo, ShardState
from llmgw.model.struct import replace
from llmgw.wire.messages import PROTOCOL
from tests.sim.commits import address_of, first_name
from tests.sim.crash import Incarnation, guard
from tests.sim.loop import LoopClock

RESTS = TERMINAL | {ShardState.READY}
MUTATING = frozenset({"start", "drain", "stop", "forget", "install", "fetch", "cancel", "key", "adapters"})
Watched = Callable[[str, str, Mapping[str, Any], Any], None]
"""Node, method, parameters and what came of it (None: it has just arrived)."""


class TracedNode(PretendedNode):
    """Tells of everything that begins or ends on the machine."""

    def __init__(self, name: str, told: Callable[[str], None], **rest: Any) -> None:
        super().__init__(**rest)
        self.name = name
        self.told = told
        self.on_signal: Callable[[Process, int], None] = lambda process, number: None
        self.on_begin: Callable[[], None] = lambda: None
        self.on_end: Callable[[str], None] = lambda shard: None

    def start(self, order: Order) -> Process:
        running = self.processes.get((order.shard, order.process))
        if running is not None and running.ended is None:
            self.told(f"TWICE {self.name}: {order.shard} is started while pid {running.pid} of it lives")
        process = super().start(order)
        self.told(f"{self.name}: pid {process.pid} of {order.shard} begins {_manner(process.script)}")
        self.on_begin()
        return process

    def end(self, process: Process, code: int | None, number: int | None) -> None:
        if process.ended is None:
            how = f"signal {number}" if number else f"code {code}"
            self.told(f"{self.name}: pid {process.pid} of {process.order.shard} ends by {how}")
            self.on_end(process.order.shard)
        super().end(process, code, number)

    def signalled(self, process: Process, number: int) -> None:
        self.told(f"{self.name}: signal {number} to pid {process.pid} of {process.order.shard}")
        self.on_signal(process, number)
        super().signalled(process, number)

    def serves(self, process: Process) -> bool:
        """Whether a user would get an answer from it right now."""
        script = process.script
        taken = any(port in self.strangers for port in process.ports)
        if process.ended is not None or taken or not script.answers_token or script.ready_after is None:
            return False
        age = asyncio.get_running_loop().time() - process.born
        return age >= max(script.ready_after, script.port_after)


def _manner(script: Script) -> str:
    plain = Script()
    odd = [
        f"{name}={getattr(script, name)}"
        for name in Script.__struct_fields__
        if getattr(script, name) != getattr(plain, name)
    ]
    return f"({', '.join(odd)})" if odd else ""


class _Files(dict[str, bytes]):
    """A disk's files; whoever must see each write of one does."""

    def __init__(self, written: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._written = written

    def __setitem__(self, name: str, data: bytes) -> None:
        super().__setitem__(name, data)
        self._written(name, data)


class FailingJournalStore(MemoryJournalStore):
    """On the same disk as everything else."""

    def __init__(self, contents: Contents) -> None:
        super().__init__()
        self._contents = contents

    def append(self, line: bytes) -> None:
        self._room()
        super().append(line)

    def replace(self, lines: Iterable[bytes]) -> None:
        self._room()
        super().replace(lines)

    def _room(self) -> None:
        if self._contents.full:
            raise OSError(errno.ENOSPC, "No space left on device")


class KeyedProbe(FakeProbe):
    """Engines that answer only whoever shows their key."""

    async def ask(
        self, host: str, port: int, probe: HttpProbe, *, key: str | None, timeout: float, look_at: float = 0.0
    ) -> Answer:
        answer = await super().ask(host, port, probe, key=key, timeout=timeout)
        process = self._at(host).listening(port)
        if probe.authorized and process is not None and key != key_of(process):
            return Answer(status=401, text="another key")
        return answer


def key_of(process: Process) -> str:
    """That a pretended engine was started with."""
    return process.order.env.get("SIM_API_KEY", "")


class Door:
    """An agent as the transport sees it: its code runs in its own tasks, and a dead one never answers."""

    def __init__(self, node: "SimNode", service: AgentService, life: Incarnation, watched: Watched) -> None:
        self._node = node
        self._service = service
        self._life = life
        self._watched = watched

    async def call(self, method: str, params: Mapping[str, Any]) -> Any:
        if method in MUTATING:
            self._watched(self._node.name, method, params, None)
            if self._node.crash_at_work:
                self._life.crash_in(self._node.crash_at_work)
                self._node.crash_at_work = 0
        task = self._life.spawn(self._service.call(method, params))
        await asyncio.wait({task})
        if self._life.dead:
            await asyncio.gather(task, return_exceptions=True)  # nobody will ever hear of it
            await asyncio.Event().wait()
        if method in MUTATING:
            self._watched(self._node.name, method, params, task.exception() or task.result())
        return task.result()

    async def stream(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[Any]:
        items: asyncio.Queue[tuple[Any, bool]] = asyncio.Queue()

        async def pump() -> None:
            async for item in self._service.stream(method, params):
                items.put_nowait((item, True))
            items.put_nowait((None, False))

        task = self._life.spawn(pump())
        try:
            while True:
                item, more = await items.get()
                if not more:
                    return
                yield item
        finally:
            task.cancel()


class SimNode:
    """One machine. ``agent`` is the life that runs there now."""

    def __init__(
        self,
        name: str,
        gpus: int,
        *,
        rng: Random,
        clock: LoopClock,
        life: Callable[[str], Incarnation],
        delay: Callable[[], float],
        told: Callable[[str], None],
        watched: Watched,
        network: Mapping[str, PretendedNode],
    ) -> None:
        self.name = name
        self._network = network
        self.rng = rng
        self.clock = clock
        self._life = life
        self._delay = delay
        self._told = told
        self._watched = watched
        self.contents = Contents(files=_Files(self._written))
        self.targets = FakeTargets()
        self.journal = FailingJournalStore(self.contents)
        self.machine = TracedNode(
            name,
            told,
            clock=clock,
            memory=64 * GIB,
            addresses=frozenset({address_of(name)}),
            behave=self._behave,
            gpus=tuple(_gpu(name, index) for index in range(gpus)),
        )
        self.line = MemoryNode(start=self.start_agent, facts=self._facts(self.machine.gpus))
        self.fleet: FleetId | None = None
        self.version = __version__  # of the agent's files
        self.called = name  # by its agent's settings
        self.info: AgentInfo | None = None  # of the agent that runs there, or ran last
        self.agent: Incarnation | None = None
        self.service: AgentService | None = None
        self.shards: Shards | None = None
        self.agents = 0
        self.up = True
        self.trouble_with_jobs = 0
        self.crash_at_work = 0
        self.hung: dict[Process, Script] = {}  # how each would go on
        self.hangs: dict[Process, float] = {}  # when each fell silent
        self.thawed: dict[Process, float] = {}  # when each came to itself
        self._starting: asyncio.Task[Door] | None = None
        self.on_write: Callable[[str, bytes], None] = lambda name, data: None
        self.on_wipe: Callable[[], None] = lambda: None
        self.on_death: Callable[[], None] = lambda: None
        self.on_answer: Callable[[], None] = lambda: None

    # ---- agents --------------------------------------------------------------------------------------

    async def install_agent(self, node: str) -> None:
        """As bootstrap does: files and settings of this llmgw, which a running agent that has others leaves its place for."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        info = self.info
        if info is not None and not may_stay(
            version=info.version, same_settings=info.node == node, node=node
        ):
            await self.close_agent()
        self.version, self.called = __version__, node

    async def start_agent(self, fleet: str) -> Door:
        """As bootstrap or an init system would; the lock on the node lets only one live."""
        self.fleet = FleetId(fleet)
        if not self.up:
            raise RetryError(f"node {self.name}: the machine is down")
        if self._starting is None or (self._starting.done() and (self.agent is None or self.agent.dead)):
            self.agents += 1
            self.agent = self._life(f"agent {self.name}#{self.agents}")
            self.agent.when_dead(self._agent_died)
            self._starting = self.agent.spawn(self._boot(self.agent))
        agent, starting = self.agent, self._starting
        assert agent is not None
        await asyncio.wait({starting})
        if agent.dead or starting.cancelled() or starting.exception() is not None:
            raise RetryError(f"node {self.name}: its agent died while it started")
        return starting.result()

    def agent_alive(self) -> bool:
        return self.agent is not None and not self.agent.dead

    def in_reach(self) -> bool:
        """Whether a controller that asks now hears of it in time."""
        line = self.line
        heard = line.reachable and line.hears.is_set() and line.speaks.is_set()
        return heard and not line.delay and not line.cuts and self.agent_alive()

    def claimed(self) -> frozenset[str]:
        """Shards that its agent knows."""
        return frozenset(self.shards._shards) if self.shards is not None else frozenset()

    def ready(self) -> frozenset[str]:
        """Shards that its agent calls ready."""
        kept = (
            self.shards._shards if self.shards is not None else {}
        )  # its reports would read logs, at every step
        return frozenset(name for name, shard in kept.items() if shard.life.state is ShardState.READY)

    def at_work(self) -> bool:
        """Whether its agent is still bringing something to rest, though nobody commands it."""
        kept = self.shards._shards.values() if self.shards is not None else ()
        return any(shard.life.state not in RESTS for shard in kept)

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.agent.die()

    async def close_agent(self) -> None:
        """As SIGTERM would: it leaves in order; its engines run on."""
        if self.agent is None or self.agent.dead or self.service is None:
            return
        agent = self.agent
        leaving = agent.spawn(self.service.close())
        leaving.add_done_callback(lambda _: agent.die())  # whoever waits for it or not
        await asyncio.wait({leaving})

    def _agent_died(self) -> None:
        self._told(f"{self.name}: its agent is dead")
        self.on_death()
        self.service = None
        self.shards = None
        self.line.replace_agent(None)

    async def _boot(self, life: Incarnation) -> Door:
        def guarded(seam: Any, name: str) -> Any:
            return guard(seam, life, f"{self.name} {name}", self._delay)

        clock = self.clock
        journal = Journal(store=guarded(self.journal, "journal"), clock=clock)
        events = Events(journal)
        disk = guarded(MemoryDisk(self.machine, self.contents), "disk")
        gpus = guarded(FakeGpus(self.machine), "gpus")
        jobs = Jobs(
            clock=clock,
            disk=disk,
            journal=journal,
            install=guarded(self._doer(3.0), "install"),
            fetch=guarded(self._doer(10.0), "fetch"),
            targets=guarded(self.targets, "targets"),
            changed=events.from_jobs,
            boot_id=self.machine.boot_id,
        )
        shards = Shards(
            ShardSettings(work=Path(f"/pretended/{self.name}"), boot_id=self.machine.boot_id, housekeeping=0),
            clock=clock,
            spawner=guarded(FakeSpawner(self.machine), "spawner"),
            probe=guarded(KeyedProbe(self.machine, network=self._network), "probe"),
            disk=disk,
            gpus=gpus,
            jobs=jobs,
            node=guarded(FakeChecks(self.machine), "checks"),
            events=events.from_shards,
        )
        sampler = Sampler(self._look(gpus))
        info = AgentInfo(
            version=self.version,
            protocol=PROTOCOL,
            fleet=self.fleet,
            node=self.called,
            boot_id=self.machine.boot_id,
            pid=self.agents,
            started=clock.now(),
        )
        self.info = info
        service = AgentService(
            info=info,
            clock=clock,
            shards=shards,
            jobs=jobs,
            events=events,
            ownership=Ownership(disk=disk, journal=journal, fleet=self.fleet),
            facts=sampler,
        )
        try:
            await service.adopt()
        except LlmgwError as wrong:
            self._told(f"{self.name}: its agent can't run: {wrong}")
            life.die()
            raise
        sampler.start()
        self._told(f"{self.name}: agent #{self.agents} answers")
        self.service = service
        self.shards = shards
        door = Door(self, service, life, self._watched)
        self.line.replace_agent(door)
        self.on_answer()
        return door

    def _doer(self, seconds: float) -> FakeDoer:
        errors: list[Exception] = []
        if self.trouble_with_jobs:
            self.trouble_with_jobs -= 1
            errors.append(RetryError("the mirror does not answer"))
        return FakeDoer(targets=self.targets, seconds=seconds, errors=errors)

    def _written(self, name: str, data: bytes) -> None:
        self.on_write(name, data)

    # ---- the machine ---------------------------------------------------------------------------------

    def reboot(self) -> None:
        self.kill_agent()
        self._told(f"{self.name}: reboots")
        for process in self.machine.living():
            self.machine.on_end(process.order.shard)
        self.machine.reboot()
        self.up = False
        self.line.go_down()

    def wipe(self) -> None:
        """Power loss, and an empty disk afterwards."""
        self.reboot()
        self._told(f"{self.name}: is installed anew")
        self.contents.files.clear()
        self.journal.lines = []
        self.targets.engine_facts.clear()
        self.targets.weights_facts.clear()
        self.fleet = None
        self._starting = None
        self.on_wipe()

    def hang(self, process: Process) -> None:
        """It lives on and answers nothing any more."""
        self.hung.setdefault(process, process.script)
        self.hangs[process] = asyncio.get_running_loop().time()
        process.script = replace(process.script, ready_after=None, answers_token=False)

    def thaw(self, process: Process) -> None:
        """One that hangs goes on."""
        if process in self.hung:
            process.script = self.hung.pop(process)
            self.thawed[process] = asyncio.get_running_loop().time()

    def come_up(self) -> None:
        self.up = True
        self.line.come_back()

    def _look(self, gpus: Gpus) -> Callable[[], Any]:
        async def look() -> Facts:
            return self._facts(await gpus.sample())

        return look

    def _facts(self, gpus: tuple[Gpu, ...]) -> Facts:
        wanted = {port for process in self.machine.living() for port in process.ports}
        listening = {port for port in wanted if self.machine.listening(port)} | self.machine.strangers.keys()
        return Facts(
            hostname=self.name,
            boot_id=self.machine.boot_id,
            arch="x86_64",
            cpus=8,
            memory_total=self.machine.memory,
            gpu_source="pretended" if gpus else "none",
            gpus=gpus,
            listening=tuple(sorted(listening)),
            disks=(Disk(path="/pretended", total=1000 * GIB, free=0 if self.contents.full else 500 * GIB),),
        )

    def _behave(self, order: Order) -> Script:
        """As the flags say; what they leave open is drawn."""
        rng, argv = self.rng, order.argv
        ready: float | None = rng.uniform(1, 6)
        exit_after: float | None = None
        if "--load-seconds" in argv:
            ready = float(argv[argv.index("--load-seconds") + 1])
        if "--never-ready" in argv:
            ready = None
        if "--exit-after" in argv:
            exit_after = float(argv[argv.index("--exit-after") + 1])
            ready = ready if exit_after > 10 else None
        return Script(
            port_after=rng.uniform(0.1, 2),
            ready_after=ready,
            exit_after=exit_after,
            stops_in=rng.choice((0.1, 0.3, 4.0)),
            ignore_term=rng.random() < 0.1,
            leaves=rng.choice((0, 0, 0, 0, 2)),
            in_flight=rng.choice((0, 0, 0, 3, None)),
        )


class SimTransport(MemoryTransport):
    """Knows machines whatever Git calls them, and brings their agents to what this llmgw has."""

    def __init__(self, nodes: Mapping[str, SimNode]) -> None:
        super().__init__(nodes={name: node.line for name, node in nodes.items()})
        self._nodes = nodes

    async def bootstrap(self, node: DesiredNode, *, fleet: str) -> None:
        self._machine(node)
        await self._nodes[first_name(node.name)].install_agent(node.name)
        await super().bootstrap(node, fleet=fleet)

    def _machine(self, node: DesiredNode) -> MemoryNode:
        return super()._machine(replace(node, name=first_name(node.name)))


def _gpu(node: str, index: int) -> Gpu:
    return Gpu(
        uuid=f"GPU-{node}-{index}", index=index, name="L40S", gpu_class="l40s-45g", memory_total=45 * GIB
    )
