"""What is told of a node that stops nothing: in plans and in status alike, and never of facts that nobody saw."""

from typing import Any

import pytest

from llmgw.core.seen.cautions import cautions, clock_caution
from llmgw.core.seen.survey import NodeView
from llmgw.core.show.status import status
from llmgw.model.facts import Facts, Gpu, Interface
from llmgw.model.manifest import Expect
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, gpu, node
from tests.core.fleets import fleet


def view(seen: Facts, *, address: str = "10.0.0.1", **spec: Any) -> NodeView:
    return NodeView(
        name="gpu01",
        desired=replace(node("gpu01", **spec), address=address),
        reach=Reach.OK,
        facts=replace(seen, gpu_source="nvml"),
        report=None,
    )


def instance(index: int) -> Gpu:
    whole = gpu("gpu01", 0)
    return replace(whole, uuid=f"MIG-{index}", gpu_class="h100-mig-1g.10gb-10g", parent=whole.uuid)


def test_instances_count_where_their_class_is_expected_and_whole_gpus_where_none_is_named() -> None:
    seen = replace(facts("gpu01", gpus=1), problems=("nvidia-smi: something",))
    seen = replace(seen, gpus=(*seen.gpus, instance(0), instance(1)))
    assert cautions(view(seen, expect=Expect(gpus=2, gpu_class="h100-mig-1g.10gb-10g"))) == ()
    assert cautions(view(seen, expect=Expect(gpus=2))) == (
        "has 1 GPU, its manifest expects 2 (nvidia-smi: something)",
    )


def test_an_address_that_no_interface_holds_is_told_with_those_that_there_are() -> None:
    lan = Interface(name="eth0", addresses=("10.0.0.5", "fe80::1"))
    seen = replace(facts("gpu01"), interfaces=(Interface(name="lo", addresses=("127.0.0.1",)), lan))
    [told] = cautions(view(seen, address="10.0.0.4"))
    assert told.startswith("none of its interfaces holds its address 10.0.0.4")
    assert told.endswith("set spec.address to one of 10.0.0.5")
    for fine in ("10.0.0.5", "127.0.0.7", "gpu01.lan"):
        assert cautions(view(seen, address=fine)) == ()
    pretended = replace(view(seen, address="10.0.0.4"), facts=replace(seen, gpu_source="pretended"))
    assert cautions(pretended) == (), "a pretended node's interfaces are no machine's"


def test_nothing_is_said_of_facts_that_were_not_seen() -> None:
    short = view(facts("gpu01", gpus=1), expect=Expect(gpus=2))
    assert cautions(short)
    assert cautions(replace(short, presumed=True)) == ()
    assert cautions(replace(short, intruder="another fleet's")) == ()
    assert cautions(replace(short, facts=None)) == ()


@pytest.mark.parametrize(
    ("skew", "told"), [(5.0, ""), (-5.0, ""), (None, ""), (7.4, "7s ahead of"), (-125.0, "2m 5s behind")]
)
def test_a_clock_that_is_off_by_more_than_five_seconds_is_told(skew: float | None, told: str) -> None:
    said = clock_caution(replace(view(facts("gpu01")), skew=skew))
    assert [text.partition(" this one")[0] for text in said] == ([f"its clock is {told}"] if told else [])


def test_status_tells_what_the_plan_warns_of_and_the_clock_too() -> None:
    state = NodeState("gpu01", facts("gpu01", gpus=1))
    world = fleet(desired([node("gpu01", expect=Expect(gpus=2))], []), [state])
    seen = world.observe()
    off = replace(seen, nodes={"gpu01": replace(seen.nodes["gpu01"], skew=61.0)})
    [row] = status(world.record, off, now=world.now, desired=world.desired).nodes
    assert row.problems == (
        "has 1 GPU, its manifest expects 2",
        "its clock is 1m 1s ahead of this one's: start NTP there (chrony, systemd-timesyncd)",
    )
    assert [note.text for note in world.plan().warnings] == ["node/gpu01: has 1 GPU, its manifest expects 2"]
