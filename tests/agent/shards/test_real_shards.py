"""The real shards on real processes: the stand-in engine under shims, asked over HTTP."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

import llmgw
from llmgw.agent.disk import FileDisk
from llmgw.agent.seams import JournalEvent
from llmgw.agent.shards import proc
from llmgw.agent.shards.checks import SystemChecks
from llmgw.agent.shards.keeper import Shards
from llmgw.agent.shards.probes import HttpProber
from llmgw.agent.shards.surroundings import ShardSettings
from llmgw.clock import SystemClock
from llmgw.model.facts import Gpu
from llmgw.model.launch import Expect, HttpProbe, LaunchSpec, Metric, Probes, RestartPolicy, ShardTimeouts
from llmgw.model.report import ShardReport
from llmgw.model.struct import replace
from llmgw.wire.messages import LogsParams
from tests.agent.shards.realnode import RealNode, free_port, lives, until
from tests.agent.shards.rig import JobsByHand, forget, spec, start, stop

ENGINE = Path(llmgw.__file__).parent / "runtime" / "simengine.py"
TIMEOUTS = ShardTimeouts(startup=60, stop=2, kill=5, health=0.2, health_request=5)


class NoGpus:
    async def sample(self) -> tuple[Gpu, ...]:
        return ()


class Agent:
    """One incarnation."""

    def __init__(self, node: RealNode) -> None:
        self.told: list[object] = []
        self.shards = Shards(
            ShardSettings(work=node.work, boot_id=proc.boot_id()),
            clock=SystemClock(),
            spawner=node.spawner(),
            probe=HttpProber(),
            disk=FileDisk(node.work),
            gpus=NoGpus(),
            jobs=JobsByHand(),
            node=SystemChecks(),
            events=self.told.append,
        )

    def report(self, launch: LaunchSpec) -> ShardReport:
        return next(report for report in self.shards.reports() if report.shard == launch.shard)

    async def reaches(self, launch: LaunchSpec, *states: str, within: float = 40) -> ShardReport:
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while self.report(launch).state not in states:
            assert loop.time() < end, f"waited for {states}: {self.report(launch)}"
            await asyncio.sleep(0.02)
        return self.report(launch)


def engine(*misbehaviour: str, **changes: object) -> LaunchSpec:
    port = free_port()
    probes = Probes(
        port=port,
        ready=(HttpProbe(path="/health"), HttpProbe(path="/v1/models", authorized=True, contains='"sim"')),
        token=HttpProbe(
            path="/v1/completions",
            method="POST",
            authorized=True,
            body='{"model": "sim", "prompt": "hello", "max_tokens": 1}',
        ),
        alive=HttpProbe(path="/health"),
        in_flight=Metric(path="/metrics", names=("none_such",)),
    )
    argv = (sys.executable, "-I", "-S", str(ENGINE), "--port", str(port), *misbehaviour)
    made = spec(
        model="sim",
        port=port,
        argv=argv,
        env={"SIM_API_KEY": "${key}", "PATH": "/usr/bin:/bin"},
        probes=probes,
        expect=Expect(ports_free=(port,)),
        timeouts=TIMEOUTS,
        restart=RestartPolicy(backoff=0.2, max_backoff=1, give_up_after=2),
    )
    return replace(made, **changes)  # type: ignore[arg-type] # the test's own words


def test_a_real_engine_gets_ready_outlives_its_agent_and_is_stopped_by_the_next(node: RealNode) -> None:
    async def story() -> None:
        launch = engine("--load-seconds", "0.3")
        first = Agent(node)
        await first.shards.adopt()
        await first.shards.start(start(launch, key="k3y"))
        ready = await first.reaches(launch, "ready")
        assert ready.pid is not None
        await first.shards.close()
        assert lives(ready.pid)

        second = Agent(node)
        await second.shards.adopt()
        assert second.report(launch).pid == ready.pid
        adopted = await second.reaches(launch, "ready")
        assert adopted.pid == ready.pid
        assert adopted.started == ready.started
        await second.shards.stop(stop(launch, "enough"))
        stopped = await second.reaches(launch, "stopped")
        assert stopped.last_exit is not None
        assert not lives(ready.pid)
        await second.shards.forget(forget(launch))
        assert not [path for path in node.work.rglob("*") if launch.shard in path.name]
        await second.shards.close()

    asyncio.run(story())


def test_an_engine_deaf_to_sigterm_with_hidden_children_leaves_nothing(node: RealNode) -> None:
    async def story() -> None:
        launch = engine(
            "--ignore-sigterm",
            *("--leave-children", "2", "--child-style", "double-fork"),
            *("--rename", "innocent", "--wipe-environment"),
        )
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key="k"))
        await agent.reaches(launch, "ready")
        mine = await node.spawner().remaining(launch.shard)
        assert len(mine) >= 3
        begun = asyncio.get_running_loop().time()
        await agent.shards.stop(stop(launch))
        stopped = await agent.reaches(launch, "stopped")
        assert asyncio.get_running_loop().time() - begun >= 2
        assert stopped.last_exit is not None
        assert stopped.last_exit.signal == signal.SIGKILL
        assert not [pid for pid in mine if lives(pid)]
        await agent.shards.close()

    asyncio.run(story())


def test_what_the_kernel_holds_on_to_is_an_error_with_what_it_is_at_and_never_called_stopped(
    node: RealNode,
) -> None:
    """A process in a frozen control group of version 1 survives SIGKILL, as one that hangs in a driver does."""
    frozen = Path("/sys/fs/cgroup/freezer") / f"llmgw-test-{os.getpid()}-{node.work.name}"
    try:
        frozen.mkdir()
    except OSError:
        pytest.skip("needs the freezer of control groups of version 1")

    async def story() -> None:
        launch = engine(timeouts=replace(TIMEOUTS, stop=0.2, kill=0.2))
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key="k"))
        pid = (await agent.reaches(launch, "ready")).pid
        assert pid is not None
        (frozen / "cgroup.procs").write_text(str(pid))
        (frozen / "freezer.state").write_text("FROZEN")
        try:
            await agent.shards.stop(stop(launch))
            await until(lambda: "survived SIGKILL" in agent.report(launch).reason)
            report = agent.report(launch)
            assert report.state == "stopping"
            assert f"pid {pid} (python" in report.last_error
            assert "uninterruptible" in report.last_error
            assert lives(pid)
            await agent.shards.close()
        finally:
            (frozen / "freezer.state").write_text("THAWED")
        await until(lambda: not lives(pid))
        again = Agent(node)
        await again.shards.adopt()
        await again.reaches(launch, "stopped")
        await again.shards.close()

    try:
        asyncio.run(story())
    finally:
        frozen.rmdir()


def test_a_crash_is_explained_by_its_first_traceback_and_last_lines_and_given_up(node: RealNode) -> None:
    async def story() -> None:
        launch = engine("--traceback")
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key="k"))
        failed = await agent.reaches(launch, "failed")
        assert failed.attempts == 2
        assert failed.last_exit is not None
        assert failed.last_exit.code not in (0, None)
        assert failed.last_exit.traceback.startswith("Traceback (most recent call last):")
        assert failed.last_exit.last_lines
        lines = [line async for line in agent.shards.logs(LogsParams(shard=launch.shard, lines=5))]
        assert (lines[-2].process, lines[-2].text) == ("", failed.last_exit.last_lines[-1])
        assert lines[-1].process == "agent"
        assert lines[-1].text.startswith("engine exited by itself with code ")
        entries = [event for event in agent.told if isinstance(event, JournalEvent)]
        ended = next(event for event in entries if event.kind == "shard-exit")
        assert ended.text == lines[-1].text
        assert ended.fields["traceback"] == failed.last_exit.traceback
        assert ended.fields["lastLines"].endswith(failed.last_exit.last_lines[-1])
        await agent.shards.close()

    asyncio.run(story())


def test_an_engine_that_died_while_no_agent_was_there_is_recorded_and_restarted(node: RealNode) -> None:
    async def story() -> None:
        launch = engine()
        first = Agent(node)
        await first.shards.adopt()
        await first.shards.start(start(launch, key="k"))
        pid = (await first.reaches(launch, "ready")).pid
        assert pid is not None
        await first.shards.close()
        os.kill(pid, signal.SIGSEGV)
        await until(lambda: not lives(pid))
        second = Agent(node)
        await second.shards.adopt()
        again = await second.reaches(launch, "ready")
        assert again.pid != pid
        assert again.attempts == 1
        assert again.last_exit is not None
        assert again.last_exit.signal == signal.SIGSEGV
        await second.shards.stop(stop(launch))
        await second.reaches(launch, "stopped")
        await second.shards.close()

    asyncio.run(story())


def test_a_taken_port_is_a_mismatch_before_anything_is_executed(node: RealNode) -> None:
    async def story() -> None:
        launch = engine()
        port = launch.probes.port
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", port)
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key="k"))
        failed = await agent.reaches(launch, "failed")
        assert failed.reason.startswith(f"mismatch: port {port} is held by pid {os.getpid()} (")
        assert failed.reason.endswith("), which is not ours")
        assert not (node.work / "status").exists()
        server.close()
        await server.wait_closed()
        await agent.shards.close()

    asyncio.run(story())


def test_a_key_that_an_engine_prints_leaves_the_node_masked(node: RealNode) -> None:
    canary = "canary-81c2"

    async def story() -> None:
        code = "import os; print('my key is', os.environ['SIM_API_KEY'], flush=True); raise SystemExit(os.environ['SIM_API_KEY'])"
        launch = replace(engine(), restart=RestartPolicy(give_up_after=1))
        process = replace(launch.processes[-1], argv=(sys.executable, "-I", "-S", "-c", code))
        launch = replace(launch, processes=(process,))
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key=canary))
        failed = await agent.reaches(launch, "failed")
        lines = [line async for line in agent.shards.logs(LogsParams(shard=launch.shard))]
        assert failed.last_exit is not None
        assert failed.last_exit.last_lines == ("my key is ***", "***")
        assert [line.text for line in lines] == [
            "my key is ***",
            "***",
            "engine exited by itself with code 1: ***",
        ]
        order = (node.work / "shards" / f"{launch.shard}.json").read_text()
        assert canary not in order + repr(agent.told) + repr(agent.shards.reports())
        await agent.shards.close()

    asyncio.run(story())


def test_logs_are_followed_line_by_line(node: RealNode) -> None:
    async def story() -> None:
        launch = engine("--log-forever", "2000")
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key="k"))
        await agent.reaches(launch, "ready")
        seen: list[str] = []
        async with aclosing(_follow(agent, launch)) as lines:
            async for line in lines:
                seen.append(line)
                if len(seen) >= 10:
                    break
        await agent.shards.stop(stop(launch))
        await agent.reaches(launch, "stopped")
        written = (node.work / "logs" / launch.shard / "engine.log").read_text().splitlines()
        assert any(written[at : at + 10] == seen for at in range(len(written)))
        await agent.shards.close()

    asyncio.run(story())


async def _follow(agent: Agent, launch: LaunchSpec) -> AsyncGenerator[str, None]:
    async for line in agent.shards.logs(LogsParams(shard=launch.shard, lines=1, follow=True)):
        yield line.text
