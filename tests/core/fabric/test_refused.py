"""What is refused before anything starts, and what makes a plan stale: labels, ports, classes of GPUs, lost fabrics."""

from collections import Counter

import pytest

from llmgw.core.moves.basis import observed_digest
from llmgw.core.place.candidates import Request
from llmgw.core.place.claims import ledgers
from llmgw.core.place.placement import Placer
from llmgw.core.resolving.resolve import resolve
from llmgw.core.seen.survey import survey
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.load import load
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts, Gpu
from llmgw.model.manifest import Fabric, Parallel, PortRange
from llmgw.model.plan import Decision
from llmgw.model.problems import InvalidError
from llmgw.model.struct import replace
from tests.core.builders import (
    COMMIT,
    KEY,
    NodeState,
    desired,
    empty_record,
    facts,
    gpu,
    model,
    node,
    observed,
    profile,
)
from tests.core.fabric.nodes import infiniband, labelled, machine, roce
from tests.core.fleets import Fleet, fleet

# ---- classes of GPUs ---------------------------------------------------------------------------------


def mixed_box(name: str, **by_class: int) -> NodeState:
    """``h100=2, l40s=1``: so many of each, side by side."""
    gpus: list[Gpu] = []
    for gpu_class, count in by_class.items():
        gpus += [replace(gpu(name, len(gpus) + at), gpu_class=gpu_class) for at in range(count)]
    return NodeState(name, replace(facts(name), gpus=tuple(gpus)))


def placed(state: NodeState, *, tensor: int, gpus: int = 2, nodes: int = 1) -> Fleet:
    wants = profile(gpus=gpus, parallel=Parallel(tensor=tensor), nodes=nodes)
    return fleet(desired([node(state.name)], [model("chat", wants)]), [state])


def decision(world: Fleet) -> Decision:
    (change,) = [change for change in world.plan().changes if change.model is not None]
    assert change.placement is not None
    return change.placement


def test_a_tensor_parallel_group_takes_gpus_of_one_class_even_where_others_come_first() -> None:
    (rank,) = decision(placed(mixed_box("gpu01", l40s=1, h100=2), tensor=2)).ranks
    assert [claim.uuid for claim in rank.gpus] == ["GPU-gpu01-1", "GPU-gpu01-2"]


def test_mixed_classes_in_a_tensor_parallel_group_are_refused_with_what_there_is() -> None:
    refused = decision(placed(mixed_box("gpu01", l40s=1, h100=1), tensor=2))
    assert not refused.ranks
    (rejection,) = refused.rejections
    assert (rejection.reason, rejection.need, rejection.have) == (
        "mixed GPU classes",
        "2 of one class (parallel.tensor)",
        "1 h100 and 1 l40s free",
    )


def test_without_tensor_parallelism_classes_may_be_mixed() -> None:
    (rank,) = decision(placed(mixed_box("gpu01", l40s=1, h100=1), tensor=1)).ranks
    assert len(rank.gpus) == 2


# ---- ports -------------------------------------------------------------------------------------------


def gang_ports(state: NodeState, ports: PortRange) -> Placer:
    wanted = desired([node(state.name, ports=ports)])
    return Placer(ledgers(survey(wanted, empty_record(), observed(state).nodes, offline=False), ()))


def place(finder: Placer, *, leader_ports: int) -> Decision:
    need = ADAPTERS["sim"].need(model("chat", profile(gpus=0)))
    rules = model("chat").spec.placement
    wanted = Request(
        model="chat",
        gpus=profile(gpus=0).gpus,
        need=replace(need, ports=1, leader_ports=leader_ports),
        nodes=1,
        rules=rules,
    )
    return finder.place(wanted, Counter())


def test_the_ports_of_a_rank_stand_in_a_row_that_nobody_else_is_in() -> None:
    state = NodeState("gpu01", facts("gpu01", listening=(18001, 18004)))
    finder = gang_ports(state, PortRange(from_port=18000, to_port=18009))
    first = place(finder, leader_ports=1)
    finder.claim("a", first.ranks)
    second = place(finder, leader_ports=2)
    assert [rank.ports for rank in (*first.ranks, *second.ranks)] == [(18002, 18003), (18005, 18006, 18007)]
    finder.claim("b", second.ranks)
    (refused,) = place(finder, leader_ports=2).rejections
    assert (refused.reason, refused.have) == ("not enough ports", "2 free in a row of 18000 to 18009")


def test_ports_of_outgoing_connections_are_taken_last() -> None:
    state = NodeState("gpu01", facts("gpu01", ephemeral_ports=(18000, 18004)))
    finder = gang_ports(state, PortRange(from_port=18000, to_port=18006))
    assert place(finder, leader_ports=1).ranks[0].ports == (18005, 18006)
    assert place(finder, leader_ports=2).ranks[0].ports == (18000, 18001, 18002), "with nothing else"


# ---- manifests ---------------------------------------------------------------------------------------

HEAD = "apiVersion: llmgw/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def refused(**documents: str) -> list[str]:
    """``Node_n1="{…}"`` is the spec of the node n1."""
    files = {}
    for key, spec in documents.items():
        kind, _, name = key.partition("_")
        files[f"manifests/{key}.yaml"] = HEAD.format(kind=kind, name=name, spec=spec).encode()
    with pytest.raises(InvalidError) as invalid:
        resolve(load(files, commit=COMMIT), key_id=KEY, adapters=ADAPTERS)
    return [str(problem) for problem in invalid.value.problems]


@pytest.mark.parametrize(
    ("fabrics", "told"),
    [
        (
            "[{name: a, hcas: [mlx5_0]}, {name: b, hcas: [mlx5_1, mlx5_0]}]",
            "spec.fabrics[1].hcas[1]: mlx5_0 is in the fabric a already: an adapter, or each of its ports, belongs to one",
        ),
        (
            "[{name: a, hcas: ['mlx5_0:1', mlx5_0]}]",
            "spec.fabrics[0].hcas[1]: mlx5_0 is in the fabric a already (as mlx5_0:1)",
        ),
        (
            "[{name: a, hcas: [mlx5_0]}, {name: a, hcas: [mlx5_1]}]",
            "spec.fabrics[1].name: the fabric a is there already: write all its adapters in one place",
        ),
        (
            "[{name: a, hcas: ['=mlx5_0']}]",
            "spec.fabrics[0].hcas[0]: '=mlx5_0' is no adapter's name: write it as /sys/class/infiniband has it",
        ),
    ],
)
def test_labels_that_cant_be_meant_are_told_with_their_line(fabrics: str, told: str) -> None:
    (problem,) = refused(Node_n1=f"{{transport: local, fabrics: {fabrics}}}")
    assert told in problem
    assert problem.startswith("manifests/Node_n1.yaml:4:")


@pytest.mark.parametrize(
    ("shape", "told"),
    [("gpus: {perNode: 1}", "spec.nodes is 1"), ("nodes: 2, gpus: {perNode: 0}", "spec.gpus.perNode is 0")],
)
def test_a_fabric_that_joins_nothing_is_refused(shape: str, told: str) -> None:
    (problem,) = refused(
        Node_n1="{transport: local}", Profile_p=f"{{engine: {{name: sim}}, fabric: required, {shape}}}"
    )
    assert f"spec.fabric: required is about the network between GPUs of several nodes, but {told}" in problem


@pytest.mark.parametrize(("one", "other"), [("'fd00::1'", "'fd00:0::1'"), ("GPU01.lab", "gpu01.lab")])
def test_one_address_of_two_nodes_is_refused_however_it_is_written(one: str, other: str) -> None:
    told = refused(
        Node_n1=f"{{ssh: {{host: h1}}, address: {one}}}", Node_n2=f"{{ssh: {{host: h2}}, address: {other}}}"
    )
    assert any("is also the node n1's" in problem and "address of its own" in problem for problem in told)


# ---- later -------------------------------------------------------------------------------------------


def running_pair() -> Fleet:
    names = ("gpu11", "gpu12", "gpu13")
    nodes = [labelled(name, ib_a=["mlx5_0"]) for name in names]
    wants = profile(gpus=8, nodes=2, fabric="required")
    world = fleet(
        desired(nodes, [model("chat", wants)]), [machine(name, infiniband("mlx5_0")) for name in names]
    )
    world.settle()
    assert world.ready("chat") == 1
    return world


def unplug(state: NodeState) -> None:
    state.facts = replace(state.facts, hca_ports=(infiniband("mlx5_0", state="DOWN"),))


def test_what_runs_is_left_alone_when_its_fabric_goes_and_the_plan_tells_it() -> None:
    world = running_pair()
    unplug(world.nodes["gpu12"])
    made = world.plan()
    assert not made.commands
    label, running = [notice.text for notice in made.warnings]
    assert label == "node/gpu12: fabric ib-a: mlx5_0 is DOWN (Polling)"
    assert running.endswith(
        "its nodes share no fabric any more, and it requires one (gpu11 has ib-a; gpu12: ib-a: mlx5_0 is DOWN (Polling)); "
        "it is left alone while it runs"
    )


def test_a_replica_that_its_nodes_lost_is_not_started_again_where_its_fabric_is_gone() -> None:
    world = running_pair()
    for state in world.nodes.values():
        state.shards.clear()
    unplug(world.nodes["gpu12"])
    comes, goes = [change for change in world.plan().changes if change.model is not None]
    why = "its nodes share no fabric any more, and it requires one (gpu11 has ib-a; gpu12: ib-a: mlx5_0 is DOWN (Polling))"
    assert why in comes.reason
    assert why in goes.reason
    assert comes.placement is not None
    assert [rank.node for rank in comes.placement.ranks] == ["gpu11", "gpu13"]


def digest_of(wanted: DesiredNode, found: Facts) -> str:
    seen = observed(NodeState(wanted.name, found)).nodes
    return observed_digest(survey(desired([wanted]), empty_record(), seen, offline=False))


def test_a_plan_is_stale_when_labelled_adapters_or_the_own_interface_change_and_not_for_others() -> None:
    wanted = node("gpu11", fabrics=(Fabric(name="a", hcas=("mlx5_0",)),))
    before = machine("gpu11", infiniband("mlx5_0"), infiniband("mlx5_1")).facts
    down = replace(before, hca_ports=(infiniband("mlx5_0", state="DOWN"), infiniband("mlx5_1")))
    other = replace(before, hca_ports=(infiniband("mlx5_0"), infiniband("mlx5_1", state="DOWN")))
    moved = replace(
        before, interfaces=tuple(replace(each, name=f"{each.name}x") for each in before.interfaces)
    )
    assert digest_of(wanted, down) != digest_of(wanted, before)
    assert digest_of(wanted, moved) != digest_of(wanted, before)
    assert digest_of(wanted, other) == digest_of(wanted, before)
    entries = [machine("gpu11", roce("mlx5_0", "10.1.0.11", index)).facts for index in (3, 5)]
    assert digest_of(wanted, entries[0]) != digest_of(wanted, entries[1])
