"""Carrying a plan out: order, bounds, failures that stay where they happen, answers that never come."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest

from llmgw.controller.nodes.transport import Link
from llmgw.controller.passes.execute import (
    GONE_FOR,
    LONGEST_PAUSE,
    NODES_AT_ONCE,
    STEPS_AT_ONCE,
    Errand,
    execute,
)
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.progress import Silent
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import JobId
from llmgw.model.launch import FetchSpec
from llmgw.model.manifest import Secret
from llmgw.model.plan import Plan, Step, StepKind, StepOutcome, StepResult
from llmgw.model.problems import (
    AgentError,
    InvalidError,
    RetryError,
    StalledError,
    UnknownOutcomeError,
)
from llmgw.model.record import Outcome
from llmgw.model.report import JobReport
from llmgw.model.struct import replace
from llmgw.wire.messages import BUSY, FENCED, MISMATCH, Accepted, FetchParams, StartParams
from tests.controller.passes.doubles import (
    FENCE,
    Script,
    ScriptedTransport,
    install,
    node,
    plan_of,
    start,
    step,
    transports,
)
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_virtual

DONE, FAILED, SKIPPED = StepOutcome.DONE, StepOutcome.FAILED, StepOutcome.SKIPPED
DEFERRED, UNKNOWN = StepOutcome.DEFERRED, StepOutcome.UNKNOWN


def carried_out(
    plan: Plan,
    transport: ScriptedTransport,
    *,
    halt: Halt | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Mapping[str, StepResult]:
    async def main() -> Mapping[str, StepResult]:
        return await running(plan, transport, halt=halt, secrets=secrets)

    return asyncio.run(main())


async def running(
    plan: Plan,
    transport: ScriptedTransport,
    *,
    halt: Halt | None = None,
    secrets: Mapping[str, str] | None = None,
    holds_lease: Callable[[], bool] = lambda: True,
) -> Mapping[str, StepResult]:
    links = Links(transports(transport))
    errand = Errand(
        fence=FENCE,
        nodes={name: node(name) for name in transport.scripts},
        links=links,
        secrets=lambda _: secrets or {"key": "k"},
        holds_lease=holds_lease,
    )
    try:
        return await execute(plan, errand, halt=halt or Halt(), progress=Silent())
    finally:
        await links.close()


def outcomes(results: Mapping[str, StepResult]) -> dict[str, StepOutcome]:
    return {name: result.outcome for name, result in results.items()}


def test_a_step_is_sent_only_after_what_it_waits_for() -> None:
    gpu01 = Script("gpu01")
    results = carried_out(plan_of(start("s", after=("i",)), install("i")), ScriptedTransport(gpu01))
    assert gpu01.methods() == ["install", "start"]
    assert outcomes(results) == {"s": DONE, "i": DONE}


def test_the_command_id_is_serial_and_step_and_carries_fence_and_secrets() -> None:
    gpu01 = Script("gpu01")
    carried_out(plan_of(start("start x")), ScriptedTransport(gpu01), secrets={"key": "k", "TOKEN": "t"})
    ((_, params),) = gpu01.asked
    assert isinstance(params, StartParams)
    assert params.command.id == "7-start x"
    assert params.command.fence == FENCE
    assert params.secrets == {"key": "k", "TOKEN": "t"}


def test_a_fetch_carries_the_token_of_its_source_beside_its_spec() -> None:
    spec = FetchSpec(
        job=JobId("fetch-1"), digest="1" * 64, description="a/b", token=Secret(from_env="MY_TOKEN")
    )
    gpu01 = Script("gpu01")
    fetching = replace(step("f", StepKind.FETCH), fetch=spec)
    carried_out(plan_of(fetching), ScriptedTransport(gpu01), secrets={"token": "t"})
    ((_, params),) = gpu01.asked
    assert isinstance(params, FetchParams)
    assert params.secrets == {"token": "t"}
    assert "'t'" not in str(params.spec)


def test_one_nodes_failure_skips_only_what_depends_on_it() -> None:
    gpu01 = Script("gpu01", install=[AgentError("disk full", code=1008)])
    gpu02 = Script("gpu02")
    plan = plan_of(
        install("i1"),
        start("s1", after=("i1",)),
        step("p1", StepKind.PUBLISH, None, after=("s1",)),
        start("s2", "gpu02"),
    )
    results = carried_out(plan, ScriptedTransport(gpu01, gpu02))
    assert outcomes(results) == {"i1": FAILED, "s1": SKIPPED, "p1": SKIPPED, "s2": DONE}
    assert results["i1"].error == "node gpu01: disk full"


def test_nobody_waits_for_readiness_inside_a_pass() -> None:
    plan = plan_of(
        start("s"),
        step("w", StepKind.AWAIT_READY, after=("s",)),
        step("p", StepKind.PUBLISH, None, after=("w",)),
        step("x", StepKind.STOP, after=("p",)),
    )
    gpu01 = Script("gpu01")
    results = carried_out(plan, ScriptedTransport(gpu01))
    assert outcomes(results) == {"s": DONE, "w": DEFERRED, "p": DEFERRED, "x": DEFERRED}
    assert gpu01.methods() == ["start"]


def test_a_lost_answer_is_asked_for_again_by_the_same_command_id() -> None:
    gpu01 = Script("gpu01", start=[UnknownOutcomeError("the line was lost"), Accepted()])
    transport = ScriptedTransport(gpu01)
    results = carried_out(plan_of(start("s")), transport)
    assert outcomes(results) == {"s": DONE}
    assert [params.command.id for _, params in gpu01.asked] == ["7-s", "7-s"]
    assert len(transport.links) == 2, "the broken connection was not opened anew"
    assert transport.links[0].closed


def test_of_two_that_shared_a_connection_the_later_to_lose_it_goes_on_over_the_next_one() -> None:
    lost = UnknownOutcomeError("the line was lost")
    gpu01 = Script("gpu01", start=[lost, Accepted()], install=[lost, Accepted()])
    gpu01.gated.add("install")
    transport = ScriptedTransport(gpu01)

    async def main() -> Mapping[str, StepResult]:
        applying = asyncio.ensure_future(running(plan_of(start("s"), install("i")), transport))
        async with asyncio.timeout(30):
            while gpu01.methods().count("start") < 2 or len(transport.links) < 2:  # noqa: ASYNC110 - a script tells nobody
                await asyncio.sleep(0.01)
        gpu01.gates["install"].set()
        return await applying

    assert outcomes(asyncio.run(main())) == {"s": DONE, "i": DONE}
    assert len(transport.links) == 2, "a connection that was in order was closed"


def test_an_answer_that_never_comes_is_unknown_and_holds_back_what_follows() -> None:
    gpu01 = Script("gpu01", start=[UnknownOutcomeError("the line was lost")])
    plan = plan_of(start("s", timeout=0.3), step("x", StepKind.STOP, after=("s",)))
    results = carried_out(plan, ScriptedTransport(gpu01))
    assert outcomes(results) == {"s": UNKNOWN, "x": DEFERRED}


class _GoneAfterOneCommand(ScriptedTransport):
    async def connect(self, node: DesiredNode, *, fleet: str | None) -> Link:
        if self.scripts[node.name].asked:
            raise RetryError("no route to host")
        return await super().connect(node, fleet=fleet)


def test_a_command_that_was_sent_stays_unknown_though_the_node_then_refuses_connections() -> None:
    gpu01 = Script("gpu01", start=[UnknownOutcomeError("the line was lost")])

    async def main() -> Mapping[str, StepResult]:
        return await running(plan_of(start("s", timeout=0.3)), _GoneAfterOneCommand(gpu01))

    assert outcomes(asyncio.run(main())) == {"s": UNKNOWN}


def test_a_node_that_is_gone_holds_up_no_pass_however_long_its_step_may_take() -> None:
    """A bootstrap may take ten minutes over a slow line. A machine that was cut off was waited for twenty."""

    async def main() -> None:
        gpu01, gpu02 = Script("gpu01"), Script("gpu02")
        gpu01.connects = [RetryError("no route to host")] * 1000
        plan = plan_of(start("s", timeout=600), start("t", "gpu02"))
        results = await running(plan, ScriptedTransport(gpu01, gpu02))
        assert outcomes(results) == {"s": FAILED, "t": DONE}
        assert GONE_FOR <= asyncio.get_running_loop().time() + LONGEST_PAUSE < 2 * GONE_FOR

    run_virtual(main(), VirtualLoop())


def test_a_node_that_is_down_from_the_start_has_failed_not_unknown() -> None:
    gpu01 = Script("gpu01")
    gpu01.connects = [RetryError("no route to host")] * 20
    results = carried_out(plan_of(start("s", timeout=0.3)), ScriptedTransport(gpu01))
    assert outcomes(results) == {"s": FAILED}
    assert "no route to host" in results["s"].error


def test_it_is_tried_again_only_where_the_refusal_says_so() -> None:
    soon = timedelta(milliseconds=10)
    gpu01 = Script("gpu01", start=[AgentError("busy", code=BUSY, after=soon), Accepted()])
    gpu02 = Script("gpu02", start=[AgentError("GPU is held", code=MISMATCH)])
    results = carried_out(plan_of(start("s1"), start("s2", "gpu02")), ScriptedTransport(gpu01, gpu02))
    assert outcomes(results) == {"s1": DONE, "s2": FAILED}
    assert len(gpu01.asked) == 2
    assert len(gpu02.asked) == 1


def test_an_agent_that_obeys_somebody_newer_ends_the_pass() -> None:
    gpu01 = Script("gpu01", install=[AgentError("serial 9 has commanded", code=FENCED)])
    gpu02 = Script("gpu02")
    halt = Halt()
    plan = plan_of(install("i"), install("i2", "gpu02"), start("s2", "gpu02", after=("i2",)))
    gpu02.gated = {"install"}

    async def main() -> Mapping[str, StepResult]:
        task = asyncio.create_task(running(plan, ScriptedTransport(gpu01, gpu02), halt=halt))
        assert await halt.sleep(5), "the refusal did not end the pass"
        gpu02.gates["install"].set()
        return await task

    results = asyncio.run(main())
    assert halt.outcome is Outcome.SUPERSEDED
    assert outcomes(results) == {"i": FAILED, "i2": DONE, "s2": DEFERRED}


def test_nothing_is_sent_once_the_lease_is_over() -> None:
    gpu01 = Script("gpu01")
    halt = Halt()
    plan = plan_of(install("i"), start("s", after=("i",)))

    async def main() -> Mapping[str, StepResult]:
        return await running(plan, ScriptedTransport(gpu01), halt=halt, holds_lease=lambda: not gpu01.asked)

    results = asyncio.run(main())
    assert outcomes(results) == {"i": DONE, "s": DEFERRED}
    assert [method for method, _ in gpu01.asked] == ["install"]
    assert halt.outcome is Outcome.INTERRUPTED
    assert "the lease is over" in halt.reason


def test_a_command_whose_answer_was_lost_stays_unknown_when_the_lease_ends() -> None:
    lost = UnknownOutcomeError("the line broke", after=timedelta(0))
    gpu01 = Script("gpu01", start=[lost])

    async def main() -> Mapping[str, StepResult]:
        return await running(
            plan_of(start("s")), ScriptedTransport(gpu01), holds_lease=lambda: not gpu01.asked
        )

    assert outcomes(asyncio.run(main())) == {"s": UNKNOWN}


def test_after_an_interrupt_commands_in_flight_finish_and_the_rest_is_left() -> None:
    gpu01 = Script("gpu01")
    gpu01.gated = {"install"}
    halt = Halt()

    async def main() -> Mapping[str, StepResult]:
        plan = plan_of(install("i"), start("s", after=("i",)))
        task = asyncio.create_task(running(plan, ScriptedTransport(gpu01), halt=halt))
        async with asyncio.timeout(5):
            await gpu01.was_asked.wait()
        halt.now(Outcome.INTERRUPTED, "interrupted")
        gpu01.gates["install"].set()
        return await task

    assert outcomes(asyncio.run(main())) == {"i": DONE, "s": DEFERRED}


def test_a_node_gets_few_steps_at_once_and_all_of_them_in_the_end() -> None:
    gpu01 = Script("gpu01")
    steps = tuple(install(f"i{number}") for number in range(20))
    results = carried_out(plan_of(*steps), ScriptedTransport(gpu01))
    assert gpu01.most_at_once == STEPS_AT_ONCE
    assert set(outcomes(results).values()) == {DONE}


def test_only_so_many_nodes_are_commanded_at_once() -> None:
    count = NODES_AT_ONCE + 10
    scripts = [Script(f"gpu{number:02}") for number in range(count)]
    for script in scripts:
        script.gated = {"install"}

    async def main() -> tuple[int, Mapping[str, StepResult]]:
        plan = plan_of(*(install(f"i{script.name}", script.name) for script in scripts))
        task = asyncio.create_task(running(plan, ScriptedTransport(*scripts)))
        for _ in range(200):
            await asyncio.sleep(0)
        busy = sum(bool(script.asked) for script in scripts)
        for script in scripts:
            script.gates["install"].set()
        return busy, await task

    busy, results = asyncio.run(main())
    assert busy == NODES_AT_ONCE
    assert len(results) == count
    assert set(outcomes(results).values()) == {DONE}


def test_a_node_without_an_agent_is_bootstrapped_and_then_commanded() -> None:
    gpu01 = Script("gpu01")
    gpu01.agent = False
    transport = ScriptedTransport(gpu01)
    plan = plan_of(step("b", StepKind.BOOTSTRAP), start("s", after=("b",)))
    assert outcomes(carried_out(plan, transport)) == {"b": DONE, "s": DONE}
    assert transport.bootstrapped == ["gpu01"]


def test_a_job_that_has_failed_already_fails_its_step_with_the_jobs_error() -> None:
    job = JobReport(
        job=JobId("install-1"),
        kind="install",
        target="1",
        description="sim 1",
        state="failed",
        error="no space left",
    )
    results = carried_out(
        plan_of(install("i")), ScriptedTransport(Script("gpu01", install=[Accepted(job=job)]))
    )
    assert outcomes(results) == {"i": FAILED}
    assert results["i"].error == "node gpu01: sim 1: no space left"


def test_a_missing_secret_fails_its_start_and_nothing_else() -> None:
    gpu01 = Script("gpu01")

    async def main() -> Mapping[str, StepResult]:
        links = Links(transports(ScriptedTransport(gpu01)))

        def missing(wanted: Step) -> Mapping[str, str]:
            if wanted.id == "s1":
                raise StalledError("TOKEN is not set in the environment")
            return {"key": "k"}

        errand = Errand(fence=FENCE, nodes={"gpu01": node("gpu01")}, links=links, secrets=missing)
        try:
            return await execute(plan_of(start("s1"), start("s2")), errand, halt=Halt(), progress=Silent())
        finally:
            await links.close()

    results = asyncio.run(main())
    assert outcomes(results) == {"s1": FAILED, "s2": DONE}
    assert "TOKEN is not set" in results["s1"].error


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((start("a", after=("b",)), start("b", after=("a",))), "wait for each other"),
        ((start("a", after=("gone",)),), "which the plan does not hold"),
        ((start("a"), start("a")), "the same id"),
    ],
)
def test_steps_that_are_no_graph_are_refused_before_anything_is_sent(
    steps: tuple[Step, ...], said: str
) -> None:
    gpu01 = Script("gpu01")
    with pytest.raises(InvalidError, match=said):
        carried_out(plan_of(*steps), ScriptedTransport(gpu01))
    assert not gpu01.asked


def test_a_step_on_a_node_that_left_the_manifests_fails_and_says_so() -> None:
    results = carried_out(plan_of(start("s", "gone")), ScriptedTransport(Script("gpu01")))
    assert outcomes(results) == {"s": FAILED}
    assert "not in the manifests any more" in results["s"].error
