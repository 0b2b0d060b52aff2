"""Busy is told from dead: an engine that answers nothing is only given up when it does nothing either."""

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from llmgw.agent.fakes import Script
from llmgw.agent.seams import JournalEvent, Order
from llmgw.model.launch import HttpProbe, Probes, Process, RestartPolicy, ShardTimeouts
from llmgw.model.struct import replace
from tests.agent.shards.realnode import RealNode, free_port, until
from tests.agent.shards.rig import Rig, behaving, on_node, spec, start, stop
from tests.agent.shards.test_real_shards import Agent, engine

QUICK = ShardTimeouts(startup=60, stop=0.3, kill=5, health=0.1, health_request=0.3, adopt_ready=0.5)
BUSY = """
import os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        while os.path.exists(sys.argv[2]):  # as a long prompt keeps the one thread that answers
            sum(range(10000))
        try:
            self.send_response(200)
            self.end_headers()
        except OSError:
            pass
    def log_message(self, *words):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def silent(rig: Rig) -> None:
    process = rig.node.living()[0]
    process.script = replace(process.script, ready_after=None)


def becomes(rig: Rig, **script: Any) -> None:
    process = rig.node.living()[0]
    process.script = replace(process.script, **script)


def moves(rig: Rig) -> list[str]:
    """What the journal says of states."""
    entries = (event for event in rig.events if isinstance(event, JournalEvent))
    return [entry.text for entry in entries if entry.kind == "shard-state"]


def answering(rig: Rig) -> None:
    process = rig.node.living()[0]
    process.script = replace(process.script, ready_after=0)


def test_one_that_computes_without_answering_stays_ready_and_says_so() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        silent(rig)
        report = await rig.reaches(launch, "ready", says="busy: /health answered 503")
        assert "it computes: " in report.reason
        await asyncio.sleep(200)
        assert rig.report(launch).state == "ready"
        answering(rig)
        await rig.reaches(launch, "ready", within=10)
        await asyncio.sleep(5)
        assert rig.report(launch).reason == ""
        assert len(rig.node.starts) == 1

    on_node(story, behave=behaving(computes=True))


def test_one_that_only_spins_is_not_believed_for_ever() -> None:
    """A collective that hangs uses a whole core."""

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        silent(rig)
        await asyncio.sleep(290)
        assert rig.report(launch).state == "ready"
        await rig.reaches(launch, "loading", says="no longer answers")
        assert "it has only spun since" in moves(rig)[-1]
        await rig.reaches(launch, "backoff", within=120)

    on_node(story, behave=behaving(computes=True))


def test_requests_that_come_and_go_are_progress_without_any_limit() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        silent(rig)
        process = rig.node.living()[0]
        for count in range(600):
            process.script = replace(process.script, in_flight=count)
            await asyncio.sleep(1)
        report = rig.report(launch)
        assert report.state == "ready"
        assert "its requests move" in report.reason

    on_node(story)


def test_one_that_does_nothing_is_given_up_within_seconds() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        silent(rig)
        await rig.reaches(launch, "loading", within=10)
        assert "no longer answers: /health answered 503" in moves(rig)[-1]
        assert "it used 0.0 s of CPU time" in moves(rig)[-1]

    on_node(story)


def test_one_whose_api_answers_and_that_computes_nothing_any_more_is_given_up() -> None:
    """The front said 200 for hours while the process behind it was gone."""

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        becomes(rig, in_flight=3, answers_token=False)
        await rig.reaches(launch, "loading", within=400)
        assert (
            "no longer answers: 3 requests stand still, nothing computes, and one more: no answer"
            in moves(rig)[-1]
        )
        await rig.reaches(launch, "backoff", within=200)

    on_node(story)


@pytest.mark.parametrize(
    "script",
    [
        {"in_flight": 3, "answers_token": True},
        {"in_flight": 3, "answers_token": False, "computes": True},
        {"in_flight": 0, "answers_token": False},
        {"in_flight": None, "answers_token": False},
    ],
    ids=["it gives a token", "it computes", "it has nothing to do", "it does not count"],
)
def test_requests_that_take_long_are_no_standstill(script: dict[str, Any]) -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        becomes(rig, **script)
        before = len(moves(rig))
        await asyncio.sleep(3600)
        assert rig.report(launch).state == "ready"
        assert moves(rig)[before:] == []

    on_node(story)


def test_one_that_answers_now_and_then_is_alive() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        for _ in range(20):
            silent(rig)
            await asyncio.sleep(3)
            answering(rig)
            await asyncio.sleep(2)
        assert rig.report(launch).state == "ready"

    on_node(story)


def test_a_real_engine_that_is_busy_is_kept_and_one_that_is_stopped_is_not(node: RealNode) -> None:
    async def story() -> None:
        port, flag = free_port(), node.work / "busy"
        probes = Probes(port=port, ready=(HttpProbe(path="/"),), alive=HttpProbe(path="/"))
        launch = replace(
            engine(timeouts=QUICK, probes=probes),
            processes=(
                replace(
                    engine().processes[0],
                    argv=(sys.executable, "-I", "-S", "-c", BUSY, str(port), str(flag)),
                ),
            ),
        )
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key="k"))
        pid = (await agent.reaches(launch, "ready")).pid
        assert pid is not None
        flag.touch()
        loop = asyncio.get_running_loop()
        end = loop.time() + 20
        while "it computes" not in agent.report(launch).reason:
            assert loop.time() < end, agent.report(launch)
            assert agent.report(launch).state == "ready"
            await asyncio.sleep(0.05)
        flag.unlink()
        while agent.report(launch).reason:
            assert loop.time() < end, agent.report(launch)
            await asyncio.sleep(0.05)
        assert agent.report(launch).pid == pid
        os.kill(pid, signal.SIGSTOP)
        await agent.reaches(launch, "loading")
        assert "no longer answers" in agent.report(launch).reason
        again = await agent.reaches(launch, "ready")
        assert again.pid != pid
        await agent.shards.stop(stop(launch))
        await agent.reaches(launch, "stopped")
        await agent.shards.close()

    asyncio.run(story())


def test_healthy_is_not_believed_before_the_first_token_unless_the_profile_says_so() -> None:
    """Engines have said that they are healthy and could compute nothing."""

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        asked, spared = spec(), spec(model="spared", port=18001, token=False)
        await shards.start(start(asked))
        await shards.start(start(spared))
        await rig.reaches(spared, "ready")
        await rig.reaches(asked, "loading", says="/v1/completions")

    on_node(story, behave=behaving(answers_token=False))


def test_a_dead_rank_is_seen_and_told_by_its_own_agent_at_once(node: RealNode) -> None:
    """By a file descriptor that the kernel wakes up, not by asking every now and then."""

    async def story() -> None:
        launch = engine(restart=RestartPolicy(backoff=0.1, max_backoff=0.1, give_up_after=10))
        agent = Agent(node)
        await agent.shards.adopt()
        await agent.shards.start(start(launch, key="k"))
        took: list[float] = []
        for attempt in range(5):
            await until(lambda: agent.report(launch).attempts == attempt)  # noqa: B023 - awaited here
            pid = (await agent.reaches(launch, "ready")).pid
            assert pid is not None
            told = len(agent.told)
            loop = asyncio.get_running_loop()
            begun = loop.time()
            os.kill(pid, signal.SIGSEGV)
            while not any(isinstance(event, JournalEvent) for event in agent.told[told:]):
                assert loop.time() - begun < 10
                await asyncio.sleep(0.001)
            took.append(loop.time() - begun)
        # What else a machine does is in it: make bench measures how long it takes where nothing else runs.
        assert min(took) < 1, took
        await agent.shards.stop(stop(launch))
        await agent.reaches(launch, "stopped")
        await agent.shards.close()

    asyncio.run(story())


def test_a_sidecar_that_can_not_start_takes_down_those_before_it() -> None:
    def behave(order: Order) -> Script:
        return Script(refuse="no such file") if order.process == "second" else Script()

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(sidecars=(Process(name="first", argv=("a",)), Process(name="second", argv=("b",))))
        await shards.start(start(launch))
        report = await rig.reaches(launch, "backoff")
        assert "no such file" in report.last_error
        assert [name for _, _, name in rig.node.starts] == ["first"]
        assert not rig.node.living()

    on_node(story, behave=behave)
