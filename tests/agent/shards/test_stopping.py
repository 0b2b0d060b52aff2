"""Draining, stopping, and what may be left: the real shards on a pretended node."""

import asyncio

import pytest

from llmgw.agent.fakes import Script
from llmgw.agent.seams import JournalEvent, Order
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.facts import GpuProcess
from llmgw.model.ids import JobId
from llmgw.model.launch import Process, RestartPolicy, WaitFor
from llmgw.model.problems import AgentError
from llmgw.model.struct import replace
from llmgw.wire.messages import CONFLICT, NOT_FOUND
from tests.agent.shards.rig import (
    GIB,
    Rig,
    behaving,
    drain,
    gpu,
    on_node,
    spec,
    start,
    stop,
    until,
)


def test_stop_ends_the_engine_first_and_its_sidecars_after_it() -> None:
    ended: list[str] = []

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(sidecars=(Process(name="ray", argv=("ray", "start")),))
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        assert [name for _, _, name in rig.node.starts] == ["ray", "engine"]
        await shards.stop(stop(launch, "replaced"))
        report = await rig.reaches(launch, "stopped")
        assert "replaced" in report.reason
        processes = [
            event for event in rig.events if isinstance(event, JournalEvent) and event.kind == "shard-exit"
        ]
        ended.extend(event.fields["process"] for event in processes)
        assert all(event.fields["told"] == "stop" for event in processes)
        assert not any("by itself" in event.text for event in processes)

    on_node(story)
    assert ended == ["engine", "ray"]


def test_a_sidecars_death_fails_the_shard_unless_it_is_optional() -> None:
    def behave(order: Order) -> Script:
        return Script(exit_after=5, exit_code=9) if order.process == "exporter" else Script()

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        needed = spec(sidecars=(Process(name="exporter", argv=("x",)),))
        spare = spec(
            model="spare", port=18001, sidecars=(Process(name="exporter", argv=("x",), optional=True),)
        )
        await shards.start(start(needed))
        await shards.start(start(spare))
        report = await rig.reaches(needed, "backoff")
        assert report.last_error.startswith("exporter exited by itself with code 9")
        assert rig.report(spare).state == "ready"

    on_node(story, behave=behave)


def test_an_engine_deaf_to_sigterm_is_killed_after_its_time() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        begun = rig.loop.time()
        await shards.stop(stop(launch))
        report = await rig.reaches(launch, "stopped")
        assert 5 <= rig.loop.time() - begun < 8
        assert report.last_exit is not None
        assert report.last_exit.signal == 9

    on_node(story, behave=behaving(ignore_term=True))


def test_what_survives_sigkill_is_an_error_and_never_stopped() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        pid = rig.node.living()[0].pid
        await shards.stop(stop(launch))
        report = await rig.reaches(launch, "stopping", says="survived SIGKILL")
        assert str(pid) in report.last_error
        await asyncio.sleep(300)
        assert rig.report(launch).state == "stopping"
        with pytest.raises(AgentError) as held:
            await shards.start(start(spec(model="other")))
        assert held.value.code == CONFLICT
        rig.node.end(rig.node.living()[0], None, 9)
        await rig.reaches(launch, "stopped")

    on_node(story, behave=behaving(ignore_term=True, survive_kill=True))


def test_what_an_engine_leaves_behind_is_killed_before_it_is_started_again() -> None:
    lives = iter([Script(exit_after=5, leaves=3), Script()])

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "backoff")
        assert not rig.node.left_behind
        await rig.reaches(launch, "ready")

    on_node(story, behave=lambda _: next(lives))


def test_memory_of_a_gpu_that_can_not_be_seen_any_more_is_not_taken_for_returned() -> None:
    """A driver that fails shows no GPU at all, and no process that holds its memory."""

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(claims=Claims(gpus=(GpuClaim(uuid="GPU-0"),)))
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        rig.node.gpus = ()
        await shards.stop(stop(launch))
        report = await rig.reaches(launch, "stopped")
        assert report.reason == "memory-not-verifiable"

    on_node(story, gpus=(gpu(0),))


def test_sidecars_start_in_their_order_and_a_late_death_of_one_ends_the_others_and_the_engine() -> None:
    ended: list[str] = []

    def behave(order: Order) -> Script:
        return Script(exit_after=5) if order.process == "first" else Script()

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(sidecars=(Process(name="first", argv=("a",)), Process(name="second", argv=("b",))))
        await shards.start(start(launch))
        await rig.reaches(launch, "backoff")
        assert [name for _, _, name in rig.node.starts] == ["first", "second", "engine"]
        assert not rig.node.living()
        entries = (event for event in rig.events if isinstance(event, JournalEvent))
        ended.extend(event.fields["process"] for event in entries if event.kind == "shard-exit")

    on_node(story, behave=behave)
    assert ended == ["first", "engine", "second"]


def test_a_sidecar_that_waits_for_a_rendezvous_holds_back_what_comes_after_it_until_a_stop() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        meet = WaitFor(host="127.0.0.1", port=29500, timeout=300)
        launch = spec(
            sidecars=(
                Process(name="ray", argv=("ray",)),
                Process(name="proxy", argv=("proxy",), wait_for=meet),
            )
        )
        await shards.start(start(launch))
        await rig.reaches(launch, "starting", says="proxy waits for 127.0.0.1:29500")
        assert [name for _, _, name in rig.node.starts] == ["ray"]
        await shards.stop(stop(launch))
        await rig.reaches(launch, "stopped", within=2)
        assert not rig.node.living()

    on_node(story)


@pytest.mark.parametrize(
    "state", ["installing", "starting", "loading", "ready", "backoff", "failed", "draining"]
)
def test_stop_works_from_every_state(state: str) -> None:
    scripts = {
        "starting": Script(port_after=1000),
        "loading": Script(ready_after=None),
        "backoff": Script(exit_after=1),
        "failed": Script(exit_after=1),
    }

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(
            needs=(JobId("install-1"),) if state == "installing" else (),
            restart=RestartPolicy(backoff=100, give_up_after=1 if state == "failed" else 5),
        )
        await shards.start(start(launch))
        if state == "draining":
            await rig.reaches(launch, "ready")
            rig.node.living()[0].script = Script(in_flight=1)
            await shards.drain(drain(launch, 500))
        await rig.reaches(launch, state)
        accepted = await shards.stop(stop(launch))
        assert accepted.shard is not None
        assert accepted.shard.state in {"stopping", "stopped"}
        await rig.reaches(launch, "stopped")
        assert not rig.node.living()
        await asyncio.sleep(200)
        assert rig.report(launch).state == "stopped"

    on_node(story, behave=lambda _: scripts.get(state, Script()))


def test_stop_while_the_engine_is_being_executed_leaves_nothing() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await until(lambda: bool(rig.node.starts))
        assert rig.report(launch).started is None
        await shards.stop(stop(launch))
        await rig.reaches(launch, "stopped")
        assert not rig.node.living()

    on_node(story)


def test_stop_of_an_unknown_shard_is_done_and_kills_what_carries_its_mark() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        assert (await shards.stop(stop(launch))).shard is None
        rig.node.left_behind[99] = launch.shard
        accepted = await shards.stop(stop(launch))
        assert accepted.shard is not None
        await rig.reaches(launch, "stopped")
        assert not rig.node.left_behind

    on_node(story)


def test_drain_is_published_waits_for_what_is_in_flight_and_then_stops() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        process = rig.node.living()[0]
        process.script = replace(process.script, in_flight=2)
        begun = rig.loop.time()
        accepted = await shards.drain(drain(launch, 60))
        assert accepted.shard is not None
        assert accepted.shard.state == "draining"
        await rig.reaches(launch, "draining", says="2 requests in flight")
        process.script = replace(process.script, in_flight=0)
        report = await rig.reaches(launch, "stopped")
        assert "nothing in flight" in report.reason
        assert rig.loop.time() - begun >= 5

    on_node(story)


def test_drain_that_takes_too_long_ends_with_what_was_still_in_flight() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        rig.node.living()[0].script = Script(in_flight=3)
        await shards.drain(drain(launch, 20))
        report = await rig.reaches(launch, "stopped")
        assert "drain timeout is over with 3 requests in flight" in report.reason

    on_node(story)


def test_draining_what_does_not_serve_is_an_error() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        with pytest.raises(AgentError) as unknown:
            await shards.drain(drain(launch))
        assert unknown.value.code == NOT_FOUND
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        await shards.stop(stop(launch))
        await rig.reaches(launch, "stopped")
        with pytest.raises(AgentError) as stopped:
            await shards.drain(drain(launch))
        assert stopped.value.code == CONFLICT

    on_node(story)


def test_stopped_waits_until_the_gpu_has_its_memory_back() -> None:
    claims = Claims(gpus=(GpuClaim(uuid="GPU-0"),), ports=(18000,))

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(claims=claims)
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        pid = rig.node.living()[0].pid
        # The driver still names the dead process for a while.
        rig.node.foreign["GPU-0"] = GpuProcess(pid=pid, user="engine", memory=GIB, shard=launch.shard)
        await shards.stop(stop(launch))
        await asyncio.sleep(10)
        assert rig.report(launch).state == "stopping"
        del rig.node.foreign["GPU-0"]
        await rig.reaches(launch, "stopped", within=3)

    on_node(story, gpus=(gpu(0),))


def test_memory_that_does_not_come_back_is_told() -> None:
    claims = Claims(gpus=(GpuClaim(uuid="GPU-0"),), ports=(18000,))

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(claims=claims)
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        rig.node.foreign["GPU-0"] = GpuProcess(pid=1, user="engine", memory=GIB, shard=launch.shard)
        await shards.stop(stop(launch))
        report = await rig.reaches(launch, "stopped", within=40)
        assert report.reason == "memory-not-verifiable"

    on_node(story, gpus=(gpu(0),))


def test_a_question_that_loses_its_cancellation_holds_up_no_command() -> None:
    """Before Python 3.12 wait_for swallows a cancellation that comes together with the answer. The watch over a ready
    engine went on then, its drain never began, and every later command of the node waited behind it."""

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        rig.probe.deaf = 1
        await rig.probe.asking.wait()
        await asyncio.wait_for(shards.drain(drain(launch)), 30)
        await rig.reaches(launch, "stopped")
        assert rig.probe.deaf == 0, "no question was under way"

    on_node(story)
