"""A pretended node: processes, ports, GPUs and a disk that outlive the agent, and the agent's seams onto them.

Everything happens in the event loop's time, so that a loop with a pretended clock can drive it. Each seam takes a
``checkpoint``, called with the method's name before it does anything: it may raise any BaseException to pretend that
the agent dies there. From then on the seam raises the same at each call, so that a dead agent changes nothing more.
"""

# ruff: noqa: ARG002 - the seams' parameters, of which a pretended node needs few

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from llmgw.agent.seams import Answer, Order, ProcessId, Running
from llmgw.clock import Clock
from llmgw.model.facts import Gpu, GpuProcess
from llmgw.model.launch import HttpProbe, Metric
from llmgw.model.problems import StalledError
from llmgw.model.report import Exit
from llmgw.model.struct import Struct, replace

Checkpoint = Callable[[str], None]
SPAWN_TAKES = 0.05
EXEC_TAKES = 0.01
GIB = 1024**3


class Script(Struct):
    """How a pretended process behaves. Seconds count from its start, ``stops_in`` from SIGTERM."""

    refuse: str = ""  # it can't be executed, and this is why
    port_after: float = 0.5
    ready_after: float | None = 2.0  # None: never
    exit_after: float | None = None
    exit_code: int = 1
    stops_in: float = 0.2
    ignore_term: bool = False
    survive_kill: bool = False
    leaves: int = 0  # children that outlive it
    answers_token: bool = True
    computes: bool = False  # uses a whole core
    traceless: bool = False  # without its order nothing proves whose it is
    in_flight: float | None = 0
    refuses_adapters: frozenset[str] = frozenset()
    gpu_memory: int = 8 * GIB


@dataclass(slots=True, eq=False)
class Process:
    """One pretended process."""

    order: Order
    script: Script
    running: Running
    born: float
    ports: tuple[int, ...]
    ended: Exit | None = None
    adapters: dict[str, str] = field(default_factory=dict)  # name -> path, as long as it lives
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        assert self.running.engine is not None
        return self.running.engine.pid


def ports_of(order: Order) -> tuple[int, ...]:
    """What follows ``--port``; a leader also listens on its other ports and where ``--rendezvous HOST:PORT`` says."""
    leader = order.shard.endswith("-r0")
    words = [word for text in order.argv for word in text.split("=", 1)]
    found = []
    for name, value in pairwise(words):
        port = value.rpartition(":")[2] if name == "--rendezvous" else value
        meets = leader and name.startswith("--") and (name.endswith("-port") or name == "--rendezvous")
        if port.isdigit() and (name == "--port" or meets):
            found.append(int(port))
    return tuple(found)


class PretendedNode:
    """The world. ``behave`` says how each process that is started will behave."""

    def __init__(
        self,
        *,
        clock: Clock,
        gpus: tuple[Gpu, ...] = (),
        addresses: frozenset[str] = frozenset({"127.0.0.1"}),
        memory: int = 0,
        behave: Callable[[Order], Script] = lambda _: Script(),
    ) -> None:
        self.clock = clock
        self.gpus = gpus
        self.addresses = addresses
        self.memory = memory
        self.behave = behave
        self.boots = 1
        self.processes: dict[tuple[str, str], Process] = {}  # the last of each name
        self.left_behind: dict[int, str] = {}  # pid -> shard
        self.strangers: dict[int, int] = {}  # port -> pid; they answer yes to whatever they are asked
        self.told_strangers: list[str] = []  # keys that were shown to them
        self.foreign: dict[str, GpuProcess] = {}  # GPU -> who holds it
        self.unnamed: dict[str, int] = {}  # GPU -> bytes held by somebody whom the driver does not name
        self.gids: dict[tuple[str, int, int], str] = {}
        self.missing_paths: set[str] = set()
        self.closed_paths: set[str] = set()  # to the engines' user
        self.bad_adapters: dict[str, str] = {}  # path -> what is wrong with what lies there
        self.starts: list[
            tuple[float, str, str]
        ] = []  # when, shard, process: nothing is started twice unseen
        self._next_pid = 1000

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def living(self) -> list[Process]:
        return [process for process in self.processes.values() if process.ended is None]

    def start(self, order: Order) -> Process:
        script = self.behave(order)
        if script.refuse:
            raise StalledError(f"starting process {order.process} of shard {order.shard}: {script.refuse}")
        before = self.processes.get((order.shard, order.process))
        if before is not None and before.ended is None:
            raise StalledError(f"starting process {order.process} of shard {order.shard}: it runs already")
        self._next_pid += 2
        loop = asyncio.get_running_loop()
        running = Running(
            shard=order.shard,
            process=order.process,
            shim=ProcessId(boot_id=self.boot_id, pid=self._next_pid - 1, start=self._next_pid),
            engine=ProcessId(boot_id=self.boot_id, pid=self._next_pid, start=self._next_pid),
            started=self.clock.now(),
        )
        process = Process(
            order=order, script=script, running=running, born=loop.time(), ports=ports_of(order)
        )
        self.processes[order.shard, order.process] = process
        self.starts.append((loop.time(), order.shard, order.process))
        if script.exit_after is not None:
            loop.call_later(script.exit_after, self.end, process, script.exit_code, None)
        return process

    def end(self, process: Process, code: int | None, number: int | None) -> None:
        """It exits, or is killed; a second end is none."""
        if process.ended is not None:
            return
        process.ended = Exit(at=self.clock.now(), process=process.order.process, code=code, signal=number)
        for _ in range(process.script.leaves):
            self._next_pid += 2
            self.left_behind[self._next_pid] = process.order.shard
        process.over.set()

    def signalled(self, process: Process, number: int) -> None:
        if number == signal.SIGKILL and not process.script.survive_kill:
            self.end(process, None, number)
        elif number == signal.SIGTERM and not process.script.ignore_term:
            asyncio.get_running_loop().call_later(process.script.stops_in, self.end, process, 0, None)

    def reboot(self) -> None:
        """Power loss: nothing of it runs any more, and nobody wrote down how it ended."""
        self.boots += 1
        for process in self.living():
            process.ended = Exit(at=self.clock.now(), process=process.order.process, detail="power loss")
            process.over.set()
        self.processes.clear()
        self.left_behind.clear()

    def listening(self, port: int) -> Process | None:
        now = asyncio.get_running_loop().time()
        found = (p for p in self.living() if port in p.ports and now >= p.born + p.script.port_after)
        return next(found, None)

    def pids_of(self, shard: str) -> tuple[int, ...]:
        own = [process.pid for process in self.living() if process.order.shard == shard]
        return tuple(sorted([*own, *(pid for pid, owner in self.left_behind.items() if owner == shard)]))


class _Seam:
    def __init__(self, node: PretendedNode, checkpoint: Checkpoint | None) -> None:
        self._node = node
        self._checkpoint = checkpoint
        self._dead: BaseException | None = None

    def _reach(self, method: str) -> None:
        if self._dead is not None:
            raise self._dead
        if self._checkpoint is None:
            return
        try:
            self._checkpoint(method)
        except BaseException as death:
            self._dead = death
            raise


class FakeSpawner(_Seam):
    def __init__(self, node: PretendedNode, *, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(node, checkpoint)
        self.prepared: set[tuple[str, str]] = set()  # shard and process of what waits for its order

    async def prepare(self, shard: str, process: str) -> None:
        self._reach("prepare")
        self.prepared.add((shard, process))

    async def dismiss(self, shard: str) -> None:
        self._reach("dismiss")
        self.prepared = {(name, process) for name, process in self.prepared if name != shard}

    async def spawn(self, order: Order) -> Running:
        self._reach("spawn")
        self.prepared.discard((order.shard, order.process))
        await asyncio.sleep(EXEC_TAKES)
        self._reach("spawn executes")
        process = self._node.start(order)
        await asyncio.sleep(SPAWN_TAKES)
        self._reach("spawn returns")
        return process.running

    async def find(
        self, shard: str, process: str, status_file: str, *, known: Running | None = None
    ) -> Running | Exit | None:
        self._reach("find")
        found = self._node.processes.get((shard, process))
        if found is None:
            return None
        return found.ended or found.running

    async def exited(self, running: Running, status_file: str) -> Exit:
        self._reach("exited")
        process = self._node.processes.get((running.shard, running.process))
        if process is None or process.running != running:
            return Exit(at=self._node.clock.now(), process=running.process, detail="nothing is known of it")
        await process.over.wait()
        self._reach("exited returns")
        assert process.ended is not None
        return process.ended

    async def signal(self, running: Running, number: int) -> None:
        self._reach("signal")
        process = self._node.processes.get((running.shard, running.process))
        if process is not None and process.running == running:
            self._node.signalled(process, number)

    async def used(self, shard: str) -> bool:
        self._reach("used")
        return bool(self._node.pids_of(shard))

    async def remaining(self, shard: str) -> tuple[int, ...]:
        self._reach("remaining")
        return self._node.pids_of(shard)

    async def kill_remaining(self, shard: str, *, shims: bool = False) -> None:
        self._reach("kill_remaining")
        for pid in [pid for pid, owner in self._node.left_behind.items() if owner == shard]:
            del self._node.left_behind[pid]
        for process in self._node.living():
            if process.order.shard == shard:
                self._node.signalled(process, signal.SIGKILL)

    async def cpu_seconds(self, shard: str) -> float:
        self._reach("cpu_seconds")
        age = asyncio.get_running_loop().time()
        return sum(age - p.born for p in self._node.living() if p.order.shard == shard and p.script.computes)

    async def describe(self, pids: tuple[int, ...]) -> str:
        return ", ".join(f"pid {pid}" for pid in pids)

    async def strays(self, known: frozenset[str]) -> tuple[str, ...]:
        self._reach("strays")
        living = {process.order.shard for process in self._node.living() if not process.script.traceless}
        return tuple(sorted((living | set(self._node.left_behind.values())) - known))

    async def listener(self, port: int) -> tuple[int, str | None] | None:
        self._reach("listener")
        if port in self._node.strangers:
            return self._node.strangers[port], None
        process = self._node.listening(port)
        return (process.pid, process.order.shard) if process is not None else None

    async def owner(self, pid: int) -> str | None:
        self._reach("owner")
        if pid in self._node.left_behind:
            return self._node.left_behind[pid]
        return next((p.order.shard for p in self._node.living() if p.pid == pid), None)


class FakeProbe(_Seam):
    """``network``: other nodes by the address they are reached at; what isn't there is this node."""

    def __init__(
        self,
        node: PretendedNode,
        *,
        network: Mapping[str, PretendedNode] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        super().__init__(node, checkpoint)
        self._network = network or {}
        self.deaf = 0  # so many cancellations are lost, as asyncio.wait_for loses some
        self.asking = asyncio.Event()  # while a question is under way

    async def ask(
        self, host: str, port: int, probe: HttpProbe, *, key: str | None, timeout: float, look_at: float = 0.0
    ) -> Answer:
        self._reach("ask")
        self.asking.set()
        try:
            await asyncio.sleep(max(0.001, look_at - asyncio.get_running_loop().time()))
        except asyncio.CancelledError:
            if not self.deaf:
                raise
            self.deaf -= 1
        finally:
            self.asking.clear()
        process = self._at(host).listening(port)
        if process is None and port in self._at(host).strangers:
            self._at(host).told_strangers += [key] if key and probe.authorized else []
            return Answer(status=200, text=probe.contains or "ok")
        if process is None:
            return Answer(status=0, text="connection refused")
        script = process.script
        age = asyncio.get_running_loop().time() - process.born
        if script.ready_after is None or age < script.ready_after:
            return Answer(status=503, text="loading")
        if probe.method == "POST" and not script.answers_token:
            return Answer(status=0, text=f"no answer within {timeout:g} s")
        if (answer := _about_adapters(process, probe)) is not None:
            return answer
        return Answer(status=200, text=probe.contains or "ok")

    async def in_flight(
        self, host: str, port: int, metric: Metric, *, key: str | None, timeout: float
    ) -> float | None:
        self._reach("in_flight")
        process = self._at(host).listening(port)
        return process.script.in_flight if process is not None else None

    async def port_open(self, host: str, port: int, *, timeout: float) -> bool:
        self._reach("port_open")
        node = self._at(host)
        return port in node.strangers or node.listening(port) is not None

    def _at(self, host: str) -> PretendedNode:
        return self._network.get(host, self._node)


def _about_adapters(process: Process, probe: HttpProbe) -> Answer | None:
    """As engines answer that load LoRA adapters while they run."""
    if probe.path == "/v1/models" and probe.contains is None:
        entries = [{"id": name, "root": path, "parent": "base"} for name, path in process.adapters.items()]
        return Answer(status=200, text=json.dumps({"data": [{"id": "base"}, *entries]}))
    if not probe.path.endswith(("/load_lora_adapter", "/unload_lora_adapter")):
        return None
    asked = json.loads(probe.body or "{}")
    name = asked["lora_name"]
    if name in process.script.refuses_adapters:
        return Answer(status=400, text=f"no room for {name}")
    if "lora_path" in asked:
        process.adapters[name] = asked["lora_path"]
    else:
        process.adapters.pop(name, None)
    return Answer(status=200, text="Success")


@dataclass(slots=True)
class Contents:
    """What lies on a pretended disk. ``full``: every write is refused."""

    files: dict[str, bytes] = field(default_factory=dict)
    full: bool = False


class MemoryDisk(_Seam):
    def __init__(
        self, node: PretendedNode, contents: Contents, *, checkpoint: Checkpoint | None = None
    ) -> None:
        super().__init__(node, checkpoint)
        self._contents = contents

    async def write(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        self._reach("write")
        await asyncio.sleep(0)
        self._reach("write renames")
        if self._contents.full:
            raise StalledError(f"writing {name}: No space left on device: free space on that disk")
        self._contents.files[name] = data

    async def write_all(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            await self.write(name, data)

    async def read(self, name: str) -> bytes | None:
        self._reach("read")
        return self._contents.files.get(name)

    async def read_all(self, folder: str) -> Mapping[str, bytes]:
        self._reach("read_all")
        heads = ((name.rpartition("/"), data) for name, data in sorted(self._contents.files.items()))
        return {tail: data for (head, _, tail), data in heads if head == folder}

    async def move(self, name: str, to: str) -> None:
        self._reach("move")
        self._contents.files[to] = self._contents.files.pop(name)

    async def remove(self, name: str) -> None:
        self._reach("remove")
        self._contents.files.pop(name, None)

    async def remove_folder(self, name: str) -> None:
        self._reach("remove_folder")
        for path in [path for path in self._contents.files if path.startswith(f"{name}/")]:
            del self._contents.files[path]


class FakeGpus(_Seam):
    def __init__(self, node: PretendedNode, *, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(node, checkpoint)

    async def sample(self) -> tuple[Gpu, ...]:
        self._reach("sample")
        return tuple(self._now(gpu) for gpu in self._node.gpus)

    def _now(self, gpu: Gpu) -> Gpu:
        users = [p for p in self._node.living() if str(gpu.index) in _visible(p.order)]
        processes = [
            GpuProcess(pid=p.pid, user="engine", memory=p.script.gpu_memory, shard=p.order.shard)
            for p in users
        ]
        if gpu.uuid in self._node.foreign:
            processes.append(self._node.foreign[gpu.uuid])
        used = sum(process.memory or 0 for process in processes) + self._node.unnamed.get(gpu.uuid, 0)
        return replace(gpu, memory_used=used, memory_free=gpu.memory_total - used, processes=tuple(processes))


def _visible(order: Order) -> list[str]:
    return order.env.get("CUDA_VISIBLE_DEVICES", "").split(",")


class FakeChecks(_Seam):
    def __init__(self, node: PretendedNode, *, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(node, checkpoint)

    async def addresses(self) -> frozenset[str]:
        self._reach("addresses")
        return self._node.addresses

    async def gid(self, device: str, port: int, index: int) -> str | None:
        self._reach("gid")
        return self._node.gids.get((device, port, index))

    async def port_free(self, host: str, port: int) -> bool:
        self._reach("port_free")
        return port not in self._node.strangers and self._node.listening(port) is None

    async def path_exists(self, path: str) -> bool:
        self._reach("path_exists")
        return path not in self._node.missing_paths

    async def barred(self, path: str) -> str | None:
        self._reach("barred")
        return path if path in self._node.closed_paths else None

    async def adapter_problem(self, path: str, form: str, rank: int) -> str | None:
        self._reach("adapter_problem")
        return self._node.bad_adapters.get(path)

    async def memory_total(self) -> int:
        self._reach("memory_total")
        return self._node.memory
