"""What the ranks of a gang are told of the network between their nodes, where it is placed for it, and what is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from llmgw.core.planner import plan
from llmgw.core.show import render
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel, DesiredNode
from llmgw.model.facts import Gid, HcaPort, Interface
from llmgw.model.launch import LaunchSpec
from llmgw.model.manifest import Expect, Fabric, NodeSpec, ProfileSpec, Secret, Value
from llmgw.model.plan import Action, Change, Plan, StepKind
from llmgw.model.report import Observed, Reach
from llmgw.model.struct import replace
from tests.core.builders import NOW, NodeState, desired, empty_record, model, node, observed, profile
from tests.core.fabric.nodes import V2, infiniband, labelled, machine, mapped, roce
from tests.core.fleets import OPTIONS

IB = ("mlx5_0", "mlx5_1")


def pair(fabric: str = "required", *, gpus: int = 8, **more: Any) -> ProfileSpec:
    return profile(gpus=gpus, nodes=2, fabric=fabric, **more)


def planned(
    nodes: Sequence[DesiredNode],
    states: Sequence[NodeState],
    *models: DesiredModel,
    offline: bool = False,
) -> Plan:
    wanted = desired(nodes, models or (model("chat", pair()),))
    seen = observed(*states) if not offline else Observed(nodes={})
    options = replace(OPTIONS, offline=offline)
    return plan(wanted, empty_record(), seen, ADAPTERS, now=NOW, options=options)


def of_model(made: Plan) -> Change:
    (change,) = [change for change in made.changes if change.model is not None]
    return change


def launches(made: Plan) -> tuple[LaunchSpec, ...]:
    found = [step.launch for step in made.steps if step.kind is StepKind.START and step.launch is not None]
    return tuple(sorted(found, key=lambda spec: spec.rank))


def network_of(spec: LaunchSpec) -> dict[str, str]:
    env = spec.processes[-1].env
    return {name: value for name, value in env.items() if name.startswith(("NCCL_", "GLOO_", "TP_"))}


def warnings(made: Plan) -> str:
    return "\n".join(notice.text for notice in made.warnings)


def rejections(made: Plan) -> Mapping[str, str]:
    placement = of_model(made).placement
    assert placement is not None
    return {each.node: f"{each.reason}; {each.need}; {each.have}" for each in placement.rejections}


def ib_pair(**more: Any) -> tuple[list[DesiredNode], list[NodeState]]:
    names = ("gpu11", "gpu12")
    ports = [infiniband(device) for device in IB]
    return [labelled(name, ib_a=IB, **more) for name in names], [machine(name, *ports) for name in names]


# ---- what a rank is told -----------------------------------------------------------------------------


def test_each_rank_meets_the_others_at_the_interface_that_holds_its_own_address() -> None:
    nodes, (first, second) = ib_pair()
    own = tuple(
        replace(each, name="bond0") if each.name == "ens1f0" else each for each in second.facts.interfaces
    )
    second.facts = replace(second.facts, interfaces=own)
    leader, worker = launches(planned(nodes, [first, second]))
    assert (network_of(leader)["NCCL_SOCKET_IFNAME"], network_of(worker)["NCCL_SOCKET_IFNAME"]) == (
        "=ens1f0",
        "=bond0",
    )
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert (network_of(leader)[name], network_of(worker)[name]) == ("ens1f0", "bond0"), "plain names"
        assert (network_of(leader)["NCCL_SOCKET_FAMILY"], network_of(worker)["NCCL_SOCKET_FAMILY"]) == (
            "AF_INET",
        ) * 2
    assert (leader.expect.interface_address, worker.expect.interface_address) == ("10.0.0.11", "10.0.0.12")


def test_on_infiniband_exactly_the_fabrics_adapters_are_named_and_no_index() -> None:
    nodes, states = ib_pair()
    for state in states:
        more = (*state.facts.hca_ports, infiniband("mlx5_10"), infiniband("mlx5_2", state="DOWN"))
        state.facts = replace(state.facts, hca_ports=more)
    made = planned(nodes, states)
    for spec in launches(made):
        told = network_of(spec)
        assert told["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
        assert told["NCCL_NET"] == "IB"
        assert not {"NCCL_IB_GID_INDEX", "NCCL_IB_DISABLE"} & told.keys()
        assert set(spec.expect.gids) == {"mlx5_0:1:0", "mlx5_1:1:0"}
    placement = of_model(made).placement
    assert placement is not None
    joined = (
        "they share the fabric ib-a, InfiniBand: 2 ports of 400 Gb/s on gpu11, 2 ports of 400 Gb/s on gpu12"
    )
    assert joined in placement.reasons
    assert not made.warnings


def test_on_roce_the_index_is_that_of_the_version_2_entry_with_an_ipv4_address_on_each_node() -> None:
    nodes = [labelled(name, roce_a=IB) for name in ("gpu11", "gpu12")]
    states = [
        machine("gpu11", roce("mlx5_0", "10.1.0.11", 3), roce("mlx5_1", "10.1.1.11", 3)),
        machine("gpu12", roce("mlx5_0", "10.1.0.12", 5), roce("mlx5_1", "10.1.1.12", 5)),
    ]
    leader, worker = launches(planned(nodes, states))
    assert network_of(leader)["NCCL_IB_GID_INDEX"] == "3"
    assert network_of(worker)["NCCL_IB_GID_INDEX"] == "5", "it differs from machine to machine"
    assert leader.expect.gids == {
        "mlx5_0:1:3": mapped("10.1.0.11"),
        "mlx5_1:1:3": mapped("10.1.1.11"),
    }


def test_an_entry_of_another_interface_is_not_taken_while_the_ports_own_has_one() -> None:
    vlan = Gid(index=7, gid=mapped("10.7.0.11"), gid_type=V2, netdev="mlx5_0np0.7")
    nodes = [labelled(name, roce_a=["mlx5_0"]) for name in ("gpu11", "gpu12")]
    both = [roce("mlx5_0", "10.1.0.11", 9, also=[vlan]), roce("mlx5_0", "10.1.0.12", 9)]
    first = launches(planned(nodes, [machine("gpu11", both[0]), machine("gpu12", both[1])]))[0]
    assert network_of(first)["NCCL_IB_GID_INDEX"] == "9"
    without = replace(both[0], gids=tuple(gid for gid in both[0].gids if gid.index not in (8, 9)))
    first = launches(planned(nodes, [machine("gpu11", without), machine("gpu12", both[1])]))[0]
    assert network_of(first)["NCCL_IB_GID_INDEX"] == "7", "with only the VLAN's, that is the one"


def disagreeing() -> tuple[list[DesiredNode], list[NodeState]]:
    hcas = ("mlx5_0", "mlx5_1", "mlx5_2")
    nodes = [labelled(name, roce_a=hcas) for name in ("gpu11", "gpu12")]
    odd = [roce("mlx5_0", "10.1.0.11", 3), roce("mlx5_1", "10.1.1.11", 5), roce("mlx5_2", "10.1.2.11", 5)]
    even = [roce(hca, f"10.1.{at}.12", 3) for at, hca in enumerate(hcas)]
    return nodes, [machine("gpu11", *odd), machine("gpu12", *even)]


def test_adapters_that_disagree_on_the_index_are_not_mixed_and_the_largest_set_is_used_and_told() -> None:
    nodes, states = disagreeing()
    made = planned(nodes, states, model("chat", pair("preferred")))
    leader, worker = launches(made)
    assert network_of(leader)["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_2:1"
    assert network_of(leader)["NCCL_IB_GID_INDEX"] == "5"
    assert network_of(worker)["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_2:1", "the partner of what is left out, too"
    assert network_of(worker)["NCCL_IB_GID_INDEX"] == "3"
    assert "gpu12: mlx5_0:1 of fabric roce-a is not used: its partner on another node can't be" in warnings(
        made
    )
    assert "gpu11: mlx5_0:1 of fabric roce-a is not used" in warnings(made)
    assert "mlx5_0:1 has 3; mlx5_1:1 has 5; mlx5_2:1 has 5" in warnings(made)


def test_adapters_of_machines_of_different_kinds_are_no_partners() -> None:
    nodes = [labelled("gpu11", ib_a=IB), labelled("gpu12", ib_a=["mlx5_1", "mlx5_2"])]
    states = [
        machine("gpu11", *map(infiniband, IB)),
        machine("gpu12", infiniband("mlx5_1"), infiniband("mlx5_2")),
    ]
    leader, worker = launches(planned(nodes, states))
    assert network_of(leader)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert network_of(worker)["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_2:1"


def test_adapters_that_disagree_refuse_a_required_fabric_with_what_each_has() -> None:
    made = planned(*disagreeing())
    assert of_model(made).action is Action.BLOCKED
    assert "mlx5_0:1 has 3; mlx5_1:1 has 5; mlx5_2:1 has 5" in rejections(made)["gpu11"]
    assert "label only ports that agree" in rejections(made)["gpu11"]


def test_who_states_the_index_takes_the_choice_upon_himself() -> None:
    nodes, states = disagreeing()
    made = planned(nodes, states, model("chat", pair(), env={"NCCL_IB_GID_INDEX": "5"}))
    leader, _ = launches(made)
    assert network_of(leader)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_2:1"
    assert network_of(leader)["NCCL_IB_GID_INDEX"] == "5"
    assert leader.expect.gids == {}


def test_without_a_fabric_nccl_is_kept_off_the_adapters() -> None:
    nodes, states = ib_pair()
    made = planned(nodes, states, model("chat", pair("none")))
    for spec in launches(made):
        assert network_of(spec)["NCCL_IB_DISABLE"] == "1"
        assert "NCCL_IB_HCA" not in network_of(spec)
    assert not made.warnings


def test_ranks_on_the_cpu_are_told_of_gloo_only() -> None:
    nodes, states = ib_pair()
    for spec in launches(planned(nodes, states, model("chat", pair("none", gpus=0)))):
        assert set(network_of(spec)) == {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}


def test_a_single_rank_is_told_nothing() -> None:
    nodes, states = ib_pair()
    (spec,) = launches(planned(nodes, states, model("chat", profile(gpus=8))))
    assert network_of(spec) == {}


def test_nodes_of_one_machine_meet_on_its_loopback() -> None:
    nodes = [replace(node(name), address="127.0.0.1") for name in ("gpu11", "gpu12")]
    made = planned(nodes, [machine(name) for name in ("gpu11", "gpu12")], model("chat", pair("none")))
    for spec in launches(made):
        assert network_of(spec)["GLOO_SOCKET_IFNAME"] == "lo"
        assert spec.expect.interface_address is None


def test_on_ipv6_nccl_is_told_the_family_and_the_address_is_found_however_it_is_written() -> None:
    nodes, states = ib_pair()
    for number, state in enumerate(states):
        nodes[number] = replace(nodes[number], address=f"fd00:0::{number + 1}")
        held = Interface(name="ens1f0", addresses=("fe80::1", f"fd00::{number + 1}"))
        state.facts = replace(state.facts, interfaces=(held,))
    leader, worker = launches(planned(nodes, states))
    assert network_of(leader)["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert network_of(leader)["GLOO_SOCKET_IFNAME"] == "ens1f0"
    assert (leader.expect.interface_address, worker.expect.interface_address) == ("fd00::1", "fd00::2")


def test_an_address_that_is_a_name_is_told_and_left_to_the_engine() -> None:
    nodes, states = ib_pair()
    nodes[0] = replace(nodes[0], address="gpu11.example.org")
    made = planned(nodes, states)
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & network_of(launches(made)[0]).keys()
    assert "gpu11: its address gpu11.example.org is a name: write spec.address" in warnings(made)


# ---- people's word -----------------------------------------------------------------------------------


def test_what_people_write_wins_and_the_plan_shows_over_what() -> None:
    env: dict[str, Value] = {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_DEBUG": "INFO"}
    nodes, states = ib_pair(env={"NCCL_DEBUG": "WARN"})
    made = planned(nodes, states, model("chat", replace(pair(), env=env)))
    assert network_of(launches(made)[0])["NCCL_SOCKET_IFNAME"] == "=eth0"
    text = render.plan_text(made, show_commands=True)
    assert "# NCCL_SOCKET_IFNAME: profile p, spec.env; over network: =ens1f0" in text
    assert "# NCCL_DEBUG: profile p, spec.env; over node gpu11: WARN" in text
    assert "# GLOO_SOCKET_IFNAME: network, ens1f0 holds 10.0.0.12, gpu12's address" in text


def test_what_llmgw_keeps_to_itself_is_shown_to_have_lost() -> None:
    nodes, states = ib_pair(env={"CUDA_VISIBLE_DEVICES": "0", "TOKEN": Secret(from_env="X")})
    made = planned(nodes, states, model("chat", pair(), env={"TOKEN": "a$b"}))
    text = render.plan_text(made, show_commands=True)
    assert "# CUDA_VISIBLE_DEVICES: engine, llmgw decides about it itself; over node gpu11: 0" in text
    assert "# TOKEN: model chat, spec.env; over node gpu11: (a secret)" in text


# ---- where it goes -----------------------------------------------------------------------------------


def on_fabric(name: str, fabric: str) -> DesiredNode:
    return node(name, fabrics=(Fabric(name=fabric, hcas=("mlx5_0",)),))


def test_a_gang_goes_only_where_a_required_fabric_is_shared() -> None:
    names = ("gpu11", "gpu12", "gpu13", "gpu14")
    labels = ("ib-a", "ib-b", "ib-b", "ib-a")
    nodes = [on_fabric(name, fabric) for name, fabric in zip(names, labels, strict=True)]
    states = [machine(name, infiniband("mlx5_0")) for name in names]
    placement = of_model(planned(nodes, states)).placement
    assert placement is not None
    assert [rank.node for rank in placement.ranks] == ["gpu12", "gpu13"]
    made = planned(nodes[:2], states[:2])
    assert of_model(made).action is Action.BLOCKED
    assert of_model(made).reason.endswith(
        "it needs 2 nodes at once that share a fabric (fabric: required) with 8 whole GPUs each, 2 of 2 have that, "
        "but the ranks of one replica must be alike and share a fabric: h100-80g in ib-a on gpu11; h100-80g in ib-b on gpu12"
    )


def test_a_preferred_fabric_is_looked_for_first_and_done_without_with_a_warning() -> None:
    names = ("gpu11", "gpu12", "gpu13")
    nodes = [node("gpu11"), *(labelled(name, ib_a=["mlx5_0"]) for name in names[1:])]
    states = [machine(name, infiniband("mlx5_0")) for name in names]
    wanted = model("chat", pair("preferred"))
    placement = of_model(planned(nodes, states, wanted)).placement
    assert placement is not None
    assert [rank.node for rank in placement.ranks] == ["gpu12", "gpu13"], (
        "gpu11 comes first, and is not on it"
    )
    made = planned(nodes[:2], states[:2], wanted)
    leader, _ = launches(made)
    assert network_of(leader)["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_NET" not in network_of(leader)
    assert (
        "no fabric joins gpu11 and gpu12 (gpu11 has no fabric labelled; gpu12 has ib-a): its ranks talk over plain sockets"
        in warnings(made)
    )


def test_of_several_shared_fabrics_the_fastest_is_used() -> None:
    nodes = [labelled(name, ib_a=["mlx5_0"], ib_b=["mlx5_1"]) for name in ("gpu11", "gpu12")]
    ports = (infiniband("mlx5_0", rate=100), infiniband("mlx5_1", rate=400))
    leader, _ = launches(planned(nodes, [machine(name, *ports) for name in ("gpu11", "gpu12")]))
    assert network_of(leader)["NCCL_IB_HCA"] == "=mlx5_1:1"


def test_a_node_whose_interfaces_do_not_hold_its_address_takes_no_rank() -> None:
    nodes, states = ib_pair()
    states[0].facts = replace(
        states[0].facts, interfaces=(Interface(name="eth0", addresses=("10.0.9.9",)), Interface(name="ib0"))
    )
    assert rejections(planned(nodes, states))["gpu11"] == (
        "no interface holds its address; 10.0.0.11; it has eth0 10.0.9.9"
    )


# ---- labels against facts ----------------------------------------------------------------------------


def unlabelled(port: HcaPort) -> tuple[list[DesiredNode], list[NodeState]]:
    names = ("gpu11", "gpu12")
    return [labelled(name, ib_a=["mlx5_0"]) for name in names], [machine(name, port) for name in names]


def test_required_where_nothing_is_labelled_says_what_to_write() -> None:
    nodes, states = ib_pair()
    made = planned([replace(each, spec=NodeSpec()) for each in nodes], states)
    assert of_model(made).action is Action.BLOCKED
    assert (
        "it needs 2 nodes that share a fabric (fabric: required), and none has one" in of_model(made).reason
    )
    assert rejections(made)["gpu11"] == (
        "has no usable fabric; one (fabric: required); spec.fabrics is not written; it has mlx5_0 and mlx5_1: "
        "write fabrics: [{name: ib-a, hcas: [mlx5_0, mlx5_1]}]"
    )


@pytest.mark.parametrize(
    ("port", "told"),
    [
        (infiniband("mlx5_4"), "mlx5_0 is missing: there is mlx5_4"),
        (infiniband("mlx5_0", state="DOWN"), "mlx5_0 is DOWN (Polling)"),
        (replace(infiniband("mlx5_0"), link_layer="Unknown"), "mlx5_0:1 has the link layer Unknown"),
        (replace(roce("mlx5_0", "10.1.0.1"), transport="iWARP"), "mlx5_0:1 speaks iWARP"),
        (
            replace(roce("mlx5_0", "10.1.0.1"), gids=()),
            "mlx5_0:1 has no RoCE v2 entry with an IPv4 address: give mlx5_0np0 one",
        ),
    ],
)
def test_a_label_that_is_not_true_is_a_named_problem_and_refuses_what_requires_it(
    port: HcaPort, told: str
) -> None:
    made = planned(*unlabelled(port))
    assert of_model(made).action is Action.BLOCKED
    assert told in rejections(made)["gpu11"]
    assert f"node/gpu11: fabric ib-a: {told}" in warnings(made)


def test_an_adapter_of_another_kind_than_its_fabric_is_named_and_left_out() -> None:
    nodes, states = ib_pair()
    states[0].facts = replace(states[0].facts, hca_ports=(infiniband("mlx5_0"), roce("mlx5_1", "10.1.0.11")))
    made = planned(nodes, states)
    assert network_of(launches(made)[0])["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert "node/gpu11: fabric ib-a: mlx5_1:1 is Ethernet, and the fabric ib-a is InfiniBand" in warnings(
        made
    )


def test_a_single_port_of_an_adapter_can_be_labelled() -> None:
    nodes = [labelled(name, ib_a=["mlx5_0:2"]) for name in ("gpu11", "gpu12")]
    ports = (infiniband("mlx5_0"), infiniband("mlx5_0", port=2))
    made = planned(nodes, [machine(name, *ports) for name in ("gpu11", "gpu12")])
    assert network_of(launches(made)[0])["NCCL_IB_HCA"] == "=mlx5_0:2"


def test_before_its_agent_has_looked_a_node_takes_no_rank_that_needs_a_fabric() -> None:
    nodes, states = ib_pair()
    for state in states:
        state.reach = Reach.NO_AGENT
        state.facts = replace(state.facts, hca_ports=())
    made = planned(nodes, states)
    assert "ib-a: its adapters are known after bootstrap" in rejections(made)["gpu11"]
    assert not launches(made)


def test_offline_the_labels_of_a_node_nobody_has_seen_are_taken_as_written_and_told() -> None:
    nodes, states = ib_pair()
    nodes = [
        replace(each, spec=replace(each.spec, expect=Expect(gpus=8, gpu_class="h100-80g"))) for each in nodes
    ]
    made = planned(nodes, states, offline=True)
    assert network_of(launches(made)[0])["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert "gpu11: fabric ib-a is taken as written: nobody has seen its adapters" in warnings(made)
