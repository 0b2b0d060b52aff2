"""The real shards on a pretended node, in pretended time."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from llmgw.agent.fakes import Script
from llmgw.agent.seams import JournalEvent, Order
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.facts import GpuProcess
from llmgw.model.ids import JobId
from llmgw.model.launch import Expect, Process, RestartPolicy, ShardTimeouts, WaitFor
from llmgw.model.problems import AgentError
from llmgw.wire.messages import CONFLICT, INVALID_PARAMS, NO_SPACE, NOT_FOUND, KeyParams, LogsParams
from tests.agent.shards.rig import (
    COMMAND,
    GIB,
    Rig,
    drain,
    forget,
    gpu,
    on_node,
    spec,
    start,
    stop,
    until,
)


def behaving(**script: object) -> dict[str, object]:
    return {"behave": lambda _: Script(**script)}  # type: ignore[arg-type] # the test's own words


def test_a_shard_goes_from_its_order_to_ready_through_every_state() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        accepted = await shards.start(start(launch))
        assert accepted.shard is not None
        report = await rig.reaches(launch, "ready")
        assert rig.states(launch) == ["pending", "starting", "loading", "ready"]
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


def test_a_repeated_start_answers_with_the_state_and_starts_nothing() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await asyncio.gather(*(shards.start(start(launch)) for _ in range(5)))
        await rig.reaches(launch, "ready")
        accepted = await shards.start(start(launch))
        assert accepted.shard is not None
        assert accepted.shard.state == "ready"
        assert len(rig.node.starts) == 1

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
        waits = [round(after - before) for before, after in zip(times, times[1:], strict=False)]
        assert waits == [11, 21]

    on_node(story, **behaving(exit_after=1, exit_code=3, ready_after=None))


def test_an_exit_with_code_0_is_a_failure_too() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        report = await rig.reaches(launch, "backoff")
        assert "exited by itself with code 0" in report.last_error

    on_node(story, **behaving(exit_after=5, exit_code=0))


def test_being_ready_for_long_forgets_earlier_failures() -> None:
    lives = iter([Script(exit_after=1), Script()])

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        assert (await rig.reaches(launch, "ready")).attempts == 1
        await asyncio.sleep(launch.restart.reset_after + 1)
        assert rig.report(launch).attempts == 0

    on_node(story, behave=lambda _: next(lives))


def test_the_rank_of_a_gang_is_not_restarted_here() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(rank=1, ranks=2)
        await shards.start(start(launch))
        report = await rig.reaches(launch, "failed")
        assert report.attempts == 1
        assert len(rig.node.starts) == 1

    on_node(story, **behaving(exit_after=10))


def test_a_rank_without_http_is_ready_when_up_for_its_grace() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(port=None, argv=("worker",), rank=1, ranks=2)
        await shards.start(start(launch))
        await rig.reaches(launch, "ready", within=8)

    on_node(story, **behaving(ready_after=None))


def test_one_that_never_gets_ready_is_killed_at_its_deadline_with_the_last_reason() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        report = await rig.reaches(launch, "backoff", within=90)
        assert "not ready 60 s after its start" in report.last_error
        assert "503" in report.last_error
        assert not rig.node.living()

    on_node(story, **behaving(ready_after=None))


def test_healthy_without_a_token_is_not_ready() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "loading", says="/v1/completions")
        await asyncio.sleep(10)
        assert rig.report(launch).state == "loading"

    on_node(story, **behaving(answers_token=False))


def test_a_strangers_listener_is_never_taken_for_ours() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "starting", says="waiting for its port")
        rig.node.strangers[18000] = 4711
        await rig.reaches(launch, "loading", says="pid 4711, which is not ours")

    on_node(story, **behaving(port_after=30))


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

    on_node(story, **behaving(ignore_term=True))


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

    on_node(story, **behaving(ignore_term=True, survive_kill=True))


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


def test_claims_are_never_exceeded() -> None:
    whole = Claims(gpus=(GpuClaim(uuid="GPU-0"),), ports=(18000,))
    share = Claims(gpus=(GpuClaim(uuid="GPU-1", memory=50 * GIB),), ports=(18001,))
    refused = {
        "port 18000": Claims(ports=(18000,)),
        "as a whole by shard": Claims(gpus=(GpuClaim(uuid="GPU-0", memory=GIB),)),
        "wanted as a whole": Claims(gpus=(GpuClaim(uuid="GPU-1"),)),
        "80.0 GiB, of which shards claim 50.0 GiB: 40.0 GiB": Claims(
            gpus=(GpuClaim(uuid="GPU-1", memory=40 * GIB),)
        ),
        "memory": Claims(memory=8 * GIB),
    }

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        await shards.start(start(spec(model="a", claims=whole)))
        await shards.start(start(spec(model="b", port=18001, claims=replace(share, memory=10 * GIB))))
        for why, claims in refused.items():
            with pytest.raises(AgentError, match=why) as conflict:
                await shards.start(start(spec(model="c", port=18002, claims=claims)))
            assert conflict.value.code == CONFLICT
        fitting = Claims(gpus=(GpuClaim(uuid="GPU-1", memory=30 * GIB),), memory=6 * GIB, ports=(18002,))
        await shards.start(start(spec(model="c", port=18002, claims=fitting)))
        assert len(shards.reports()) == 3

    on_node(story, gpus=(gpu(0), gpu(1)), memory=16 * GIB)


def test_a_full_disk_refuses_the_start_and_nothing_is_started() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        rig.disk.full = True
        with pytest.raises(AgentError, match="nothing was started") as refused:
            await shards.start(start(spec()))
        assert refused.value.code == NO_SPACE
        await asyncio.sleep(60)
        assert not rig.node.starts
        assert not shards.reports()

    on_node(story)


def test_a_disk_that_fills_up_later_is_told_and_stop_still_works() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "starting")
        rig.disk.full = True
        await rig.reaches(launch, "ready")
        assert any("No space left" in problem for problem in shards.problems())
        await shards.stop(stop(launch))
        await rig.reaches(launch, "stopped")
        assert not rig.node.living()

    on_node(story)


@pytest.mark.parametrize(
    ("expect", "why"),
    [
        (Expect(gpus=("GPU-7",)), "GPU GPU-7 is not there"),
        (Expect(gpus=("GPU-1",)), "not healthy: pending remap"),
        (Expect(gpus=("GPU-0",)), "pid 4711 of user ann holds 31.9 GiB"),
        (Expect(ports_free=(18000,)), "port 18000 is taken"),
        (Expect(interface_address="10.0.0.9"), "no interface of this node holds the address 10.0.0.9"),
        (Expect(gids={"mlx5_0:1:3": "::ffff:0a00:0001"}), "GID 3 of mlx5_0 port 1 is gone"),
        (Expect(engine="e" * 64), "engine eeeeeeee is not installed"),
        (Expect(weights="f" * 64), "weights ffffffff are not here"),
    ],
)
def test_what_the_plan_expected_is_checked_before_exec_and_named(expect: Expect, why: str) -> None:
    async def story(rig: Rig) -> None:
        rig.node.foreign["GPU-0"] = GpuProcess(pid=4711, user="ann", memory=int(31.9 * GIB))
        rig.node.strangers[18000] = 42
        shards = await rig.agent()
        launch = spec(expect=expect)
        await shards.start(start(launch))
        report = await rig.reaches(launch, "failed")
        assert report.reason.startswith("mismatch: ")
        assert why in report.reason
        assert report.attempts == 0
        assert not rig.node.starts

    on_node(story, gpus=(gpu(0), gpu(1, health=("pending remap",))))


def test_late_values_are_filled_in_at_launch() -> None:
    orders: list[Order] = []

    def behave(order: Order) -> Script:
        orders.append(order)
        return Script()

    async def story(rig: Rig) -> None:
        rig.jobs.engines["e"] = "/engines/e"
        shards = await rig.agent()
        launch = spec(
            argv=("${engine}/bin/serve", "--model", "${weights}", "--port", "18000", "--price", "$$5"),
            env={
                "CUDA_VISIBLE_DEVICES": "${gpu.indices}",
                "UUIDS": "${gpu.uuids}",
                "KEY": "${key}",
                "HOME": "${home}",
            },
            claims=Claims(gpus=(GpuClaim(uuid="GPU-1"), GpuClaim(uuid="GPU-0"))),
            engine="e",
            weights_path="/models/x",
        )
        await shards.start(start(launch, key="s3cret ${engine}"))
        await rig.reaches(launch, "ready")
        (order,) = orders
        assert order.argv == (
            "/engines/e/bin/serve",
            "--model",
            "/models/x",
            "--port",
            "18000",
            "--price",
            "$5",
        )
        assert order.env["CUDA_VISIBLE_DEVICES"] == "1,0"
        assert order.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert order.env["UUIDS"] == "GPU-1,GPU-0"
        assert order.env["KEY"] == "s3cret ${engine}"
        assert order.env["HOME"] == order.directory
        assert set(order.env) == {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "UUIDS", "KEY", "HOME"}

    on_node(story, gpus=(gpu(0), gpu(1)), behave=behave)


def test_a_start_that_can_not_be_is_refused_before_anything_is_written() -> None:
    odd = Process(name="engine", argv=("x", "${gpu.count}"))
    cases = {
        "unknown late value": spec(processes=(odd,)),
        "no value came for key": spec(env={"K": "${key}"}),
        "no value came for TOKEN": spec(env={"K": "${secret:TOKEN}"}),
        "the last must be 'engine'": spec(processes=(Process(name="main", argv=("x",)),)),
        "can't name a file": spec(shard="../../etc/passwd"),
        "can't name an environment variable": spec(env={"A B": "x"}),
    }

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        for why, launch in cases.items():
            with pytest.raises(AgentError, match=why) as refused:
                await shards.start(start(launch))
            assert refused.value.code == INVALID_PARAMS
        assert not rig.disk.files

    on_node(story)


def test_secrets_stand_in_no_order_report_event_or_error() -> None:
    canary = "canary-7f3a"

    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(env={"API_KEY": "${key}"})
        await shards.start(start(launch, key=canary))
        await rig.reaches(launch, "ready")
        holding = [name for name, data in rig.disk.files.items() if canary.encode() in data]
        assert holding == [f"secrets/{launch.shard}.json"]
        assert canary not in repr(rig.events) + repr(shards.reports())
        await shards.key(KeyParams(command=COMMAND, shard=launch.shard, secrets={"key": "another"}))
        assert json.loads(rig.disk.files[f"secrets/{launch.shard}.json"])["values"] == {"key": "another"}

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


def test_forget_drops_what_a_terminal_shard_has_on_disk() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch, key="k"))
        await rig.reaches(launch, "ready")
        with pytest.raises(AgentError, match="stop it first"):
            await shards.forget(forget(launch))
        await shards.stop(stop(launch))
        await rig.reaches(launch, "stopped")
        await shards.forget(forget(launch))
        assert not rig.disk.files
        assert not shards.reports()
        await shards.forget(forget(launch))

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


def test_logs_of_an_unknown_shard_are_an_error() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        with pytest.raises(AgentError, match="no such shard"):
            await anext(shards.logs(LogsParams(shard=spec().shard)))

    on_node(story)


def test_a_clock_that_is_set_moves_no_deadline() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(timeouts=ShardTimeouts(startup=600, health=1, health_request=1))
        await shards.start(start(launch))
        await rig.reaches(launch, "loading")
        rig.clock.step = timedelta(days=1)
        await asyncio.sleep(100)
        assert rig.report(launch).state == "loading"

    on_node(story, **behaving(ready_after=None))
