"""The agent dies, comes back, and goes on: the real shards on a pretended node that outlives them."""

import asyncio
from collections.abc import Callable

import pytest

from llmgw.agent.fakes import Script
from llmgw.agent.shards.keeper import Shards
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.ids import JobId
from llmgw.model.launch import Process, RestartPolicy, WaitFor
from llmgw.model.struct import replace
from tests.agent.shards.rig import Rig, behaving, drain, forget, gpu, on_node, spec, start, stop, until


class Death(BaseException):
    """As by kill -9."""


def dies_at(call: int) -> Callable[[str], None]:
    left = [call]

    def checkpoint(_: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Death

    return checkpoint


async def killed(shards: Shards) -> None:
    """What a dead agent's tasks would still do, they can't."""
    await shards.close()


def test_a_ready_shard_is_claimed_before_the_first_report_and_keeps_its_process() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        ready = await rig.reaches(launch, "ready")
        await killed(first)
        await rig.agent()
        report = rig.report(launch)
        assert report.pid == ready.pid
        assert report.state == "loading"
        adopted = await rig.reaches(launch, "ready", within=5)
        assert adopted.ready_at == ready.ready_at
        assert len(rig.node.starts) == 1

    on_node(story)


def test_a_slow_one_stays_loading_after_adoption_and_is_never_killed() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        process = rig.node.living()[0]
        process.script = replace(process.script, answers_token=False)
        await rig.agent()
        await rig.reaches(launch, "loading", within=600, says="slow after adoption: /v1/completions")
        await asyncio.sleep(3600)
        assert rig.report(launch).state == "loading"
        process.script = replace(process.script, answers_token=True)
        await rig.reaches(launch, "ready", within=180)
        assert len(rig.node.starts) == 1

    on_node(story)


def test_one_that_works_without_answering_is_not_killed_because_its_agent_was_replaced() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        process = rig.node.living()[0]
        process.script = replace(process.script, ready_after=None)
        await rig.agent()
        for count in range(600):  # its requests move, however slowly
            process.script = replace(process.script, in_flight=count)
            await asyncio.sleep(1)
        report = rig.report(launch)
        assert report.state == "loading"
        assert report.reason.startswith("slow after adoption: busy: /health answered 503")
        assert "its requests move" in report.reason
        process.script = replace(process.script, ready_after=0)
        await rig.reaches(launch, "ready")
        assert len(rig.node.starts) == 1

    on_node(story)


def test_one_that_hangs_when_its_agent_is_replaced_is_started_again_as_without_that() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        process = rig.node.living()[0]
        process.script = replace(process.script, ready_after=None)
        await killed(first)
        await rig.agent()
        await rig.reaches(launch, "loading", within=30, says="no longer answers: /health answered 503")
        await rig.reaches(launch, "backoff", within=120, says="did not recover")
        await rig.reaches(launch, "ready", within=60)
        assert len(rig.node.starts) == 2

    on_node(story)


def test_one_that_died_unseen_is_recorded_with_its_exit_and_restarted_by_policy() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        rig.node.end(rig.node.living()[0], None, 11)
        await rig.agent()
        report = await rig.reaches(launch, "backoff")
        assert report.last_exit is not None
        assert report.last_exit.signal == 11
        assert report.attempts == 1
        await rig.reaches(launch, "ready")

    on_node(story)


@pytest.mark.parametrize("optional", [False, True])
def test_a_sidecar_that_died_unseen_fails_the_shard_unless_it_is_optional(*, optional: bool) -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec(sidecars=(Process(name="ray", argv=("ray",), optional=optional),))
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        sidecar, engine = rig.node.living()
        assert sidecar.order.process == "ray"
        rig.node.end(sidecar, 7, None)
        await rig.agent()
        if optional:
            assert (await rig.reaches(launch, "ready")).pid == engine.pid
            assert len(rig.node.starts) == 2
            return
        report = await rig.reaches(launch, "backoff")
        assert report.last_error.startswith("ray exited by itself with code 7")
        assert not rig.node.living()
        await rig.reaches(launch, "ready")

    on_node(story)


def test_a_half_done_stop_is_finished_by_the_next_agent() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await first.stop(stop(launch))
        await killed(first)
        assert rig.node.living()
        await rig.agent()
        await rig.reaches(launch, "stopped")
        assert not rig.node.living()

    on_node(story, behave=behaving(ignore_term=True))


def test_a_half_done_drain_is_finished_by_the_next_agent() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        process = rig.node.living()[0]
        process.script = replace(process.script, in_flight=1)
        await first.drain(drain(launch, 300))
        await killed(first)
        await rig.agent()
        await rig.reaches(launch, "draining", says="1 requests in flight")
        process.script = replace(process.script, in_flight=0)
        await rig.reaches(launch, "stopped")

    on_node(story)


def test_a_backoff_goes_on_with_the_attempts_it_had() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec(restart=RestartPolicy(backoff=100, give_up_after=9))
        await first.start(start(launch))
        before = await rig.reaches(launch, "backoff")
        await killed(first)
        await asyncio.sleep(10)
        await rig.agent()
        report = rig.report(launch)
        assert (report.state, report.attempts, report.next_try) == ("backoff", 1, before.next_try)
        await asyncio.sleep(50)
        assert len(rig.node.starts) == 1
        await until(lambda: len(rig.node.starts) == 2)

    on_node(story, behave=behaving(exit_after=1))


def test_after_a_reboot_single_shards_start_again_and_wait_for_the_gpu_without_counting() -> None:
    claims = Claims(gpus=(GpuClaim(uuid="GPU-0"),), ports=(18000,))

    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec(claims=claims)
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        rig.node.reboot()
        there, rig.node.gpus = rig.node.gpus, ()
        await rig.agent()
        report = await rig.reaches(launch, "backoff", says="GPU GPU-0 is not there")
        await asyncio.sleep(600)
        assert rig.report(launch).attempts == 0
        rig.node.gpus = there
        report = await rig.reaches(launch, "ready")
        assert report.attempts == 0
        assert len(rig.node.starts) == 2

    on_node(story, gpus=(gpu(0),))


def test_after_a_reboot_a_gangs_shard_waits_for_the_controller() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec(ranks=2)
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        rig.node.reboot()
        await rig.agent()
        await rig.reaches(launch, "failed", says="rebooted")
        assert len(rig.node.starts) == 1

    on_node(story)


def test_after_a_reboot_a_rank_that_was_waiting_for_its_leader_is_not_started_either() -> None:
    meet = WaitFor(host="127.0.0.1", port=29500, timeout=300)

    async def story(rig: Rig) -> None:
        first = await rig.agent()
        worker = Process(name="engine", argv=("worker",), wait_for=meet)
        launch = spec(port=None, processes=(worker,), rank=1, ranks=2)
        await first.start(start(launch))
        await rig.reaches(launch, "starting", says="waits for")
        await killed(first)
        rig.node.reboot()
        await rig.agent()
        await rig.reaches(launch, "failed", says="restarted as a whole")
        rig.node.strangers[29500] = 7
        await asyncio.sleep(100)
        assert rig.node.starts == []

    on_node(story)


def test_a_rank_that_waits_for_its_leader_goes_on_waiting_after_its_agents_restart() -> None:
    meet = WaitFor(host="127.0.0.1", port=29500, timeout=300)

    async def story(rig: Rig) -> None:
        first = await rig.agent()
        worker = Process(name="engine", argv=("worker",), wait_for=meet)
        launch = spec(port=None, processes=(worker,), rank=1, ranks=2)
        await first.start(start(launch))
        await rig.reaches(launch, "starting", says="waits for")
        await killed(first)
        await rig.agent()
        await rig.reaches(launch, "starting", says="waits for")
        rig.node.strangers[29500] = 7
        await rig.reaches(launch, "ready")
        assert len(rig.node.starts) == 1

    on_node(story)


def test_stopped_and_failed_shards_stay_so_over_restarts_and_reboots() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        one, other = spec(), spec(model="other", port=18001, restart=RestartPolicy(give_up_after=1))
        await shards.start(start(one))
        await shards.start(start(other))
        await rig.reaches(one, "ready")
        await shards.stop(stop(one))
        await rig.reaches(one, "stopped")
        rig.node.end(rig.node.living()[0], 1, None)
        await rig.reaches(other, "failed")
        for reboot in (False, True):
            assert rig.shards is not None
            await killed(rig.shards)
            if reboot:
                rig.node.reboot()
            await rig.agent()
            await asyncio.sleep(100)
            assert rig.report(one).state == "stopped"
            assert rig.report(other).state == "failed"
        assert len(rig.node.starts) == 2

    on_node(story)


ENGINE_JOB, WEIGHTS_JOB = JobId(f"install-{'e' * 8}"), JobId(f"fetch-{'f' * 8}")


def test_jobs_that_nobody_remembers_are_no_obstacle_when_what_they_brought_is_there() -> None:
    async def story(rig: Rig) -> None:
        rig.jobs.engines["e" * 64] = "/engines/e"
        rig.jobs.forgotten = {ENGINE_JOB}
        shards = await rig.agent()
        launch = spec(engine="e" * 64, needs=(ENGINE_JOB,))
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")

    on_node(story)


def test_a_job_that_nobody_remembers_is_no_obstacle_beside_one_that_is_remembered() -> None:
    """The engine's, older by hundreds of jobs, is dropped; the weights, fetched for this model, leave one."""

    async def story(rig: Rig) -> None:
        rig.jobs.engines["e" * 64] = "/engines/e"
        rig.jobs.forgotten = {ENGINE_JOB}
        shards = await rig.agent()
        launch = spec(engine="e" * 64, weights="f" * 64, needs=(ENGINE_JOB, WEIGHTS_JOB))
        await shards.start(start(launch))
        await rig.reaches(launch, "fetching")
        rig.jobs.weights["f" * 64] = "/weights/f"
        rig.jobs.finish(WEIGHTS_JOB)
        await rig.reaches(launch, "ready")
        rig.node.end(rig.node.living()[0], 1, None)
        await rig.reaches(launch, "backoff")
        await rig.reaches(launch, "ready")

    on_node(story)


def test_a_job_that_nobody_remembers_and_that_brought_nothing_is_named() -> None:
    async def story(rig: Rig) -> None:
        rig.jobs.forgotten = {ENGINE_JOB}
        shards = await rig.agent()
        launch = spec(engine="e" * 64, needs=(ENGINE_JOB,))
        await shards.start(start(launch))
        assert ENGINE_JOB in (await rig.reaches(launch, "failed")).last_error

    on_node(story)


def test_an_unreadable_order_is_reported_kept_aside_and_hides_no_other() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        good, bad = spec(), spec(model="bad", port=18001)
        await first.start(start(good))
        await first.start(start(bad))
        await rig.reaches(good, "ready")
        await rig.reaches(bad, "ready")
        await killed(first)
        rig.disk.files[f"shards/{bad.shard}.json"] = b'{"spec": '
        for _ in range(2):
            shards = await rig.agent()
            await rig.reaches(good, "ready")
            report = rig.report(bad)
            assert report.state == "failed"
            assert "can't be read" in report.reason
            assert any(bad.shard in problem for problem in shards.problems())
            assert rig.disk.files[f"shards/unreadable/{bad.shard}.json"] == b'{"spec": '
            assert len(rig.node.living()) == 2
            await killed(shards)
        shards = await rig.agent()
        await shards.stop(stop(bad))
        await rig.reaches(bad, "stopped")
        assert [process.order.shard for process in rig.node.living()] == [good.shard]
        await shards.forget(forget(bad))
        assert not shards.problems()
        assert not [name for name in rig.disk.files if "bad" in name]

    on_node(story)


@pytest.mark.parametrize("broken", [b'{"spec": ', b""])
def test_an_order_that_was_lost_comes_again_for_an_engine_that_is_adopted_not_killed(broken: bytes) -> None:
    """A cut order left a healthy engine unwatched and its model blocked for good."""

    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        ready = await rig.reaches(launch, "ready")
        await killed(first)
        rig.disk.files[f"shards/{launch.shard}.json"] = broken
        shards = await rig.agent()
        assert rig.report(launch).lost == "its order"
        await shards.start(start(launch))
        adopted = await rig.reaches(launch, "ready")
        assert (adopted.pid, adopted.lost) == (ready.pid, "")
        assert len(rig.node.starts) == 1
        assert not shards.problems()
        await killed(shards)
        await rig.agent()
        assert rig.report(launch).pid == ready.pid

    on_node(story)


def test_a_key_that_was_lost_comes_again_with_the_order_and_nothing_is_started_anew() -> None:
    """The engine answered 401 to its own agent for ever, and an apply waited for it as long."""

    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec(env={"KEY": "${key}"})
        await first.start(start(launch, key="k1"))
        ready = await rig.reaches(launch, "ready")
        assert ready.lost == ""
        await killed(first)
        rig.disk.files[f"secrets/{launch.shard}.json"] = b"{"
        shards = await rig.agent()
        assert rig.report(launch).lost == "its secrets"
        await shards.start(start(launch, key="k1"))
        assert rig.report(launch).lost == ""
        assert (await rig.reaches(launch, "ready")).pid == ready.pid
        await killed(shards)
        await rig.agent()
        assert rig.report(launch).lost == ""
        assert len(rig.node.starts) == 1

    on_node(story)


def test_a_broken_file_of_secrets_that_nobody_needs_is_written_anew_with_the_order() -> None:
    """Its shard, which uses no secret, could not be started again for ever, and a repeated order changed nothing."""

    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        rig.disk.files[f"secrets/{launch.shard}.json"] = b"{"
        shards = await rig.agent()
        assert rig.report(launch).lost == "its secrets"
        await shards.start(start(launch))
        assert rig.report(launch).lost == ""
        await killed(shards)
        await rig.agent()
        assert rig.report(launch).lost == ""

    on_node(story)


@pytest.mark.parametrize("call", range(1, 42))
def test_an_agent_killed_at_any_call_leaves_work_that_the_next_one_finishes(call: int) -> None:
    """Start, and somewhere on the way the agent dies; whatever the world is then, the next one brings it to ready with
    one engine running, started once for each life, and stops it without a rest."""
    sidecars = (Process(name="ray", argv=("ray",)),)

    async def story(rig: Rig) -> None:
        launch = spec(sidecars=sidecars)
        checkpoint = dies_at(call)
        taken = False
        try:
            first = await rig.agent(checkpoint=checkpoint)
            taken = (await first.start(start(launch))).shard is not None
        except Death:
            pass
        await asyncio.sleep(20)
        if rig.shards is not None:
            await killed(rig.shards)
        second = await rig.agent()
        if taken:
            assert rig.report(launch).shard == launch.shard
        await second.start(start(launch))
        await rig.reaches(launch, "ready")
        assert sorted(process.order.process for process in rig.node.living()) == ["engine", "ray"]
        await second.stop(stop(launch))
        await rig.reaches(launch, "stopped")
        assert not rig.node.living()

    on_node(story)


@pytest.mark.parametrize("call", range(1, 22))
def test_an_agent_killed_at_any_call_of_a_stop_does_not_bring_the_shard_back(call: int) -> None:
    async def story(rig: Rig) -> None:
        launch = spec()
        first = await rig.agent()
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        await killed(first)
        taken = False
        try:
            second = await rig.agent(checkpoint=dies_at(call))
            await second.stop(stop(launch))
            taken = True
        except Death:
            pass
        await asyncio.sleep(20)
        assert rig.shards is not None
        await killed(rig.shards)
        third = await rig.agent()
        if not taken:
            await third.stop(stop(launch))
        await rig.reaches(launch, "stopped")
        await asyncio.sleep(100)
        assert rig.report(launch).state == "stopped"
        assert not rig.node.living()
        assert len(rig.node.starts) == 1

    on_node(story, behave=lambda _: Script(leaves=1))
