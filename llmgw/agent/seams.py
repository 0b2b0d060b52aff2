"""The agent's seams to its node: starting and finding processes, asking engines, disk, GPUs.

Each is a few methods with the real thing beside the fake: processes.py, probes.py, disk.py and discovery/gpus.py hold
the real ones, fakes.py a pretended node for tests and the simulation.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from typing import Protocol

from llmgw.model.checkup import Checkup
from llmgw.model.facts import Gpu
from llmgw.model.ids import JobId, ShardId
from llmgw.model.launch import FetchSpec, HttpProbe, InstallSpec, LaunchSpec, Metric
from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.report import Exit, JobReport, Report, ShardReport
from llmgw.model.struct import Struct, field
from llmgw.wire.messages import (
    Accepted,
    AdaptersParams,
    DrainParams,
    ForgetParams,
    KeyParams,
    Knocked,
    KnockParams,
    LogLine,
    LogsParams,
    ManualParams,
    StartParams,
    StopParams,
    Tokened,
    TokenParams,
    Whose,
    WhoseParams,
)


class ProcessId(Struct):
    """Who a process is, beyond reuse of its number: ``start`` is field 22 of /proc/PID/stat, in clock ticks."""

    boot_id: str
    pid: int
    start: int


class Order(Struct):
    """One process to start, with every late value filled in. Holds secrets: never logged, never kept."""

    shard: str
    process: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: str
    log: str
    status_file: str  # where the shim writes who it started and how it ended
    files: Mapping[str, str] = field(default_factory=dict)  # below ``directory``, 0600
    user: str | None = None  # None: the agent's own


class Running(Struct):
    """A process that was started, or found again: the shim and the engine under it."""

    shard: str
    process: str
    shim: ProcessId | None
    engine: ProcessId | None
    started: datetime


class Spawner(Protocol):
    """Processes of this node."""

    async def prepare(self, shard: str, process: str) -> None:
        """Begins what its ``spawn`` needs before it needs the order, so that the order can be written and checked meanwhile.
        Nothing of the shard runs by it, and it never fails: ``spawn`` does all by itself then."""
        ...

    async def dismiss(self, shard: str) -> None:
        """What was prepared for it and not spawned ends without a trace, as it does when the agent dies."""
        ...

    async def spawn(self, order: Order) -> Running:
        """Returns when the shim has executed the engine. Raises StalledError with the reason when it can't."""
        ...

    async def find(
        self, shard: str, process: str, status_file: str, *, known: Running | None = None
    ) -> Running | Exit | None:
        """What became of a process that an earlier agent started: still running, how it ended, or nothing known.
        ``known``: as it stands in the order, for when its status file is lost."""
        ...

    def exited(self, running: Running, status_file: str) -> Awaitable[Exit]:
        """Resolves when the process has ended, however that came about."""
        ...

    async def signal(self, running: Running, number: int) -> None:
        """To the engine's process group; nothing to signal is no error."""
        ...

    async def used(self, shard: str) -> bool:
        """Whether anything may ever have been started under that name here: if not, nothing can be left of it."""
        ...

    async def remaining(self, shard: str) -> tuple[int, ...]:
        """Pids that provably belong to the shard and still live, whatever they did to hide (setsid, double fork,
        wiped environment)."""
        ...

    async def kill_remaining(self, shard: str, *, shims: bool = False) -> None:
        """SIGKILL to all of them. ``shims``: also to those that have not told yet how their engine ended."""
        ...

    async def cpu_seconds(self, shard: str) -> float:
        """CPU time that the shard's living processes have used so far."""
        ...

    async def describe(self, pids: tuple[int, ...]) -> str:
        """What processes are and what they are at, for people."""
        ...

    async def strays(self, known: frozenset[str]) -> tuple[str, ...]:
        """Shards of which processes live that are provably ours, and which are not among ``known``."""
        ...

    async def listener(self, port: int) -> tuple[int, str | None] | None:
        """Pid that listens on a TCP port and the shard it belongs to; None: nobody does. Pid 0: not ours to see."""
        ...

    async def owner(self, pid: int) -> str | None:
        """The shard that a process provably belongs to; None: foreign."""
        ...


class Answer(Struct):
    """``status`` 0: nobody answered, ``text`` says why."""

    status: int
    text: str


class Probe(Protocol):
    """Questions to engines, bounded in time and size."""

    async def ask(
        self, host: str, port: int, probe: HttpProbe, *, key: str | None, timeout: float, look_at: float = 0.0
    ) -> Answer:
        """``look_at``: by the loop's clock, before which nobody looks whether the answer has come. Answers that are looked at
        in one moment wake the agent once."""
        ...

    async def in_flight(
        self, host: str, port: int, metric: Metric, *, key: str | None, timeout: float
    ) -> float | None:
        """None: the engine does not tell."""
        ...

    async def port_open(self, host: str, port: int, *, timeout: float) -> bool: ...


class Disk(Protocol):
    """Small state files below the work directory: written whole or not at all."""

    async def write(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Temp file, fsync, rename, mode 0600. Raises StalledError naming the file when the disk refuses. Not ``lasting``: after a
        power failure the file may be the one before, whole as well."""
        ...

    async def write_all(self, files: Mapping[str, bytes]) -> None:
        """Each as by ``write``, in their order, but waiting for the disk as long as for one."""
        ...

    async def read(self, name: str) -> bytes | None:
        """One file; None: there is none. An unreadable one is empty, which its reader reports."""
        ...

    async def read_all(self, folder: str) -> Mapping[str, bytes]:
        """Every file directly below a folder, by name; unreadable ones are reported as problems by the caller."""
        ...

    async def move(self, name: str, to: str) -> None:
        """A file, by renaming it: works on a full disk, and whatever can be read of it."""
        ...

    async def remove(self, name: str) -> None:
        """A file; nothing there is no error."""
        ...

    async def remove_folder(self, name: str) -> None:
        """A folder with everything in it; nothing there is no error. Links are removed, never followed."""
        ...


class Gpus(Protocol):
    """The node's GPUs as they are right now."""

    async def sample(self) -> tuple[Gpu, ...]: ...


class NodeChecks(Protocol):
    """What a launch looks at just before exec, besides GPUs and jobs."""

    async def addresses(self) -> frozenset[str]:
        """Addresses that the node's interfaces hold, without a prefix length."""
        ...

    async def gid(self, device: str, port: int, index: int) -> str | None:
        """One entry of an adapter's GID table; None: not there."""
        ...

    async def port_free(self, host: str, port: int) -> bool:
        """Whether an engine could listen there now."""
        ...

    async def path_exists(self, path: str) -> bool: ...

    async def barred(self, path: str) -> str | None:
        """The first thing on the way to a path, or below it, that the engines' user may not read; None: all may be read."""
        ...

    async def adapter_problem(self, path: str, form: str, rank: int) -> str | None:
        """Why what lies there is no LoRA adapter of that form, or one of a higher rank; None: it may be used."""
        ...

    async def memory_total(self) -> int:
        """Host memory in bytes that shards may claim; 0: not known, so not held against anybody."""
        ...


class Rules(Protocol):
    """What the machine's own people let llmgw do there, asked anew each time: they may change it under a running agent.
    The real one is policy.py."""

    def start(self, spec: LaunchSpec, gpus: tuple[Gpu, ...]) -> str:
        """Why a shard may not be started; empty: it may. ``gpus``: the node's, as they are now."""
        ...

    def install(self, spec: InstallSpec) -> str: ...

    def fetch(self, spec: FetchSpec) -> str: ...

    def memory_kept(self) -> int:
        """Bytes of host memory that are kept for people."""
        ...

    def facts(self) -> LocalPolicy | None:
        """As plans are told it; None: there is none."""
        ...

    def problem(self) -> str:
        """Why the rules can't be read, so that nothing may be started; empty: they can."""
        ...


class Anything:
    """No rules: a machine whose people have laid down nothing."""

    def start(self, _: LaunchSpec, __: tuple[Gpu, ...]) -> str:
        return ""

    def install(self, _: InstallSpec) -> str:
        return ""

    def fetch(self, _: FetchSpec) -> str:
        return ""

    def memory_kept(self) -> int:
        return 0

    def facts(self) -> LocalPolicy | None:
        return None

    def problem(self) -> str:
        return ""


ANYTHING = Anything()


class Examiner(Protocol):
    """Looks for what is wrong with the node, and knocks at other nodes' ports. The real one is doctor/examiner.py."""

    async def examine(self, report: Report) -> Checkup:
        """Every check; ``report`` is what the agent says of itself right now."""
        ...

    async def knock(self, params: KnockParams) -> Knocked: ...


class JobGate(Protocol):
    """The node's jobs, as far as shards wait for them."""

    async def wait(self, jobs: tuple[JobId, ...]) -> None:
        """Returns when all are done. Raises StalledError with a job's own error when one has failed or was cancelled,
        and when nobody has ordered one."""
        ...

    def state(self, job: JobId) -> JobReport | None: ...

    def engine_path(self, digest: str) -> str | None:
        """Directory of an engine that is installed, whole and verified."""
        ...

    def engine_flags(self, digest: str) -> tuple[str, ...] | None:
        """What that engine knows by its own help; None: it has not told."""
        ...

    def weights_path(self, digest: str) -> str | None:
        """Path of weights that are fetched, whole and verified."""
        ...


class JournalEvent(Struct):
    """A journal entry before the journal gives it time and number."""

    kind: str  # shard-state, shard-exit, problem
    subject: str
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)


ShardEvents = Callable[[ShardReport | JournalEvent], None]


ANYTHING_STORED = "*"


class ShardKeeper(Protocol):
    """What the rest of the agent knows of shards; the real one is shards/keeper.py.

    Refusals are AgentError: INVALID_PARAMS, CONFLICT (a claim is held; the state makes no sense), NOT_FOUND, NO_SPACE
    (the disk refused, nothing was started).
    """

    async def adopt(self) -> None:
        """First of all, and before the first report: claims every shard that an earlier agent left. Readiness then
        runs in the background."""
        ...

    async def start(self, params: StartParams) -> Accepted:
        """Idempotent by shard id: a live shard answers with its state, a terminal one is replaced."""
        ...

    async def drain(self, params: DrainParams) -> Accepted:
        """Published as draining; stopped when nothing is in flight or the time is over."""
        ...

    async def stop(self, params: StopParams) -> Accepted:
        """Returns at once; a report says when nothing is left. Of an unknown shard: done."""
        ...

    async def manual(self, params: ManualParams) -> Accepted:
        """Break glass: what a person on the node says counts until the controller commands the shard again."""
        ...

    async def forget(self, params: ForgetParams) -> Accepted:
        """Drops a terminal shard's order, secrets, home and logs."""
        ...

    async def key(self, params: KeyParams) -> Accepted: ...

    async def adapters(self, params: AdaptersParams) -> Accepted:
        """Replaces the list of LoRA adapters in a shard's order; they are loaded beside this, and after each start."""
        ...

    async def whose(self, params: WhoseParams) -> Whose:
        """Which shard a process belongs to."""
        ...

    async def token(self, params: TokenParams) -> Tokened:
        """One unit of real work of a ready shard, and what it was computed on."""
        ...

    def needs(self) -> Mapping[str, tuple[ShardId, ...]]:
        """Digests of the engines and weights that its orders refer to, of shards that have ended too, with those shards.
        :data:`ANYTHING_STORED` is among them when an order can't be read."""
        ...

    async def sampled(self, gpus: tuple[Gpu, ...]) -> None:
        """A look at the node's GPUs: each shard takes from it what it computes on."""
        ...

    def reports(self) -> tuple[ShardReport, ...]:
        """Sorted by shard."""
        ...

    def problems(self) -> tuple[str, ...]:
        """What is wrong beyond a single shard: orders that can't be read, a disk that refuses."""
        ...

    def logs(self, params: LogsParams) -> AsyncIterator[LogLine]: ...

    async def close(self) -> None:
        """Stops watching; engines run on, for the next agent to adopt."""
        ...
