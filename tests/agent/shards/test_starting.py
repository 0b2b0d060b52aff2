"""From an order to ready, and again after a failure: the real shards on a pretended node."""

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from llmgw.model.ids import JobId
from llmgw.model.launch import Process, ShardTimeouts, WaitFor
from llmgw.model.struct import replace
from tests.agent.shards.rig import (
    Rig,
    behaving,
    on_node,
    spec,
    start,
    stop,
    until,
)


def test_a_shard_goes_from_its_order_to_ready_through_every_state() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        accepted = await shards.start(start(launch))
        assert accepted.shard is not None
        assert accepted.shard.state == "pending"
        report = await rig.reaches(launch, "ready")
        assert rig.states(launch) == ["starting", "loading", "ready"]
        assert report.pid == rig.node.living()[0].pid
        assert report.loading_seconds == pytest.approx(2.5, abs=1.5)
        assert report.attempts == 0
        assert report.port == 18000

    on_node(story)


def test_it_waits_for_its_jobs_and_says_which() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(needs=(JobId("install-1"), JobId("fetch-1")))
        await shards.start(start(launch))
        await rig.reaches(launch, "installing", says="install it")
        rig.jobs.finish("install-1")
        await rig.reaches(launch, "fetching")
        assert not rig.node.starts
        rig.jobs.finish("fetch-1")
        await rig.reaches(launch, "ready")

    on_node(story)


def test_a_failed_job_fails_the_shard_with_the_jobs_own_error() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(needs=(JobId("fetch-1"),))
        await shards.start(start(launch))
        await rig.reaches(launch, "fetching")
        rig.jobs.fail("fetch-1", "404 for that file")
        report = await rig.reaches(launch, "failed")
        assert report.last_error == "404 for that file"

    on_node(story)


def test_an_engine_that_exits_is_restarted_later_and_later_then_given_up() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        report = await rig.reaches(launch, "backoff")
        assert report.attempts == 1
        assert report.last_exit is not None
        assert report.last_exit.code == 3
        report = await rig.reaches(launch, "failed", within=300)
        assert "given up after 3 attempts" in report.reason
        times = [when for when, _, _ in rig.node.starts]
        waits = [round(after - before) for before, after in pairwise(times)]
        assert waits == [11, 21]

    on_node(story, behave=behaving(exit_after=1, exit_code=3, ready_after=None))


def test_an_exit_with_code_0_is_a_failure_too() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        report = await rig.reaches(launch, "backoff")
        assert "exited by itself with code 0" in report.last_error

    on_node(story, behave=behaving(exit_after=5, exit_code=0))


def test_the_rank_of_a_gang_is_not_restarted_here() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(rank=1, ranks=2)
        await shards.start(start(launch))
        report = await rig.reaches(launch, "failed")
        assert report.attempts == 1
        assert len(rig.node.starts) == 1

    on_node(story, behave=behaving(exit_after=10))


def test_a_rank_without_http_is_ready_when_up_for_its_grace() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(port=None, argv=("worker",), rank=1, ranks=2)
        await shards.start(start(launch))
        await rig.reaches(launch, "ready", within=8)

    on_node(story, behave=behaving(ready_after=None))


def test_one_that_never_gets_ready_is_killed_at_its_deadline_with_the_last_reason() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        report = await rig.reaches(launch, "backoff", within=90)
        assert "not ready 60 s after its start" in report.last_error
        assert "503" in report.last_error
        assert not rig.node.living()

    on_node(story, behave=behaving(ready_after=None))


def test_healthy_without_a_token_is_not_ready() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "loading", says="/v1/completions")
        await asyncio.sleep(10)
        assert rig.report(launch).state == "loading"

    on_node(story, behave=behaving(answers_token=False))


def test_a_strangers_listener_is_never_taken_for_ours() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "starting", says="waiting for its port")
        rig.node.strangers[18000] = 4711
        await rig.reaches(launch, "loading", says="pid 4711, which is not ours")

    on_node(story, behave=behaving(port_after=30))


def test_a_stranger_that_answers_like_an_engine_is_shown_no_key() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(env={"KEY": "${key}"})
        asked = tuple(replace(probe, authorized=probe.path != "/health") for probe in launch.probes.ready)
        launch = replace(launch, probes=replace(launch.probes, ready=asked))
        await shards.start(start(launch, key="k3y"))
        await rig.reaches(launch, "starting", says="waiting for its port")
        rig.node.strangers[18000] = 4711
        await rig.reaches(launch, "loading", says="pid 4711, which is not ours")
        await asyncio.sleep(10)
        assert rig.report(launch).state == "loading"
        assert rig.node.told_strangers == []

    on_node(story, behave=behaving(port_after=30))


def test_a_ready_shard_that_stops_answering_is_loading_again_then_restarted() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        process = rig.node.living()[0]
        process.script = replace(process.script, ready_after=None)
        await rig.reaches(launch, "loading", says="no longer answers")
        process.script = replace(process.script, ready_after=0)
        await rig.reaches(launch, "ready")
        process.script = replace(process.script, ready_after=None)
        report = await rig.reaches(launch, "backoff", within=120)
        assert "did not recover" in report.last_error

    on_node(story)


def test_a_worker_waits_for_its_rendezvous_and_gives_up_in_time() -> None:
    meet = WaitFor(host="127.0.0.1", port=29500, timeout=30)

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        worker = Process(name="engine", argv=("worker",), wait_for=meet)
        launch = spec(port=None, processes=(worker,), rank=1, ranks=2)
        await shards.start(start(launch))
        await rig.reaches(launch, "starting", says="waits for 127.0.0.1:29500")
        report = await rig.reaches(launch, "failed")
        assert "nothing has listened at 127.0.0.1:29500 for 30 s" in report.last_error
        rig.node.strangers[29500] = 7
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")

    on_node(story)


def test_a_rendezvous_is_looked_for_every_fifth_of_a_second_for_as_long_as_its_profile_says() -> None:
    """Five minutes unless it says otherwise; whoever waits for a leader should not lose another second."""
    assert ShardTimeouts().rendezvous == 300
    meet = WaitFor(host="127.0.0.1", port=29500, timeout=300)

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        worker = Process(name="engine", argv=("worker",), wait_for=meet)
        launch = spec(port=None, processes=(worker,), rank=1, ranks=2)
        await shards.start(start(launch))
        await rig.reaches(launch, "starting", says="waits for 127.0.0.1:29500")
        await asyncio.sleep(299 - 60)
        assert rig.report(launch).state == "starting"
        rig.node.strangers[29500] = 7
        opened = asyncio.get_running_loop().time()
        await until(lambda: bool(rig.node.starts))
        assert rig.node.starts[0][0] - opened <= 0.25

    on_node(story)


def test_a_stop_ends_the_wait_for_a_rendezvous_at_once() -> None:
    meet = WaitFor(host="127.0.0.1", port=29500, timeout=300)

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        worker = Process(name="engine", argv=("worker",), wait_for=meet)
        launch = spec(port=None, processes=(worker,), rank=1, ranks=2)
        await shards.start(start(launch))
        await rig.reaches(launch, "starting", says="waits for 127.0.0.1:29500")
        await shards.stop(stop(launch))
        await rig.reaches(launch, "stopped", within=2)
        rig.node.strangers[29500] = 7
        await asyncio.sleep(100)
        assert rig.node.starts == []

    on_node(story)


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("state", ["starting", "loading"])
def test_a_clock_that_is_set_moves_no_deadline(state: str, days: int) -> None:
    """Of an engine that opens its port after 20 seconds: the deadline of its start goes on, over that too."""

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(timeouts=ShardTimeouts(startup=600, health=1, health_request=1))
        await shards.start(start(launch))
        await rig.reaches(launch, state, says="port" if state == "starting" else "")
        rig.clock.step = timedelta(days=days)
        await asyncio.sleep(100)
        assert rig.report(launch).state == "loading"
        assert len(rig.node.starts) == 1
        await asyncio.sleep(520)
        assert "not ready" in rig.report(launch).last_error

    on_node(story, behave=behaving(port_after=20, ready_after=None))
