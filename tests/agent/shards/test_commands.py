"""What is refused, what is written first, what late values become: the real shards on a pretended node."""

import asyncio
import json

import pytest

from llmgw.agent.fakes import Script
from llmgw.agent.seams import Order
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.facts import GpuProcess
from llmgw.model.ids import JobId
from llmgw.model.launch import Expect, Process, WaitFor
from llmgw.model.problems import AgentError
from llmgw.model.report import ShardReport
from llmgw.model.struct import replace
from llmgw.wire.messages import CONFLICT, INVALID_PARAMS, NO_SPACE, KeyParams, LogsParams
from tests.agent.shards.rig import (
    COMMAND,
    GIB,
    Rig,
    forget,
    gpu,
    on_node,
    spec,
    start,
    stop,
)


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
        assert not rig.spawner.prepared
        assert not shards.reports()

    on_node(story)


def test_no_engine_is_executed_before_its_order_and_secrets_are_on_disk() -> None:
    """What is prepared for it is begun before, and gets its order after."""

    async def story(rig: Rig) -> None:
        launch, seen = spec(env={"KEY": "${key}"}), []

        def look(call: str) -> None:
            if call in ("prepare", "spawn"):
                seen.append((call, sorted(rig.disk.files)))

        shards = await rig.agent(checkpoint=look)
        await shards.start(start(launch, key="k"))
        await rig.reaches(launch, "ready")
        assert seen[0] == ("prepare", [])
        assert seen[-1] == ("spawn", [f"secrets/{launch.shard}.json", f"shards/{launch.shard}.json"])
        assert not rig.spawner.prepared

    on_node(story)


@pytest.mark.parametrize("secrets", [{}, {"key": "k"}])
def test_whoever_watches_waits_for_no_write_but_that_of_the_order(secrets: dict[str, str]) -> None:
    """Four more times an engine's start, and what was told of it, had waited for the disk."""

    async def story(rig: Rig) -> None:
        launch, calls = spec(), []

        def look(call: str) -> None:
            told = any(isinstance(event, ShardReport) and event.pid for event in rig.events)
            calls.append(f"{call}, pid told" if told else call)

        shards = await rig.agent(checkpoint=look)
        await shards.start(start(launch, **secrets))
        await rig.reaches(launch, "ready")
        assert calls.count("write") == len({**secrets, "order": ""})
        assert "write, pid told" in calls

    on_node(story)


@pytest.mark.parametrize("waits", ["for a job", "for another node"])
def test_nothing_is_prepared_for_what_may_wait_long(waits: str) -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        if waits == "for a job":
            launch = spec(needs=(JobId("install-1"),))
        else:
            meet = WaitFor(host="10.0.0.2", port=29500, timeout=60)
            launch = spec()
            launch = replace(launch, processes=(replace(launch.processes[0], wait_for=meet),))
        await shards.start(start(launch))
        await rig.reaches(launch, "installing" if waits == "for a job" else "starting")
        await asyncio.sleep(1)
        assert not rig.spawner.prepared

    on_node(story)


def test_a_stop_and_a_mismatch_call_off_what_was_prepared() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        assert rig.spawner.prepared
        await shards.stop(stop(launch))
        await rig.reaches(launch, "stopped")
        assert not rig.spawner.prepared
        rig.node.strangers[18000] = 4711
        begun = len(rig.node.starts)
        await shards.start(start(launch))
        assert rig.spawner.prepared, "also in place of what has ended"
        await rig.reaches(launch, "failed", says="mismatch")
        assert not rig.spawner.prepared
        assert len(rig.node.starts) == begun

    on_node(story)


def test_an_engine_that_ends_while_the_disk_is_full_starts_again_when_there_is_room() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        rig.disk.full = True
        rig.node.end(rig.node.living()[0], 1, None)
        waits = await rig.reaches(launch, "backoff", says="its order can't be written")
        assert waits.reason.count("No space left") == 1
        rig.disk.full = False
        await rig.reaches(launch, "ready")

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


def test_weights_that_the_engine_may_not_read_are_told_before_exec() -> None:
    async def story(rig: Rig) -> None:
        rig.node.closed_paths.add("/models/closed")
        shards = await rig.agent()
        launch = replace(spec(), weights_path="/models/closed")
        await shards.start(start(launch))
        report = await rig.reaches(launch, "failed")
        assert report.reason.startswith("mismatch: the engine may not read /models/closed: chmod o+rX")
        assert not rig.node.starts

    on_node(story)


@pytest.mark.parametrize(
    ("expect", "why"),
    [
        (Expect(gpus=("GPU-7",)), "GPU GPU-7 is not there"),
        (Expect(gpus=("GPU-1",)), "not healthy: pending remap"),
        (Expect(gpus=("GPU-0",)), "pid 4711 of user ann holds 31.9 GiB"),
        (Expect(ports_free=(18000,)), "port 18000 is held by pid 42, which is not ours"),
        (Expect(interface_address="10.0.0.9"), "no interface of this node holds the address 10.0.0.9"),
        (Expect(gids={"mlx5_0:1:3": "::ffff:0a00:0001"}), "GID 3 of mlx5_0 port 1 is gone"),
        (Expect(engine="e" * 64), "engine eeeeeeee is not installed"),
        (Expect(weights="f" * 64), "weights ffffffff are not here"),
        (
            Expect(engine="d" * 64, flags=("--port", "--lora")),
            "engine dddddddd does not know --lora, by its own",
        ),
    ],
)
def test_what_the_plan_expected_is_checked_before_exec_and_named(expect: Expect, why: str) -> None:
    async def story(rig: Rig) -> None:
        rig.node.foreign["GPU-0"] = GpuProcess(pid=4711, user="ann", memory=int(31.9 * GIB))
        rig.node.strangers[18000] = 42
        rig.jobs.engines["d" * 64] = "/srv/engines/d"
        rig.jobs.flags["d" * 64] = ("--lora-scaled", "--port")
        shards = await rig.agent()
        launch = spec(expect=expect)
        await shards.start(start(launch))
        report = await rig.reaches(launch, "failed")
        assert report.reason.startswith("mismatch: ")
        assert why in report.reason
        assert report.attempts == 0
        assert not rig.node.starts

    on_node(story, gpus=(gpu(0), gpu(1, health=("pending remap",))))


def test_a_gpu_that_was_split_since_the_plan_is_not_taken_for_whole() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(expect=Expect(gpus=("GPU-0",)))
        await shards.start(start(launch))
        report = await rig.reaches(launch, "failed")
        assert report.reason == "mismatch: GPU GPU-0 is split into MIG instances by now"
        part = spec(model="part", port=18001, expect=Expect(gpus=("MIG-1",)))
        await shards.start(start(part))
        await rig.reaches(part, "ready")

    on_node(story, gpus=(gpu(0), replace(gpu(0), uuid="MIG-1", parent="GPU-0")))


def test_a_gpu_that_somebody_holds_whom_the_driver_does_not_name_is_not_taken_for_free() -> None:
    """In a container the processes outside it are not named."""

    async def story(rig: Rig) -> None:
        rig.node.unnamed["GPU-0"] = 60 * GIB
        shards = await rig.agent()
        expect = Expect(gpus=("GPU-0",))
        whole = spec(expect=expect, claims=Claims(gpus=(GpuClaim(uuid="GPU-0"),), ports=(18000,)))
        await shards.start(start(whole))
        report = await rig.reaches(whole, "failed")
        assert (
            "GPU GPU-0: 60.0 GiB of it are used by processes that the driver does not name" in report.reason
        )
        assert not rig.node.starts
        share = Claims(gpus=(GpuClaim(uuid="GPU-0", memory=10 * GIB),), ports=(18001,))
        small = spec(model="small", port=18001, expect=expect, claims=share)
        await shards.start(start(small))
        await rig.reaches(small, "ready")
        idle = spec(model="idle", port=18002, expect=Expect(gpus=("GPU-1",)))
        rig.node.unnamed["GPU-1"] = GIB // 2  # the driver's own part
        await shards.start(start(idle))
        await rig.reaches(idle, "ready")

    on_node(story, gpus=(gpu(0), gpu(1)))


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


def test_the_log_is_told_every_secret_also_those_an_earlier_agent_got() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(env={"API_KEY": "${key}"})
        await shards.start(start(launch, key="canary-7f3a"))
        assert "canary-7f3a" in rig.learnt
        await shards.key(KeyParams(command=COMMAND, shard=launch.shard, secrets={"key": "canary-8b4c"}))
        assert "canary-8b4c" in rig.learnt
        rig.learnt.clear()
        await rig.agent()
        assert "canary-8b4c" in rig.learnt

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


def test_logs_of_an_unknown_shard_are_an_error() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        with pytest.raises(AgentError, match="no such shard"):
            await anext(shards.logs(LogsParams(shard=spec().shard)))

    on_node(story)
