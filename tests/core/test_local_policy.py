"""Plans keep away from what a machine's own people forbid, say so, and never ask twice for what an agent would refuse."""

from typing import Any

import pytest

from llmgw.model.localpolicy import LocalPolicy, beneath
from llmgw.model.manifest import GIB, Custom, Reserve, Size
from llmgw.model.plan import StepKind
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, gpu, model, node, profile
from tests.core.fleets import fleet
from tests.core.test_placement import only, place, placer, request, where, with_gpus

POLICY = LocalPolicy(file="/etc/llmgw/agent.yaml", lines={"engines": 2, "paths": 3, "reserve": 4})


def ruled(name: str, **rules: Any) -> NodeState:
    return NodeState(name, replace(facts(name), policy=replace(POLICY, **rules)))


@pytest.mark.parametrize(
    ("rules", "wanted", "told"),
    [
        ({"engines": ("vllm",)}, {"engine": "sim"}, "agent.yaml:2: the machine's policy allows vllm"),
        ({"engines": ("vllm",)}, {"engine": "vllm", "engine_path": "/opt/x"}, "not the engine in /opt/x"),
        ({"engines": ("/srv",)}, {"engine": "vllm", "engine_path": "/opt/x"}, "allows /srv"),
        (
            {"engines": ("/opt",)},
            {"engine_path": "/opt/x", "programs": ("/usr/bin/python3",)},
            "not /usr/bin/python3",
        ),
        ({"paths": ("/data",)}, {"engine": "sim", "weights_path": "/home/x"}, "agent.yaml:3"),
        ({"paths": ("/data",)}, {"engine": "sim", "adapter_paths": ("/data/a", "/home/x")}, "agent.yaml:3"),
        ({"obstacle": "it is broken"}, {"engine": "sim"}, "it is broken"),
    ],
)
def test_a_node_that_forbids_it_is_turned_down_with_the_rule(
    rules: dict[str, Any], wanted: dict[str, Any], told: str
) -> None:
    finder = placer(ruled("gpu01", **rules), NodeState("gpu02", facts("gpu02")))
    decision = place(finder, request(**wanted))
    assert where(decision) == ["gpu02"]
    assert only(decision).node == "gpu01"
    assert told in only(decision).reason


def test_models_of_one_shape_hear_what_each_machine_says_of_them_alone() -> None:
    """Most nodes are looked at once for a shape; those that have a say are asked for every model, and told in their place."""
    states = (NodeState("gpu01", facts("gpu01", gpus=0)), ruled("gpu02", engines=("sim",)), ruled("gpu03"))
    asked = (request(engine="sim"), request(engine="vllm"), request(engine="sim", weights_path="/x"))
    one = placer(*states, NodeState("gpu04", facts("gpu04")))
    told = [place(one, each) for each in asked]
    assert told == [place(placer(*states, NodeState("gpu04", facts("gpu04"))), each) for each in asked]
    assert [where(each) for each in told] == [["gpu02"], ["gpu03"], ["gpu02"]]
    assert sorted(each.node for each in told[1].rejections) == ["gpu01", "gpu02", "gpu04"]


def test_what_is_allowed_is_placed() -> None:
    finder = placer(ruled("gpu01", engines=("sim", "/opt"), paths=("/data",)))
    assert where(place(finder, request(engine="sim", weights_path="/data/x"))) == ["gpu01"]
    assert where(place(finder, request(engine="vllm", engine_path="/opt/vllm"))) == ["gpu01"]


def test_gpus_and_memory_that_the_machine_keeps_for_people_are_not_used() -> None:
    kept = with_gpus("gpu01", gpu("gpu01", 0), gpu("gpu01", 1))
    policy = replace(POLICY, reserve=Reserve(gpus=("GPU-gpu01-0",), memory=Size(60 * GIB)))
    finder = placer(NodeState("gpu01", replace(kept.facts, policy=policy)))
    decision = place(finder, request())
    assert [claim.uuid for rank in decision.ranks for claim in rank.gpus] == ["GPU-gpu01-1"]
    assert where(place(finder, request(memory=8 * GIB))) == []
    assert "kept for people (/etc/llmgw/agent.yaml:4 on the node)" in finder.ledgers["gpu01"].gpus[0].unusable


def test_slices_of_a_reserved_gpu_are_kept_as_well() -> None:
    slice_ = replace(gpu("gpu01", 1), uuid="MIG-1", parent="GPU-gpu01-0")
    state = with_gpus("gpu01", gpu("gpu01", 0), slice_)
    policy = replace(POLICY, reserve=Reserve(gpus=("GPU-gpu01-0",)))
    finder = placer(NodeState("gpu01", replace(state.facts, policy=policy)))
    assert where(place(finder, request())) == []


def test_a_path_is_beneath_a_directory_only_by_whole_names() -> None:
    assert beneath("/data", ("/data",))
    assert beneath("/data/x/../y", ("/data/",))
    assert beneath("/x", ("/",))
    assert not beneath("/data/../etc", ("/data",))
    assert not beneath("/database", ("/data",))
    assert not beneath("/x", ())


def test_a_start_that_an_agent_has_refused_is_not_sent_there_again() -> None:
    """The policy came between the plan and its start: the step fails, and the next plan knows better."""
    states = [NodeState("gpu01", facts("gpu01")), NodeState("gpu02", facts("gpu02"))]
    world = fleet(desired([node("gpu01"), node("gpu02")], [model("chat")]), states)
    world.refuses = lambda step: step.kind is StepKind.START
    first = world.one_pass()
    (refusing,) = {step.node for step in first.steps if step.kind is StepKind.START}
    assert refusing is not None
    state = world.nodes[refusing]
    state.facts = replace(state.facts, policy=replace(POLICY, engines=("vllm",)))
    world.refuses = lambda step: step.node == refusing and step.kind is StepKind.START
    world.settle()
    assert {shard.state for other in states for shard in other.shards.values()} == {"ready"}
    assert not state.shards


def test_a_model_that_no_machine_allows_is_blocked_with_every_rule() -> None:
    states = [ruled("gpu01", engines=("vllm",)), ruled("gpu02", paths=("/data",))]
    made = fleet(desired([node("gpu01"), node("gpu02")], [model("chat")]), states).plan()
    (change,) = made.blocked
    assert change.placement is not None
    told = {rejection.node: rejection.reason for rejection in change.placement.rejections}
    assert "`engines`" in told["gpu01"]
    assert "`paths`" in told["gpu02"]
    assert not any(step.kind is StepKind.START for step in made.steps)


@pytest.mark.parametrize(
    ("program", "allowed"), [("/usr/bin/python3", False), ("${engine}/run", True), ("/opt/mine/run", True)]
)
def test_a_program_that_a_command_brings_along_is_known_to_the_plan(program: str, *, allowed: bool) -> None:
    """The agent refused its start, pass after pass, and no plan said why."""
    runs = replace(profile(), custom=Custom(command=(program, "--port", "${port}")))
    wanted = desired([node("gpu01")], [model("web", runs)])
    made = fleet(wanted, [ruled("gpu01", engines=("sim", "/opt/mine"))]).plan()
    assert bool(made.blocked) is not allowed


def test_what_runs_is_left_alone_when_a_rule_comes_later() -> None:
    state = NodeState("gpu01", facts("gpu01"))
    world = fleet(desired([node("gpu01")], [model("chat")]), [state])
    world.settle()
    state.facts = replace(state.facts, policy=replace(POLICY, engines=("vllm",)))
    made = world.plan()
    assert not made.commands
    assert not made.blocked
