"""The agent's decisions: who may command, what is repeated, what is refused, what is told."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from llmgw.agent.events import QUEUE
from llmgw.agent.sampling import FixedFacts
from llmgw.agent.seams import Anything
from llmgw.agent.service import AgentService
from llmgw.model.checkup import Checkup, well
from llmgw.model.facts import EngineFact, Facts
from llmgw.model.ids import FleetId, ShardId
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.problems import AgentError, RetryError, StalledError
from llmgw.model.report import JobReport, Report
from llmgw.model.struct import replace
from llmgw.wire import codec
from llmgw.wire.messages import (
    BUSY,
    CONFLICT,
    FENCED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NO_SPACE,
    POLICY,
    PROTOCOL,
    VERSION,
    WRONG_FLEET,
    Accepted,
    Command,
    DrainParams,
    FetchParams,
    HelloParams,
    InstallParams,
    Knocked,
    KnockParams,
    LogsParams,
    ManualParams,
    StartParams,
    StopParams,
)
from tests.agent.agents import (
    FLEET,
    Node,
    command,
    fence,
    fetch_spec,
    install_spec,
    launch_spec,
)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), timeout=20))


async def refused(service: AgentService, method: str, params: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await service.call(method, params if isinstance(params, dict) else codec.to_json(params))
    return caught.value


async def report(service: AgentService, after: int = 0) -> Report:
    return codec.from_json(Report, await service.call("report", {"journalAfter": after}), strict=True)


def start(given: Command | None = None, **spec: Any) -> dict[str, Any]:
    params = StartParams(command=given or command(), spec=launch_spec(**spec))
    return dict(codec.to_json(params))


def stop(given: Command, shard: str = "chat-1f0c9a2b-0.1-r0") -> dict[str, Any]:
    return dict(codec.to_json(StopParams(command=given, shard=ShardId(shard))))


# ---- hello -----------------------------------------------------------------------------------------------


def test_hello_tells_who_answers() -> None:
    async def main() -> None:
        service = await Node().agent()
        hello = await service.call("hello", {"protocol": PROTOCOL, "toolVersion": "9", "fleet": FLEET})
        assert (hello["node"], hello["fleet"], hello["bootId"], hello["fence"]) == ("n1", FLEET, "b1", None)

    run(main)


def test_another_major_version_is_refused_even_when_its_hello_says_more() -> None:
    async def main() -> None:
        service = await Node().agent()
        error = await refused(service, "hello", {"protocol": "2.0", "toolVersion": "9", "newField": 1})
        assert error.code == VERSION

    run(main)


def test_another_minor_version_is_welcome() -> None:
    async def main() -> None:
        hello = {"protocol": "1.9", "toolVersion": "9"}
        assert (await (await Node().agent()).call("hello", hello))["protocol"] == PROTOCOL

    run(main)


def test_another_fleet_is_refused_at_hello_and_at_every_command() -> None:
    async def main() -> None:
        node = Node()
        service = await node.agent()
        hello = HelloParams(protocol=PROTOCOL, tool_version="1", fleet=FleetId("other"))
        assert (await refused(service, "hello", hello)).code == WRONG_FLEET
        assert (await refused(service, "start", start(command(fleet="other")))).code == WRONG_FLEET
        assert node.shards.calls == ["adopt"]

    run(main)


def test_the_first_fleet_that_names_itself_owns_a_node_that_nobody_owned_and_keeps_it() -> None:
    node = Node(fleet=None)

    async def main() -> None:
        first = await node.agent()
        await first.call("hello", {"protocol": PROTOCOL, "toolVersion": "1"})
        await first.call("hello", {"protocol": PROTOCOL, "toolVersion": "1", "fleet": "mine"})
        second = await node.agent()
        other = HelloParams(protocol=PROTOCOL, tool_version="1", fleet=FleetId("other"))
        assert (await refused(second, "hello", other)).code == WRONG_FLEET

    run(main)


# ---- strictness ------------------------------------------------------------------------------------------


def test_an_unknown_field_is_refused_wherever_it_stands() -> None:
    async def main() -> None:
        node = Node()
        service = await node.agent()
        outer, inner = start(), start()
        outer["surprise"] = 1
        inner["spec"]["surprise"] = 1
        for params in (outer, inner, {}, {"command": 5}):
            assert (await refused(service, "start", params)).code == INVALID_PARAMS
        assert (await refused(service, "report", {"journalAfter": "0"})).code == INVALID_PARAMS
        assert node.shards.calls == ["adopt"]

    run(main)


def test_an_unknown_method_is_told_with_the_agents_version() -> None:
    async def main() -> None:
        error = await refused(await Node().agent(), "train", {})
        assert error.code == METHOD_NOT_FOUND
        assert "0.1.0" in str(error)

    run(main)


# ---- fence -----------------------------------------------------------------------------------------------


def test_a_lower_serial_is_refused_with_the_fence_in_force() -> None:
    async def main() -> None:
        service = await Node().agent()
        await service.call("start", start(command("a", serial=5)))
        error = await refused(service, "stop", stop(command("b", serial=4)))
        assert error.code == FENCED
        assert error.data == {"fence": codec.to_json(fence(5))}
        assert error.after is None

    run(main)


def test_the_same_serial_with_another_intent_is_refused() -> None:
    async def main() -> None:
        service = await Node().agent()
        await service.call("start", start(command("a", serial=5)))
        assert (await refused(service, "stop", stop(command("b", 5, intent="2" * 40)))).code == FENCED
        await service.call("stop", stop(command("c", 5)))
        await service.call("stop", stop(command("d", 6, intent="2" * 40)))

    run(main)


def test_the_fence_outlives_the_agent_and_is_on_disk_before_the_command_is_carried_out() -> None:
    node = Node()

    async def main() -> None:
        async def die(at: str) -> None:
            if at == "agent:admitted:start":
                raise RetryError("the agent dies here")

        service = await node.agent(checkpoint=die)
        await refused(service, "start", start(command("a", serial=7)))
        assert "start" not in " ".join(node.shards.calls)
        again = await node.agent()
        assert (await refused(again, "start", start(command("b", serial=6)))).code == FENCED
        assert (await report(again)).fence == fence(7)

    run(main)


def test_a_fence_that_cannot_be_written_means_that_nothing_is_carried_out() -> None:
    async def main() -> None:
        node = Node()
        service = await node.agent()
        node.disk.refuses = "No space left on device"
        error = await refused(service, "start", start())
        assert error.code == NO_SPACE
        assert node.shards.calls == ["adopt"]
        node.disk.refuses = ""
        await service.call("start", start())
        assert (await report(service)).fence == fence(1)

    run(main)


def test_an_unreadable_fence_stops_the_agent_instead_of_letting_anybody_in() -> None:
    async def main() -> None:
        node = Node()
        node.disk.files["state/owner.json"] = b"{"
        with pytest.raises(StalledError, match=r"state/owner\.json"):
            await node.agent()

    run(main)


def test_bootstrap_by_another_fleet_changes_the_owner_and_forgets_the_fence() -> None:
    node = Node()

    async def main() -> None:
        await (await node.agent()).call("start", start(command(serial=9)))
        node.fleet = FleetId("next")
        service = await node.agent()
        await service.call("start", start(command("z", serial=1, fleet="next")))
        assert (await refused(service, "stop", stop(command("y", serial=10)))).code == WRONG_FLEET

    run(main)


def test_a_refused_command_is_in_the_journal() -> None:
    async def main() -> None:
        service = await Node().agent()
        await service.call("start", start(command("a", serial=5)))
        await refused(service, "stop", stop(command("b", serial=4)))
        assert [entry.kind for entry in (await report(service)).journal] == ["agent-started", "fence"]

    run(main)


# ---- repeats ---------------------------------------------------------------------------------------------


def test_the_same_command_id_gets_the_same_answer_and_is_carried_out_once() -> None:
    async def main() -> None:
        node = Node()
        service = await node.agent()
        answers = await asyncio.gather(*(service.call("start", start()) for _ in range(5)))
        assert all(answer == answers[0] for answer in answers)
        assert node.shards.calls.count("start chat-1f0c9a2b-0.1-r0") == 1

    run(main)


def test_a_command_id_is_not_for_two_commands() -> None:
    async def main() -> None:
        service = await Node().agent()
        await service.call("start", start())
        assert (await refused(service, "stop", stop(command()))).code == INVALID_PARAMS
        assert (await refused(service, "start", start(port=18001))).code == INVALID_PARAMS

    run(main)


def test_a_refused_command_may_be_sent_again_by_the_same_id() -> None:
    async def main() -> None:
        node = Node()
        service = await node.agent()
        node.shards.error = AgentError("the GPU is taken", code=CONFLICT, after=timedelta(seconds=3))
        error = await refused(service, "start", start())
        assert (error.code, error.after) == (CONFLICT, timedelta(seconds=3))
        assert (await service.call("start", start()))["shard"]["state"] == "ready"

    run(main)


def test_a_command_is_carried_out_though_the_one_who_asked_is_gone() -> None:
    async def main() -> None:
        node = Node()
        gate = asyncio.Event()

        async def wait(at: str) -> None:
            if at.startswith("agent:admitted"):
                await gate.wait()

        service = await node.agent(checkpoint=wait)
        asking = asyncio.ensure_future(service.call("start", start()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        gate.set()
        assert (await service.call("start", start()))["shard"]["state"] == "ready"
        assert node.shards.calls.count("start chat-1f0c9a2b-0.1-r0") == 1

    run(main)


# ---- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "after"),
    [
        (RetryError("later", after=timedelta(seconds=9)), BUSY, timedelta(seconds=9)),
        (StalledError("never"), CONFLICT, None),
        (ZeroDivisionError("oops"), INTERNAL_ERROR, None),
    ],
)
def test_an_error_tells_what_happens_next(error: Exception, code: int, after: timedelta | None) -> None:
    async def main() -> None:
        node = Node()
        service = await node.agent()
        node.shards.error = error
        told = await refused(service, "start", start())
        assert (told.code, told.after) == (code, after)

    run(main)


# ---- reports, jobs, streams ------------------------------------------------------------------------------


def test_a_report_holds_facts_shards_jobs_and_the_journal_after_a_number() -> None:
    async def main() -> None:
        node = Node()
        engine = EngineFact(name="sim", version="1", digest="d", path="/e")
        node.targets.engine_facts["d"] = engine
        service = await node.agent()
        await service.call("start", start())
        told = await report(service)
        assert told.facts.hostname == "n1"
        assert told.facts.engines == (engine,)
        assert [shard.state for shard in told.shards] == ["ready"]
        assert [entry.number for entry in told.journal] == [1]
        assert (await report(service, after=told.journal_last)).journal == ()
        assert told.agent.fleet == FLEET

    run(main)


def test_install_and_fetch_are_jobs_and_can_be_cancelled() -> None:
    async def main() -> None:
        service = await Node(seconds=60).agent()
        install = InstallParams(command=command("i"), spec=install_spec())
        fetch = FetchParams(command=command("f"), spec=fetch_spec())
        answer = codec.from_json(Accepted, await service.call("install", codec.to_json(install)), strict=True)
        assert answer.job is not None
        assert answer.job.job == "install-abababab"
        await service.call("fetch", codec.to_json(fetch))
        cancel = {"command": codec.to_json(command("x")), "job": "fetch-abababab"}
        assert (await service.call("cancel", cancel))["job"]["state"] == "cancelled"
        await service.close()

    run(main)


def test_those_who_watch_hear_of_shards_jobs_and_the_journal() -> None:
    async def main() -> None:
        service, events = await Node().agent_with_events()
        watching = service.stream("watch", {})
        assert not any((await anext(watching)).values()), "the first says only that the stream has begun"
        assert events.readers == 1
        first = asyncio.ensure_future(anext(watching))
        install = InstallParams(command=command("i"), spec=install_spec())
        await service.call("install", codec.to_json(install))
        heard = [await first]
        while not any(event["entry"] for event in heard):
            heard.append(await anext(watching))
        assert [event["job"]["state"] for event in heard if event["job"]] == ["running", "done"]
        await watching.aclose()
        assert events.readers == 0

    run(main)


def test_a_reader_that_is_too_slow_is_told_to_start_anew_and_costs_nothing_more() -> None:
    async def main() -> None:
        service, events = await Node().agent_with_events()
        watching = service.stream("watch", {})
        await anext(watching)
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        for _ in range(QUEUE + 50):
            events.from_jobs(
                JobReport(job=install_spec().job, kind="install", target="", description="", state="x")
            )
        heard = [await first] + [event async for event in watching]
        assert len(heard) == QUEUE + 1
        assert heard[-1]["resync"]
        assert not any(event["resync"] for event in heard[:-1])

    run(main)


def test_logs_are_a_stream() -> None:
    async def main() -> None:
        node = Node()
        node.shards.lines = ("one", "two", "three")
        params = codec.to_json(LogsParams(shard=ShardId("s"), lines=2))
        lines = [line["text"] async for line in (await node.agent()).stream("logs", params)]
        assert lines == ["two", "three"]

    run(main)


@pytest.mark.parametrize(("method", "params"), [("logs", {"surprise": 1}), ("report", {})])
def test_a_stream_that_is_none_is_refused(method: str, params: dict[str, Any]) -> None:
    async def main() -> None:
        with pytest.raises(AgentError):
            _ = [item async for item in (await Node().agent()).stream(method, params)]

    run(main)


def test_drain_of_an_unknown_shard_is_an_error_and_stop_of_one_is_done() -> None:
    async def main() -> None:
        service = await Node().agent()
        drain = DrainParams(command=command("d"), shard=ShardId("nobody"), timeout=1)
        await refused(service, "drain", drain)
        assert (await service.call("stop", stop(command("s"), "nobody")))["shard"] is None

    run(main)


# ---- the machine's own people ----------------------------------------------------------------------------


class Forbidding(Anything):
    """Forbids everything that its policy could forbid, and says so."""

    def install(self, _: InstallSpec) -> str:
        return "agent.yaml:1: no engine"

    def fetch(self, _: FetchSpec) -> str:
        return "agent.yaml:2: no path"

    def facts(self) -> LocalPolicy | None:
        return LocalPolicy(file="agent.yaml", engines=())

    def problem(self) -> str:
        return "agent.yaml is odd"


def test_what_the_machine_forbids_is_refused_for_good_with_the_rule_and_told_in_reports() -> None:
    async def main() -> None:
        node = Node(rules=Forbidding())
        service = await node.agent()
        install = await refused(service, "install", InstallParams(command=command("a"), spec=install_spec()))
        assert (install.code, install.after) == (POLICY, None)
        assert "installing sim 1: agent.yaml:1: no engine" in str(install)
        fetch = await refused(service, "fetch", FetchParams(command=command("b"), spec=fetch_spec()))
        assert (fetch.code, "agent.yaml:2: no path" in str(fetch)) == (POLICY, True)
        told = await report(service)
        assert told.facts.policy == LocalPolicy(file="agent.yaml", engines=())
        assert told.problems == ("agent.yaml is odd",)
        assert told.jobs == ()

    run(main)


def test_facts_are_of_now_when_a_shard_has_just_ended() -> None:
    """Else a look from before still shows a listener on its port, and a plan would take its place for lost."""

    class Asked(FixedFacts):
        ages: tuple[float, ...] = ()

        async def facts(self, *, max_age: float) -> Facts:
            self.ages = (*self.ages, max_age)
            return self.now

    async def main() -> None:
        asked = Asked(Facts())
        node = Node(source=asked)
        service = await node.agent()
        await service.call("start", start())
        await report(service)
        name, shard = next(iter(node.shards.states.items()))
        node.shards.states[name] = replace(shard, state="stopped")
        await report(service)
        node.clock.advance(60)
        await report(service)
        assert [age == 0 for age in asked.ages] == [False, True, False]

    run(main)


def test_a_person_on_the_node_needs_no_fence_and_is_passed_on() -> None:
    async def main() -> None:
        node = Node()
        service = await node.agent()
        await service.call("start", start())
        params = ManualParams(verb="stop", shard=ShardId("chat-1f0c9a2b-0.1-r0"), by="ann")
        accepted = await service.call("manual", codec.to_json(params))
        assert accepted["detail"] == "ann"
        assert node.shards.calls[-1] == "manual stop chat-1f0c9a2b-0.1-r0"

    run(main)


def test_the_doctor_sees_the_report_and_without_one_it_is_said() -> None:
    class Doctor:
        async def examine(self, report: Report) -> Checkup:
            return Checkup(checks=(well("agent", report.agent.node),))

        async def knock(self, params: KnockParams) -> Knocked:
            return Knocked(port=params.host)

    async def main() -> None:
        service = await Node(examiner=Doctor()).agent()
        assert (await service.call("doctor", {}))["checks"][0]["text"] == "n1"
        params = codec.to_json(KnockParams(host="h", port=1))
        assert (await service.call("knock", params))["port"] == "h"
        without = await Node().agent()
        assert (await refused(without, "doctor", {})).code == METHOD_NOT_FOUND

    run(main)
