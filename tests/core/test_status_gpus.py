"""GPUs in status: what computes where, on how much, and what a split one counts for."""

from llmgw.core.show.render_status import status_text
from llmgw.core.show.status import Status, status
from llmgw.model.facts import Gpu
from llmgw.model.report import ComputesOn
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, gpu, model, node
from tests.core.fleets import Fleet, fleet

GIB = 1024**3


def settled(*gpus: Gpu) -> Fleet:
    state = NodeState("gpu01", replace(facts("gpu01"), gpus=gpus))
    world = fleet(desired([node("gpu01")], [model("chat")]), [state])
    world.settle()
    return world


def shown(world: Fleet, on: ComputesOn | None) -> Status:
    state = world.nodes["gpu01"]
    [key] = state.shards
    state.shards[key] = replace(state.shards[key], computes_on=on)
    return status(world.record, world.observe(), now=world.now, desired=world.desired)


def column(shown: Status) -> str:
    """What the row of the only replica says under COMPUTES ON."""
    head, row = (
        next(line for line in status_text(shown).splitlines() if line.startswith(start))
        for start in ("REPLICA", "chat-")
    )
    at = head.index("COMPUTES ON")
    return row[at:].partition("  ")[0]


def test_the_memory_that_it_computes_with_is_told_beside_the_gpus() -> None:
    world = settled(gpu("gpu01", 0), gpu("gpu01", 1))
    both = ComputesOn(gpus={"GPU-gpu01-0": 70 * GIB, "GPU-gpu01-1": 71 * GIB})
    assert column(shown(world, both)) == "0-1, 141.0 GiB"
    assert column(shown(world, ComputesOn(gpus={"GPU-gpu01-1": 0}))) == "1", (
        "the driver does not tell how much"
    )
    assert column(shown(world, ComputesOn())) == "cpu"
    assert column(shown(world, None)) == "?"


def test_a_split_gpu_counts_by_its_instances_and_each_has_a_name() -> None:
    whole = gpu("gpu01", 0)
    parts = [
        replace(whole, uuid=f"MIG-{number * 4}-aaaa", parent=whole.uuid, gpu_class="h100-mig-1g.10gb-10g")
        for number in ("12", "34")
    ]
    world = settled(whole, *parts)
    told = shown(world, ComputesOn(gpus={parts[0].uuid: 9 * GIB}))
    [row] = told.nodes
    assert (row.gpus, row.gpus_free, row.gpu_class) == (2, 1, "h100-mig-1g.10gb-10g")
    assert told.replicas[0].gpus == ("gpu01:MIG-12121212",)
    assert column(told) == "gpu01:MIG-12121212, 9.0 GiB"
