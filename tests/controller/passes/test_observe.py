"""Asking nodes: all at once, bounded, and none that hides the others."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar, cast

from llmgw.clock import FakeClock
from llmgw.controller.nodes.transport import Link
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.lookout import PATIENCE
from llmgw.controller.passes.observe import AT_ONCE, NODE_TIMEOUT, observe, observe_node, unasked
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.ids import FleetId
from llmgw.model.problems import RetryError, StalledError, UnknownOutcomeError
from llmgw.model.record import NodeRecord, Record
from llmgw.model.report import NodeObservation, Observed, Reach
from llmgw.model.struct import replace
from tests.controller.passes.doubles import (
    FLEET,
    NOW,
    Script,
    ScriptedLink,
    ScriptedTransport,
    node,
    report,
    transports,
)
from tests.sim.loop import LoopClock, VirtualLoop
from tests.sim.loop import run as run_virtual

T = TypeVar("T")


def run(main: Coroutine[Any, Any, Observed]) -> Observed:
    return asyncio.run(main)


def seen(
    transport: ScriptedTransport,
    record: Record | None = None,
    *,
    timeout: float = 5,
    clock: FakeClock | None = None,
    **pretended: Facts,
) -> Observed:
    async def main() -> Observed:
        links = Links(transports(transport))
        links.fleet = FLEET
        nodes = {name: node(name, pretended=pretended.get(name)) for name in transport.scripts}
        try:
            return await observe(nodes, record, links, clock=clock or FakeClock(NOW), timeout=timeout)
        finally:
            await links.close()

    return run(main())


def one(transport: ScriptedTransport, **rest: Any) -> NodeObservation:
    (found,) = seen(transport, **rest).nodes.values()
    return found


class FarTransport(ScriptedTransport):
    """The way there and back takes ``way`` seconds of the loop's time; the agent's clock is right."""

    def __init__(self, script: Script, way: float, clock: LoopClock) -> None:
        super().__init__(script)
        self._way, self._clock = way, clock

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        return FarLink(self.scripts[node.name], self._way, self._clock)


class FarLink(ScriptedLink):
    def __init__(self, script: Script, way: float, clock: LoopClock) -> None:
        super().__init__(script)
        self._way, self._clock = way, clock

    async def request(self, method: str, params: Any, result: type[T], *, timeout: float) -> T:
        await asyncio.sleep(self._way / 2)
        answer: Any = replace(report("gpu01"), at=self._clock.now())
        await asyncio.sleep(self._way / 2)
        return cast("T", answer)


def asked_over(way: float) -> NodeObservation:
    loop = VirtualLoop()
    clock = LoopClock(loop)
    links = Links(transports(FarTransport(Script("gpu01"), way, clock)))
    links.fleet = FLEET
    return run_virtual(
        observe_node(node("gpu01"), links, journal_after=0, clock=clock, timeout=NODE_TIMEOUT), loop
    )


def test_a_node_that_reports_is_known_with_its_facts() -> None:
    found = one(ScriptedTransport(Script("gpu01", report=[report("gpu01")])))
    assert found.reach is Reach.OK
    assert found.report is not None
    assert found.facts == found.report.facts


def test_how_far_a_nodes_clock_is_ahead_is_told_without_the_time_that_its_answer_took() -> None:
    late = Script("gpu01", report=[replace(report("gpu01"), took=9.0)])
    skew = one(ScriptedTransport(late), clock=FakeClock(NOW - timedelta(seconds=40))).skew
    assert skew is not None
    assert 39.9 < skew < 40.5
    skew = one(ScriptedTransport(late), clock=FakeClock(NOW + timedelta(seconds=7))).skew
    assert skew is not None
    assert -7.1 < skew < -6.5


def test_an_answer_that_was_long_on_its_way_says_nothing_of_the_clock() -> None:
    found = asked_over(5.0)
    assert found.reach is Reach.OK
    assert found.skew is None
    assert asked_over(3.0).skew == 0.0, "half of the way was back"


def test_the_journal_is_asked_from_where_the_record_left_off() -> None:
    gpu01 = Script("gpu01", report=[report("gpu01", journal_last=12)])
    record = Record(fleet=FLEET, nodes={"gpu01": NodeRecord(name="gpu01", address="", journal_cursor=9)})
    seen(ScriptedTransport(gpu01), record)
    assert [params.journal_after for _, params in gpu01.asked] == [9]


def test_a_journal_that_began_anew_is_read_from_its_beginning() -> None:
    gpu01 = Script("gpu01", report=[report("gpu01", journal_last=2)])
    record = Record(fleet=FLEET, nodes={"gpu01": NodeRecord(name="gpu01", address="", journal_cursor=9)})
    seen(ScriptedTransport(gpu01), record)
    assert [params.journal_after for _, params in gpu01.asked] == [9, 0]


def test_a_connection_that_died_between_two_passes_is_opened_again() -> None:
    gpu01 = Script("gpu01", report=[UnknownOutcomeError("gone"), report("gpu01")])
    transport = ScriptedTransport(gpu01)
    assert one(transport).reach is Reach.OK
    assert len(transport.links) == 2


def test_without_an_agent_the_machines_facts_come_from_the_probe() -> None:
    gpu01 = Script("gpu01")
    gpu01.agent = False
    found = one(ScriptedTransport(gpu01))
    assert found.reach is Reach.NO_AGENT
    assert found.facts == Facts(hostname="gpu01")
    assert "no agent listens" in found.error


class _NoProbe(ScriptedTransport):
    async def probe(self, node: DesiredNode) -> Facts:
        raise RetryError("no python3 there")


def test_where_even_the_probe_fails_pretended_facts_stand_in_or_nothing_is_known() -> None:
    gpu01, gpu02 = Script("gpu01"), Script("gpu02")
    gpu01.agent = gpu02.agent = False
    found = seen(_NoProbe(gpu01, gpu02), gpu01=Facts(hostname="pretended")).nodes
    assert found["gpu01"].facts == Facts(hostname="pretended")
    assert found["gpu02"].facts is None
    assert found["gpu02"].reach is Reach.NO_AGENT


def test_a_node_that_is_down_or_refuses_does_not_hide_the_others() -> None:
    down, strange, up = Script("down"), Script("strange"), Script("up", report=[report("up")])
    down.connects = [RetryError("no route to host")]
    strange.connects = [StalledError("speaks another protocol")]
    found = seen(ScriptedTransport(down, strange, up)).nodes
    assert {name: it.reach for name, it in found.items()} == {
        "down": Reach.UNREACHABLE,
        "strange": Reach.UNREACHABLE,
        "up": Reach.OK,
    }
    assert found["down"].error == "no route to host"
    assert found["strange"].error == "speaks another protocol"


def test_a_node_that_never_answers_is_given_up_after_its_time() -> None:
    stuck = Script("stuck")
    stuck.gated = {"report"}
    found = one(ScriptedTransport(stuck), timeout=0.05)
    assert found.reach is Reach.UNREACHABLE
    assert "connected, but its agent does not answer within 0.05 s" in found.error
    assert "llmgw node doctor stuck" in found.error


class _Deaf(ScriptedTransport):
    """Takes connections to ``deaf`` and never says who it is."""

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        if node.name == "deaf":
            await asyncio.Event().wait()
        return await super().connect(node, fleet=fleet)


def test_what_kept_one_pass_waiting_keeps_no_other_and_is_heard_once_it_answers() -> None:
    """One agent that hung cost every pass of a loop all the time that a node may have."""
    loop = VirtualLoop()
    clock = LoopClock(loop)
    stuck = Script("stuck", report=[report("stuck")])
    stuck.gated = {"report"}
    well = Script("well", report=[report("well")])
    transport = _Deaf(stuck, well, Script("deaf"))
    links = Links(transports(transport))
    links.fleet = FLEET
    nodes = {name: node(name) for name in transport.scripts}
    took: list[float] = []

    async def one_pass() -> Observed:
        begun = loop.time()
        found = await observe(nodes, None, links, clock=clock)
        took.append(loop.time() - begun)
        return found

    async def main() -> None:
        first = await one_pass()
        for _ in range(3):
            again = await one_pass()
            assert again.nodes["stuck"].error == first.nodes["stuck"].error
            assert again.nodes["deaf"].error == first.nodes["deaf"].error
            assert again.nodes["well"].report is not None
        stuck.gates["report"].set()
        await asyncio.sleep(0.1)
        assert (await one_pass()).nodes["stuck"].report is not None
        stuck.gated = set()
        assert (await one_pass()).nodes["stuck"].report is not None
        await links.close()
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    run_virtual(main(), loop)
    assert took[0] == NODE_TIMEOUT
    assert took[1:] == [PATIENCE] * 5, "only the deaf one is still listened for"
    assert stuck.asked


def test_an_agent_of_another_fleet_is_left_alone_and_named() -> None:
    other = Script("gpu01", report=[report("gpu01")])
    other.fleet = FleetId("fleet-other")
    transport = ScriptedTransport(other)
    found = one(transport)
    assert found.reach is Reach.UNREACHABLE
    assert "belongs to fleet fleet-other" in found.error
    assert not other.asked
    assert all(link.closed for link in transport.links)


class _Counting(ScriptedTransport):
    """Counts connections that are being made at the same time."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self.now = self.most = 0

    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return await super().connect(node, fleet=fleet)


def test_only_so_many_nodes_are_asked_at_once() -> None:
    scripts = [Script(f"n{number}", report=[report(f"n{number}")]) for number in range(3 * AT_ONCE)]
    transport = _Counting(*scripts)
    found = seen(transport)
    assert len(found.nodes) == 3 * AT_ONCE
    assert transport.most <= AT_ONCE


def test_an_offline_plan_knows_the_recorded_facts_and_says_that_nobody_was_asked() -> None:
    record = Record(
        fleet=FLEET, nodes={"gpu01": NodeRecord(name="gpu01", address="", facts=Facts(hostname="recorded"))}
    )
    found = unasked(
        {"gpu01": node("gpu01"), "gpu02": node("gpu02", pretended=Facts(hostname="pretended"))}, record
    )
    assert {it.reach for it in found.nodes.values()} == {Reach.NOT_ASKED}
    assert found.nodes["gpu01"].facts == Facts(hostname="recorded")
    assert found.nodes["gpu02"].facts == Facts(hostname="pretended")
