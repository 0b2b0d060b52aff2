"""What a shard computes on: from the processes that hold memory of GPUs, kept while nobody can tell, and only of the
engine that was seen."""

import asyncio
from typing import Any

from llmgw.agent.sampling import Sampler
from llmgw.agent.shards.computing import seen
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.facts import Facts, Gpu, GpuProcess
from llmgw.model.launch import LaunchSpec
from llmgw.model.report import ComputesOn
from llmgw.model.struct import replace
from tests.agent.shards.rig import GIB, Rig, gpu, on_node, spec, start, until

CLAIMS = Claims(gpus=(GpuClaim(uuid="GPU-0"), GpuClaim(uuid="GPU-1")), ports=(18000,))


def held(one: Gpu, *processes: GpuProcess, **changes: Any) -> Gpu:
    return replace(one, processes=processes, memory_used=sum(p.memory or 0 for p in processes), **changes)


def ours(launch: LaunchSpec, memory: int | None = 7 * GIB, pid: int = 11) -> GpuProcess:
    return GpuProcess(pid=pid, user="llmgw-engine", memory=memory, shard=launch.shard)


def test_gpus_count_that_any_process_of_the_shard_holds_memory_of() -> None:
    launch = spec(claims=CLAIMS)
    first = held(gpu(0), ours(launch), ours(launch, pid=12), GpuProcess(pid=9, user="ann", memory=GIB))
    second = held(gpu(1), ours(launch, memory=None))
    assert seen(launch, (first, second, gpu(2))) == ComputesOn(gpus={"GPU-0": 14 * GIB, "GPU-1": 0})
    assert seen(spec(), (held(gpu(0), ours(spec())),)) == ComputesOn(gpus={"GPU-0": 7 * GIB}), "also unasked"


def test_who_holds_no_gpu_computes_on_the_cpu() -> None:
    launch = spec(claims=CLAIMS)
    assert seen(spec(), ()) == ComputesOn()
    assert seen(launch, (gpu(0), gpu(1))) == ComputesOn()
    stranger = held(gpu(1), GpuProcess(pid=9, user="ann", memory=GIB))
    assert seen(launch, (gpu(0), stranger)) == ComputesOn()


def test_a_look_that_cannot_tell_is_no_cpu() -> None:
    launch = spec(claims=CLAIMS)
    assert seen(launch, ()) is None, "the look failed"
    assert seen(launch, (gpu(0),)) is None, "one of its GPUs is gone"
    assert seen(launch, (gpu(0), gpu(1, health=("it can't be asked any more: …",)))) is None
    hidden = held(gpu(1), GpuProcess(pid=9, user="?", memory=7 * GIB))
    assert seen(launch, (gpu(0), hidden)) is None, "a pid of the host, seen from inside a container"
    unnamed = replace(gpu(1), memory_used=7 * GIB)
    assert seen(launch, (gpu(0), unnamed)) is None, "somebody's memory, and the driver names nobody"


def test_what_was_seen_is_told_again_after_a_restart_and_not_of_the_next_engine() -> None:
    async def story(rig: Rig) -> None:
        first = await rig.agent()
        launch = spec(claims=replace(CLAIMS, gpus=CLAIMS.gpus[:1]))
        await first.start(start(launch))
        await rig.reaches(launch, "ready")
        assert rig.report(launch).computes_on is None, "nobody has looked"
        await first.sampled((held(gpu(0), ours(launch)),))
        assert rig.report(launch).computes_on == ComputesOn(gpus={"GPU-0": 7 * GIB})
        await first.close()
        second = await rig.agent()
        assert rig.report(launch).computes_on == ComputesOn(gpus={"GPU-0": 7 * GIB})
        await second.sampled(())  # a driver that hangs tells nothing
        assert rig.report(launch).computes_on == ComputesOn(gpus={"GPU-0": 7 * GIB})
        rig.node.end(rig.node.living()[0], 1, None)
        await rig.reaches(launch, "backoff")
        assert rig.report(launch).computes_on is None
        await rig.reaches(launch, "ready")
        assert rig.report(launch).computes_on is None, "the next engine may compute elsewhere"

    on_node(story, gpus=(gpu(0),))


def test_a_change_of_mere_megabytes_is_told_and_not_written() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec(claims=replace(CLAIMS, gpus=CLAIMS.gpus[:1]))
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")
        await shards.sampled((held(gpu(0), ours(launch)),))
        written = dict(rig.disk.files)
        await shards.sampled((held(gpu(0), ours(launch, memory=8 * GIB)),))
        assert rig.report(launch).computes_on == ComputesOn(gpus={"GPU-0": 8 * GIB})
        assert dict(rig.disk.files) == written

    on_node(story, gpus=(gpu(0),))


def test_shards_hear_of_every_look_whether_anybody_asks_or_not() -> None:
    async def story(rig: Rig) -> None:
        shards = await rig.agent()
        launch = spec()
        await shards.start(start(launch))
        await rig.reaches(launch, "ready")

        async def look() -> Facts:
            return Facts(gpus=(held(gpu(0), ours(launch)),))

        sampler = Sampler(look, told=lambda facts: shards.sampled(facts.gpus))
        sampler.start()
        try:
            await until(lambda: rig.report(launch).computes_on is not None)
        finally:
            await sampler.close()
        assert rig.report(launch).computes_on == ComputesOn(gpus={"GPU-0": 7 * GIB})

    on_node(story)


def test_a_look_that_hangs_holds_up_no_report() -> None:
    async def main() -> None:
        sampler = Sampler(asyncio.Event().wait, patience=0.01)  # type: ignore[arg-type] # never ends
        facts = await sampler.facts(max_age=0)
        await sampler.close()
        assert "takes longer" in facts.problems[0]

    asyncio.run(main())
