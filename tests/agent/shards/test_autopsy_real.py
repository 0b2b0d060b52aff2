"""A real process that is killed, with the kernel's word for it in a file: from the log into the shard's report, seen by the
agent that watched it and by one that came later."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.agent.disk import FileDisk
from llmgw.agent.shards import proc
from llmgw.agent.shards.checks import SystemChecks
from llmgw.agent.shards.keeper import Shards
from llmgw.agent.shards.kernellog import KernelLog
from llmgw.agent.shards.probes import HttpProber
from llmgw.agent.shards.surroundings import ShardSettings
from llmgw.agent.shards.witness import Witness
from llmgw.clock import SystemClock
from llmgw.model.facts import Gpu
from llmgw.model.launch import LaunchSpec, RestartPolicy, ShardTimeouts
from llmgw.model.report import ShardReport
from tests.agent.shards.realnode import RealNode, lives, until
from tests.agent.shards.rig import JobsByHand, spec, start, stop

TIMEOUTS = ShardTimeouts(startup=60, stop=2, kill=5, health=0.2, health_request=5)


class NoGpus:
    async def sample(self) -> tuple[Gpu, ...]:
        return ()


class Agent:
    """One incarnation, with a kernel log of its own."""

    def __init__(self, node: RealNode, log: Path) -> None:
        self.witness = Witness(KernelLog(log), pids_count=True)
        self.shards = Shards(
            ShardSettings(work=node.work, boot_id=proc.boot_id()),
            clock=SystemClock(),
            spawner=node.spawner(),
            probe=HttpProber(),
            disk=FileDisk(node.work),
            gpus=NoGpus(),
            jobs=JobsByHand(),
            node=SystemChecks(),
            events=lambda _: None,
            witness=self.witness,
        )

    def report(self, launch: LaunchSpec) -> ShardReport:
        return next(report for report in self.shards.reports() if report.shard == launch.shard)

    async def started(self, launch: LaunchSpec) -> int:
        await self.shards.adopt()
        await self.shards.start(start(launch))
        await until(lambda: self.report(launch).pid)
        pid = self.report(launch).pid
        assert pid is not None
        return pid

    async def close(self) -> None:
        await self.shards.close()
        self.witness.close()


def sleeper(name: str) -> LaunchSpec:
    return spec(
        model=name,
        port=None,
        argv=("/bin/sleep", "600"),
        timeouts=TIMEOUTS,
        restart=RestartPolicy(backoff=60, max_backoff=60, give_up_after=2),
    )


def kernel_kills(log: Path) -> Callable[[int], None]:
    def kill(pid: int) -> None:
        text = f"Out of memory: Killed process {pid} (sleep) total-vm:5120kB, anon-rss:40960kB"
        with log.open("a") as file:
            file.write(f"3,1,{round(time.monotonic() * 1e6)},-;{text}\n")
        os.kill(pid, signal.SIGKILL)

    return kill


@pytest.fixture
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("kernel") / "kmsg"
    file.write_text("")
    return file


def explained(report: ShardReport) -> bool:
    assert report.last_exit is not None
    assert report.last_exit.signal == signal.SIGKILL
    return (
        report.last_exit.out_of_memory
        and "was ended by signal 9, out of memory (the kernel has killed it" in (report.last_error)
    )


def test_an_engine_that_the_kernel_kills_says_so_in_its_report(node: RealNode, log: Path) -> None:
    async def story() -> None:
        launch = sleeper("killed")
        agent = Agent(node, log)
        pid = await agent.started(launch)
        kernel_kills(log)(pid)
        await until(lambda: agent.report(launch).last_exit)
        assert explained(agent.report(launch))
        await agent.shards.stop(stop(launch))
        await until(lambda: agent.report(launch).state == "stopped")
        await agent.close()

    asyncio.run(story())


def test_an_agent_that_was_away_when_the_kernel_killed_its_engine_says_so_too(
    node: RealNode, log: Path
) -> None:
    async def story() -> None:
        launch = sleeper("away")
        first = Agent(node, log)
        pid = await first.started(launch)
        await first.close()
        kernel_kills(log)(pid)
        await until(lambda: not lives(pid))
        second = Agent(node, log)
        await second.shards.adopt()
        await until(lambda: second.report(launch).last_exit)
        assert explained(second.report(launch))
        await second.shards.stop(stop(launch))
        await until(lambda: second.report(launch).state == "stopped")
        await second.close()

    asyncio.run(story())
