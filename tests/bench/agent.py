"""Measures the agent of one machine: real agents, shims and engines on this one, asked over the agent's own socket."""

import asyncio
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from llmgw.controller.nodes.link import StreamLink
from llmgw.controller.nodes.local import LocalTransport
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import ShardId
from llmgw.model.launch import LaunchSpec, RestartPolicy
from llmgw.model.report import Report
from llmgw.model.struct import Struct, replace
from llmgw.wire.messages import (
    Accepted,
    LogLine,
    LogsParams,
    ReportParams,
    StartParams,
    WatchEvent,
    WatchParams,
)
from tests.agent.agents import FLEET, command
from tests.agent.discovery.nvml import build
from tests.agent.processes import Machine, engine_spec
from tests.bench.nodes import cpu_seconds, pss
from tests.ports import row_of_ports

MIB: Final = 1024 * 1024
RUNS: Final = 20
MANY: Final = 32
EIGHT: Final = 8
REST: Final = 30.0
"""Seconds over which an agent that nobody asks is watched; its 30 s look at the machine is among them."""
RATE: Final = 10_000
SECONDS: Final = 10
PATIENCE: Final = 120.0
MEMORY: Final = "/dev/shm"
START: Final = "from the order to a process that runs, and a watcher that knows its pid"
SLEEPER: Final = ("/bin/sleep", "100000")
WRITER: Final = """
import sys, time
rate, seconds = int(sys.argv[1]), int(sys.argv[2])
time.sleep(1)
out, worst, began = sys.stdout, 0.0, time.perf_counter()
batch = rate // 1000
for number in range(rate * seconds // batch):
    before = time.perf_counter()
    for line in range(batch):
        out.write(f"line {number * batch + line} of what an engine may well say when it is told to be talkative\\n")
    out.flush()
    now = time.perf_counter()
    worst = max(worst, now - before)
    time.sleep(max(0.0, began + (number + 1) / 1000 - now))
print("worst", worst, "took", time.perf_counter() - began, flush=True)
time.sleep(1000)
"""


class AgentRow(Struct):
    what: str
    figure: str
    target: str = ""

    def cells(self) -> str:
        return f"| {self.what} | {self.figure} | {self.target} |"


def section(base: Path) -> str:
    """For docs/benchmarks.md."""
    rows = asyncio.run(_measured(base))
    head = (
        "## The agent\n\nOne agent on this machine, asked over its socket. An engine here is `sleep`, so that what is measured is "
        f"the agent; where something answers HTTP it is Python's own server. Medians where nothing else is said; the machine's load was "
        f"{os.getloadavg()[1]:.1f} on {os.cpu_count()} cores, and times grow with it. "
        "What was learnt: [benchmarks-notes.md](benchmarks-notes.md).\n\n| what | figure | target |\n|---|---|---|\n"
    )
    return head + "\n".join(row.cells() for row in rows) + "\n"


async def _measured(base: Path) -> list[AgentRow]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-", dir=MEMORY) as folder:
        async with _machine(Path(folder) / "diskless") as machine:
            rows += [row for row in await _starts_and_deaths(machine) if row.what == START]
    rows[0] = replace(rows[0], what=f"{START}, with a disk that never lets it wait")
    for measure in (_starts_and_deaths, _adoption, _at_rest, _talkative, _hanging):
        async with _machine(base / measure.__name__) as machine:
            rows += await measure(machine)
    return rows


@asynccontextmanager
async def _machine(home: Path) -> AsyncIterator[Machine]:
    home.mkdir()  # noqa: ASYNC240 - nothing else is going on
    machine = Machine(
        home=home, transport=LocalTransport(home=home, environ={"PATH": os.defpath, "HOME": str(home)})
    )
    try:
        yield machine
    finally:
        await machine.clean()


async def _node(machine: Machine, **spec: Any) -> DesiredNode:
    node = machine.node(**spec)
    await machine.transport.bootstrap(node, fleet=FLEET)
    return node


def _sleeper(number: int = 0) -> LaunchSpec:
    """Ready when it has lived for a moment; started again at once when it dies."""
    spec = engine_spec(0, replica=f"chat-1f0c9a2b-{number}.1")
    (engine,) = spec.processes
    return replace(
        spec,
        processes=(replace(engine, argv=SLEEPER),),
        probes=replace(spec.probes, port=None, ready=(), alive=None),
        claims=replace(spec.claims, ports=()),
        timeouts=replace(spec.timeouts, alive_grace=0.2, stop=2),
        restart=RestartPolicy(backoff=0.1, max_backoff=0.1, give_up_after=1000),
    )


async def _start(link: StreamLink, spec: LaunchSpec) -> None:
    params = StartParams(command=command(f"start {spec.shard}"), spec=spec)
    await link.request("start", params, Accepted, timeout=PATIENCE)


async def _report(link: StreamLink) -> Report:
    return await link.request("report", ReportParams(), Report, timeout=PATIENCE)


async def _until_ready(link: StreamLink, count: int) -> Report:
    end = time.monotonic() + PATIENCE
    while True:
        report = await _report(link)
        if sum(shard.state == "ready" for shard in report.shards) == count:
            return report
        assert time.monotonic() < end, [shard.reason for shard in report.shards]
        await asyncio.sleep(0.1)


# ---- starting, and dying -----------------------------------------------------------------------------


async def _starts_and_deaths(machine: Machine) -> list[AgentRow]:
    node = await _node(machine)
    starts: list[float] = []
    deaths: dict[signal.Signals, list[float]] = {signal.SIGSEGV: [], signal.SIGKILL: []}
    async with machine.link(node) as link, machine.link(node) as watching:
        events = watching.stream("watch", WatchParams(), WatchEvent)
        await anext(events)
        agent = machine.holder(node).pid
        before = cpu_seconds(agent)
        for number in range(2 * RUNS):
            spec = replace(_sleeper(number), restart=RestartPolicy(local=False))
            how = (signal.SIGSEGV, signal.SIGKILL)[number % 2]
            began = time.perf_counter()
            asking = asyncio.ensure_future(_start(link, spec))
            starts.append(await _told(events, spec.shard, lambda shard: shard.pid) - began)
            await asking
            await _told(events, spec.shard, lambda shard: shard.state == "ready")
            pid = next(shard.pid for shard in (await _report(link)).shards if shard.shard == spec.shard)
            assert pid is not None
            began = time.perf_counter()
            os.kill(pid, how)
            deaths[how].append(await _told(events, spec.shard, lambda shard: shard.state != "ready") - began)
            # What is left of it is looked for, which would stand in the way of the next one's start.
            await _told(events, spec.shard, lambda shard: shard.state == "failed")
        each = (cpu_seconds(agent) - before) / (2 * RUNS)
    return [
        AgentRow(
            what=START,
            figure=_spread(starts),
            target="30 ms",
        ),
        AgentRow(
            what="from an engine's crash to a watcher that knows of it",
            figure=_spread(deaths[signal.SIGSEGV]),
            target="50 ms",
        ),
        AgentRow(
            what="the same for SIGKILL, after which the kernel has 30 ms to say whether memory was short",
            figure=_spread(deaths[signal.SIGKILL]),
            target="50 ms",
        ),
        AgentRow(
            what="CPU behind one start and one death, of the agent and its shim's own start (mean)",
            figure=f"{each * 1000:.0f} ms",
        ),
    ]


async def _told(events: AsyncIterator[WatchEvent], shard: str, so: Callable[[Any], object]) -> float:
    """When an event said so of the shard."""
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            if event.shard is not None and event.shard.shard == shard and so(event.shard):
                return time.perf_counter()
    raise AssertionError("the stream ended")


def _spread(seconds: Sequence[float]) -> str:
    return (
        f"{statistics.median(seconds) * 1000:.1f} ms (worst of {len(seconds)}: {max(seconds) * 1000:.0f} ms)"
    )


# ---- coming back -------------------------------------------------------------------------------------


async def _adoption(machine: Machine) -> list[AgentRow]:
    node = await _node(machine)
    async with machine.link(node) as link:
        for number in range(MANY):
            await _start(link, _sleeper(number))
        before = {shard.shard: shard.pid for shard in (await _until_ready(link, MANY)).shards}
    whole, worked = [], []
    for _ in range(5):
        machine.kill_agent(node)
        began = time.perf_counter()
        await machine.transport.bootstrap(node, fleet=FLEET)
        async with machine.link(node) as link:
            report = await _report(link)
        whole.append(time.perf_counter() - began)
        worked.append(cpu_seconds(report.agent.pid))
        assert {shard.shard: shard.pid for shard in report.shards} == before, "an engine was lost"
    started = f"{statistics.median(whole):.2f} s (worst of {len(whole)}: {max(whole):.2f} s)"
    return [
        AgentRow(
            what=f"a new agent adopts {MANY} shards: from its start to its first report, Python's start included",
            figure=started,
            target="1 s",
        ),
        AgentRow(
            what="CPU of that agent until then, most of it Python's start and its own modules",
            figure=f"{statistics.median(worked):.2f} s",
        ),
    ]


# ---- at rest -----------------------------------------------------------------------------------------


async def _at_rest(machine: Machine) -> list[AgentRow]:
    """Engines that are asked for their health, which is most of what an agent does."""
    node = await _node(machine)
    with row_of_ports() as (first, _):
        async with machine.link(node) as link:
            for number in range(EIGHT):
                await _start(link, engine_spec(first + number, replica=f"chat-1f0c9a2b-{number}.1"))
            report = await _until_ready(link, EIGHT)
        agent = report.agent.pid
        shims = [pss(shim) for shard in report.shards if (shim := psutil.Process(shard.pid).ppid()) > 1]
        before, began = cpu_seconds(agent), time.perf_counter()
        await asyncio.sleep(REST)
        share = (cpu_seconds(agent) - before) / (time.perf_counter() - began)
        memory = pss(agent)
    return [
        AgentRow(
            what=f"memory (Pss) of an agent with {EIGHT} shards",
            figure=f"{memory / MIB:.1f} MiB",
            target="45 MiB",
        ),
        AgentRow(
            what=f"CPU of it while nobody asks, of one core, over {REST:.0f} s ({EIGHT} health probes every 2 s)",
            figure=f"{share:.2%}",
            target="0.3 %",
        ),
        AgentRow(
            what="memory (Pss) of a shim",
            figure=f"{statistics.median(shims) / MIB:.1f} MiB",
            target="12 MiB",
        ),
    ]


# ---- a talkative engine --------------------------------------------------------------------------------


async def _talkative(machine: Machine) -> list[AgentRow]:
    """Twice: nobody follows, and somebody does."""
    node = await _node(machine)
    alone, _ = await _wrote(machine, node, 0, follow=False)
    followed, lines = await _wrote(machine, node, 1, follow=True)
    wanted = RATE * SECONDS
    lost = wanted - len(set(lines))
    order = "in order" if lines == sorted(lines) else "OUT OF ORDER"
    return [
        AgentRow(
            what=f"{RATE:,} lines a second for {SECONDS} s, followed: lines lost",
            figure=f"{lost} of {wanted:,}, {order}",
            target="0",
        ),
        AgentRow(
            what="the engine's longest write of 10 lines; nobody following / somebody",
            figure=f"{alone[0] * 1000:.1f} / {followed[0] * 1000:.1f} ms",
        ),
        AgentRow(
            what=f"the engine's time for all of it, {SECONDS} s at best; nobody following / somebody",
            figure=f"{alone[1]:.2f} / {followed[1]:.2f} s",
            target="no slower",
        ),
    ]


async def _wrote(
    machine: Machine, node: DesiredNode, number: int, *, follow: bool
) -> tuple[tuple[float, float], list[int]]:
    """The writer's longest write and whole time, and the numbers of the lines that a follower got."""
    spec = _sleeper(100 + number)
    (engine,) = spec.processes
    argv = (sys.executable, "-u", "-c", WRITER, str(RATE), str(SECONDS))
    spec = replace(spec, processes=(replace(engine, argv=argv),))
    async with machine.link(node) as link:
        await _start(link, spec)
        lines: list[int] = []
        last = ""
        params = LogsParams(shard=spec.shard, lines=10_000, follow=True)
        if follow:
            lines, last = await _followed(link, params)
        while not last.startswith("worst"):
            await asyncio.sleep(1)
            last = await _last_line(link, spec.shard)
    words = last.split()
    return (float(words[1]), float(words[3])), lines


async def _followed(link: StreamLink, params: LogsParams) -> tuple[list[int], str]:
    lines: list[int] = []
    async with asyncio.timeout(PATIENCE):
        async for line in link.stream("logs", params, LogLine):
            words = line.text.split(maxsplit=2)
            if words[:1] == ["line"]:
                lines.append(int(words[1]))
            elif words[:1] == ["worst"]:
                return lines, line.text
    raise AssertionError("the log ended")


async def _last_line(link: StreamLink, shard: ShardId) -> str:
    last = ""
    async for line in link.stream("logs", LogsParams(shard=shard, lines=1, follow=False), LogLine):
        last = line.text
    return last


# ---- an end --------------------------------------------------------------------------------------------


async def _hanging(machine: Machine) -> list[AgentRow]:
    """Streams are open, and a call into the GPU's driver never comes back."""
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        return [
            AgentRow(what="an agent's end while a GPU library hangs", figure="not measured: no C compiler")
        ]
    library = build(machine.home / "library")
    told = machine.home / "gpus.txt"
    told.write_text("driver = !hang\n")
    node = await _node(machine, env={"LD_LIBRARY_PATH": str(library), "LLMGW_FAKE_NVML": str(told)})
    seconds = []
    for _ in range(5):
        await machine.transport.bootstrap(node, fleet=FLEET)
        async with machine.link(node) as link:
            watching = asyncio.ensure_future(_drained(link))
            agent = psutil.Process(machine.holder(node).pid)
            while not any(  # noqa: ASYNC110 - another process's children tell nobody
                "nvml_child" in " ".join(child.cmdline()) for child in agent.children()
            ):
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            agent.terminate()
            await asyncio.to_thread(_wait, agent.pid)
            seconds.append(time.perf_counter() - began)
            await asyncio.gather(watching, return_exceptions=True)
    return [
        AgentRow(
            what="an agent's end with a stream open and a call into a GPU's driver that never comes back",
            figure=f"{statistics.median(seconds):.2f} s (worst of {len(seconds)}: {max(seconds):.2f} s)",
            target="2 s",
        )
    ]


async def _drained(link: StreamLink) -> None:
    async for _ in link.stream("watch", WatchParams(), WatchEvent):
        pass


def _wait(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def main() -> None:
    """``python -m tests.bench.agent``: this part alone, printed."""
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        print(section(Path(folder)), end="")


if __name__ == "__main__":
    main()
