"""What a new agent makes of real processes that an earlier one left, one of each kind."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from llmgw.agent.seams import JournalEvent, ProcessId
from llmgw.agent.shards import proc, statusfiles
from llmgw.agent.shards.statusfiles import Status
from llmgw.model.ids import ReplicaId, ShardId
from llmgw.model.launch import LaunchSpec
from llmgw.model.struct import replace
from tests.agent.shards.realnode import RealNode, lives, until
from tests.agent.shards.rig import start, stop
from tests.agent.shards.test_real_shards import Agent, engine


async def ready(node: RealNode, launch: LaunchSpec) -> tuple[int, Path]:
    """Brought up by an agent that is gone then: the engine's pid, and its status file."""
    first = Agent(node)
    await first.shards.adopt()
    await first.shards.start(start(launch, key="k"))
    pid = (await first.reaches(launch, "ready")).pid
    assert pid is not None
    await first.shards.close()
    return pid, Path(node.status_file(shard=launch.shard))


def status(path: Path) -> Status:
    found = statusfiles.read(path)
    assert found is not None
    return found


def shim_of(path: Path) -> ProcessId:
    return status(path).shim


async def ended(agent: Agent, launch: LaunchSpec) -> None:
    await agent.shards.stop(stop(launch))
    await agent.reaches(launch, "stopped")
    await agent.shards.close()


def test_a_dead_shim_with_a_living_engine_is_adopted_and_its_end_seen(node: RealNode) -> None:
    async def story() -> None:
        launch = engine()
        pid, path = await ready(node, launch)
        shim = shim_of(path)
        os.kill(shim.pid, signal.SIGKILL)
        await until(lambda: not lives(shim.pid))
        agent = Agent(node)
        await agent.shards.adopt()
        assert (await agent.reaches(launch, "ready")).pid == pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: agent.report(launch).last_exit is not None)
        exit_ = agent.report(launch).last_exit
        assert exit_ is not None
        assert (exit_.code, exit_.signal) == (None, None)
        assert "its shim was killed before it could tell" in exit_.detail
        assert (await agent.reaches(launch, "ready")).pid != pid
        await ended(agent, launch)

    asyncio.run(story())


def test_a_living_shim_with_a_dead_engine_is_no_obstacle_to_a_new_start(node: RealNode) -> None:
    """The shim was stopped, so it has neither reaped the engine, which is a zombie, nor told how it ended."""

    async def story() -> None:
        launch = engine()
        pid, path = await ready(node, launch)
        shim = shim_of(path)
        os.kill(shim.pid, signal.SIGSTOP)
        await until(lambda: (one := proc.stat(shim.pid)) is not None and one.state == "T")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: (one := proc.stat(pid)) is not None and one.state == "Z")
        agent = Agent(node)
        await agent.shards.adopt()
        again = await agent.reaches(launch, "ready")
        assert again.pid != pid
        assert again.last_exit is not None
        assert again.last_exit.signal == signal.SIGKILL
        await until(lambda: not lives(shim.pid))
        await ended(agent, launch)

    asyncio.run(story())


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(node: RealNode) -> None:
    async def story() -> None:
        launch = engine()
        pid, path = await ready(node, launch)
        shim = shim_of(path)
        for one in (shim.pid, pid):
            os.kill(one, signal.SIGKILL)
        await until(lambda: not lives(pid) and not lives(shim.pid))
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", node.sleep(301))
        try:
            written = json.loads(path.read_text())
            written["engine"]["pid"] = written["shim"]["pid"] = other.pid
            path.write_text(json.dumps(written))
            agent = Agent(node)
            await agent.shards.adopt()
            again = await agent.reaches(launch, "ready")
            assert again.pid not in (pid, other.pid)
            await ended(agent, launch)
            assert other.returncode is None
            assert lives(other.pid)
        finally:
            other.kill()
            await other.wait()

    asyncio.run(story())


@pytest.mark.parametrize("written", ["", '{"spec": {"shard"', '{"format": 0}', "\0\0\0\0"])
def test_an_order_that_says_nothing_any_more_keeps_its_engine_and_asks_for_the_order(
    node: RealNode, written: str
) -> None:
    async def story() -> None:
        launch = engine()
        pid, _ = await ready(node, launch)
        (node.work / "shards" / f"{launch.shard}.json").write_text(written)
        agent = Agent(node)
        await agent.shards.adopt()
        assert agent.report(launch).lost == "its order"
        assert lives(pid)
        await agent.shards.start(start(launch, key="k"))
        assert (await agent.reaches(launch, "ready")).pid == pid
        await ended(agent, launch)

    asyncio.run(story())


def test_a_status_file_that_says_nothing_any_more_loses_no_engine(node: RealNode) -> None:
    async def story() -> None:
        launch = engine()
        pid, path = await ready(node, launch)
        path.write_text('{"bootId": ')
        agent = Agent(node)
        await agent.shards.adopt()
        assert (await agent.reaches(launch, "ready")).pid == pid
        await ended(agent, launch)
        assert not lives(pid)

    asyncio.run(story())


def problems_of(agent: Agent) -> list[JournalEvent]:
    return [event for event in agent.told if isinstance(event, JournalEvent) and event.kind == "problem"]


def test_an_engine_whose_order_is_gone_goes_on_is_told_and_adopted_when_the_order_comes_again(
    node: RealNode,
) -> None:
    """Nothing healthy is killed because its agent has lost a file."""

    async def story() -> None:
        launch = engine()
        pid, _ = await ready(node, launch)
        (node.work / "shards" / f"{launch.shard}.json").unlink()
        agent = Agent(node)
        await agent.shards.adopt()
        assert agent.report(launch).lost == "its order"
        [told] = problems_of(agent)
        assert f"pid {pid} (" in told.text
        assert "its order is gone" in told.text
        await agent.shards.start(start(launch, key="k"))
        assert (await agent.reaches(launch, "ready")).pid == pid
        await ended(agent, launch)
        assert not lives(pid)

    asyncio.run(story())


def test_what_is_left_without_engine_and_order_is_ended_and_told_and_nothing_else(node: RealNode) -> None:
    """Nobody can want it, and it would hold its GPU for ever."""

    async def story() -> None:
        launch = engine("--leave-children", "1", "--child-style", "double-fork")
        kept = replace(
            engine(), shard=ShardId("kept-abababab-0.1-r0"), replica=ReplicaId("kept-abababab-0.1")
        )
        pid, path = await ready(node, launch)
        other, _ = await ready(node, kept)
        children = [one for one in await node.spawner().remaining(launch.shard) if one != pid]
        for one in (shim_of(path).pid, pid):
            os.kill(one, signal.SIGKILL)
        (node.work / "shards" / f"{launch.shard}.json").unlink()
        left = [one for one in children if lives(one)]
        assert left
        stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", node.sleep(301))
        agent = Agent(node)
        await agent.shards.adopt()
        [told] = problems_of(agent)
        assert told.subject == launch.shard
        assert "(python" in told.text, told.text
        assert told.text.endswith("its order is gone: ended")
        await agent.reaches(launch, "stopped")
        assert not any(lives(one) for one in left)
        assert lives(other)
        assert lives(stranger.pid)
        stranger.kill()
        await stranger.wait()
        await ended(agent, kept)

    asyncio.run(story())


def test_a_half_done_stop_of_real_processes_is_finished_by_the_next_agent(node: RealNode) -> None:
    async def story() -> None:
        launch = engine("--ignore-sigterm")
        first = Agent(node)
        await first.shards.adopt()
        await first.shards.start(start(launch, key="k"))
        pid = (await first.reaches(launch, "ready")).pid
        assert pid is not None
        await first.shards.stop(stop(launch))
        await first.reaches(launch, "stopping")
        await first.shards.close()
        assert lives(pid)
        second = Agent(node)
        await second.shards.adopt()
        await second.reaches(launch, "stopped")
        assert not lives(pid)
        await second.shards.close()

    asyncio.run(story())
