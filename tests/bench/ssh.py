"""Measures a fleet over SSH: machines in namespaces with an sshd, an agent and an engine each, all on this one."""

import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from llmgw.agent.service import FACTS_AGE
from llmgw.controller.instance import instance_of
from llmgw.controller.nodes.ssh.connection import SshConnection
from llmgw.controller.opening import opened
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.settings import load_settings
from llmgw.model.struct import Struct, replace
from llmgw.redaction import Redactor
from tests.bench.measure import command
from tests.bench.nodes import cpu_of, memory_of, pids_of
from tests.controller.nodes.sshnodes import inside, login
from tests.e2e.sshroad import LLMGW, SshRoad
from tests.rig import namespaces
from tests.rig.rig import Rig

NODES: Final = 50
EXECS: Final = 200
LOGINS: Final = 10
PASSES: Final = 10
PATIENCE: Final = 30.0
RESTING: Final = 20.0
"""Seconds over which agents that nobody asks are watched."""
MIB: Final = 1024 * 1024


class Cost(Struct):
    """Seconds: by the clock, of CPU in llmgw and its git, of CPU on all the machines together."""

    wall: float
    cpu: float
    nodes: float


class SshRow(Struct):
    what: str
    cost: Cost
    target: str = ""

    def cells(self) -> str:
        cost = self.cost
        return (
            f"| {self.what} | {_told(cost.wall)} | {_told(cost.cpu)} | {_told(cost.nodes)} | {self.target} |"
        )


def _told(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def section(base: Path, *, nodes: int = NODES) -> str:
    """For docs/benchmarks.md; where it can't be measured, it says so, loudly."""
    if why := namespaces.missing():
        text = (
            f"**Not measured: {why}.** So nothing is said here of commands, passes and bootstraps over SSH."
        )
        sys.stderr.write(f"{'!' * 100}\nOver SSH: {text}\n{'!' * 100}\n")
        return f"## Over SSH\n\n{text}\n"
    rows = measured(base, nodes=nodes)
    head = (
        f"## Over SSH\n\n{nodes} machines on this one: each has its own network, processes, users and file system in namespaces, "
        f"its own sshd with default settings, its own agent, and from the second row on an engine (`sim`). So {os.cpu_count()} cores carry the "
        "controller and all its nodes at once. *CPU of the nodes* is the sum over all of them, which a real fleet would bear on "
        "cores of its own. What was learnt: [benchmarks-notes.md](benchmarks-notes.md).\n\n"
        "| what | wall | CPU of llmgw | CPU of the nodes | target |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(row.cells() for row in rows) + "\n"


def measured(base: Path, *, nodes: int = NODES) -> list[SshRow]:
    """From bare machines to a fleet at rest. The machines are gone afterwards."""
    with Rig(base, hosts=nodes) as rig:
        road = SshRoad(rig, base / "road")
        road.commit(f"{nodes} machines")
        rows = [_whole(rig, road, f"`llmgw apply --yes`: {nodes} bare machines, bootstrapped in parallel")]
        road.write_model("chat", replicas=nodes, placement={"spread": "node"})
        road.commit("One replica on each")
        rows.append(
            _whole(rig, road, f"`llmgw apply --yes`: start {nodes} replicas, wait until all are ready")
        )
        what = f"`llmgw apply --yes`: nothing to do on {nodes} nodes, from cold (median of 5)"
        rows.append(_whole(rig, road, what, runs=5, target="8 s"))
        rows += inside(rig, lambda: _kept_connections(rig, road))
        rows += inside(rig, lambda: _one_connection(rig))
        rows.append(_resting(rig))
        return rows


# ---- whole commands ------------------------------------------------------------------------------


def _whole(rig: Rig, road: SshRoad, what: str, *, runs: int = 1, target: str = "") -> SshRow:
    """Runs the command that often, and before that once to warm up where it can be repeated."""
    before = cpu_of(rig)
    words = rig.controller.command([LLMGW, "apply", "--yes"])
    figure = command(words, cwd=road.fleet, env=road.environment, runs=runs, warm=runs > 1)
    nodes = (cpu_of(rig) - before) / (runs + (runs > 1))
    return SshRow(what=what, cost=Cost(wall=figure.wall, cpu=figure.cpu, nodes=nodes), target=target)


def _resting(rig: Rig) -> SshRow:
    """What agents and engines cost while nobody asks them anything."""
    before, began = cpu_of(rig), time.perf_counter()
    time.sleep(RESTING)
    minutes = (time.perf_counter() - began) / 60
    each = (cpu_of(rig) - before) / len(rig.hosts) / minutes
    memory = statistics.median(memory_of(rig, "daemon")) / MIB
    what = f"one node at rest for a minute, its agent ({memory:.0f} MiB) and engine"
    return SshRow(what=what, cost=Cost(wall=60, cpu=0, nodes=each))


# ---- inside one process --------------------------------------------------------------------------


async def _kept_connections(rig: Rig, road: SshRoad) -> list[SshRow]:
    """Passes as a controller that stays makes them: over the same connections again and again."""
    environ = road.environment
    settings = load_settings(flags={}, environ=environ, cwd=road.fleet)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(opened(settings, environ, redactor=Redactor()))
        fleet = replace(found.fleet, instance=instance_of(settings.state_dir))
        links = Links(fleet.transports)
        stack.push_async_callback(links.close)

        async def a_pass() -> None:
            done = await one_pass(fleet, PassRequest(), links=links, halt=Halt(), progress=Silent())
            assert not done.plan.steps, f"there was something to do: {done.plan.steps}"
            unseen = [node.error for node in done.prepared.observed.nodes.values() if node.report is None]
            assert not unseen, unseen

        await a_pass()
        what = f"a pass over {len(rig.hosts)} kept connections, nothing to do (median of {PASSES})"
        back_to_back = await _repeated(rig, a_pass, PASSES)
        spaced = await _repeated(rig, a_pass, PASSES, pause=FACTS_AGE + 1)
        return [
            SshRow(what=what, cost=back_to_back, target="0.5 s"),
            SshRow(
                what=f"the same with {FACTS_AGE + 1:g} s between, so that every agent looks at its machine anew; nodes: pauses too",
                cost=spaced,
                target="0.5 s",
            ),
        ]


async def _one_connection(rig: Rig) -> list[SshRow]:
    """To one node: what everything else is made of."""
    way = login(rig.hosts[0])

    async def open_and_close() -> None:
        await (await SshConnection.open(way)).close()

    opening = await _repeated(rig, open_and_close, LOGINS)
    connection = await SshConnection.open(way)

    async def exec_true() -> None:
        ended = await connection.run(("true",), timeout=20)
        assert ended.code == 0, ended

    try:
        await exec_true()
        execs = await _repeated(rig, exec_true, EXECS)
    finally:
        await connection.close()
    return [
        SshRow(what=f"connect to one node, log in, close (median of {LOGINS})", cost=opening),
        SshRow(what=f"run `true` on an open connection (median of {EXECS})", cost=execs, target="12 ms"),
    ]


async def _repeated(rig: Rig, work: Callable[[], Awaitable[None]], runs: int, *, pause: float = 0) -> Cost:
    """Medians of the clock and of our CPU. The nodes' share is a mean, and holds what they do in the pauses too."""
    await _nothing_ends(rig)
    nodes, walls, cpus = cpu_of(rig), [], []
    for _ in range(runs):
        await asyncio.sleep(pause)
        cpu, began = _own_cpu(), time.perf_counter()
        await work()
        walls.append(time.perf_counter() - began)
        cpus.append(_own_cpu() - cpu)
    each = (cpu_of(rig) - nodes) / runs
    return Cost(wall=statistics.median(walls), cpu=statistics.median(cpus), nodes=each)


async def _nothing_ends(rig: Rig) -> None:
    """What ends while the nodes' CPU is read is counted once more or not at all."""
    async with asyncio.timeout(PATIENCE):
        before: frozenset[int] = frozenset()
        while (now := pids_of(rig)) != before:
            before = now
            await asyncio.sleep(0.5)


def _own_cpu() -> float:
    """Of this process and of the git commands that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """``python -m tests.bench.ssh [NODES]``: this part alone, printed."""
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
        print(section(Path(folder), nodes=nodes), end="")


if __name__ == "__main__":
    main()
