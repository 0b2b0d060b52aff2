"""Models whose sum nobody can make, from the first start to the plan that needs nobody's word any more."""

from collections.abc import Mapping

import pytest

from llmgw.agent.shards.measuring import measured
from llmgw.core.adapter import STATE_IT
from llmgw.core.planner import PlanOptions, plan
from llmgw.core.show import render
from llmgw.engines.registry import ADAPTERS
from llmgw.engines.weights import weights_digest
from llmgw.model.facts import Gpu
from llmgw.model.launch import LaunchSpec
from llmgw.model.manifest import GIB, Engine, Gpus, ProfileSpec, Size, Source
from llmgw.model.plan import Change, Plan, StepKind
from llmgw.model.record import NodeRecord
from llmgw.model.report import Observed
from llmgw.model.struct import replace
from llmgw.model.weights import Measured, Weights
from tests.core.builders import NOW, NodeState, desired, empty_record, facts, model, node, observed
from tests.core.fleets import OPTIONS
from tests.engines.memory import configs
from tests.engines.memory.configs import known

SOURCE = Source(path="/models/jamba")
VLLM = Engine(name="vllm", version="0.33.0")
ALLOWED = replace(OPTIONS, allow_unknown_size=True)
SAID = """\
INFO [gpu_model_runner.py:3338] Model loading took 12.0000 GiB memory and 3.21 seconds
INFO [gpu_worker.py:299] Available KV cache memory: 24.00 GiB
INFO [kv_cache_utils.py:1087] GPU KV cache size: 65,536 tokens, Maximum concurrency for 8,192 tokens per request: 8.00x
"""


def box(name: str, gpu_class: str = "l40s-45g", memory: int = 48_305_799_168) -> NodeState:
    gpu = Gpu(
        uuid=f"GPU-{name}-0",
        index=0,
        name=gpu_class,
        gpu_class=gpu_class,
        memory_total=memory,
        compute_capability="8.9",
    )
    return NodeState(name, replace(facts(name), gpus=(gpu,)))


LARGE = box("gpu02", "h100-80g", 80 * GIB)


def runs(**fields: object) -> ProfileSpec:
    fields.setdefault("max_model_len", 8192)
    return ProfileSpec(engine=VLLM, gpus=Gpus(), **fields)  # type: ignore[arg-type] # fields by name


def planned(
    of: ProfileSpec,
    *boxes: NodeState,
    said: Mapping[str, Measured] | None = None,
    options: PlanOptions = OPTIONS,
) -> Plan:
    digest = weights_digest(SOURCE)
    weights: Weights = replace(known(configs.JAMBA, size=12 * GIB), digest=digest)
    seen = Observed(nodes=observed(*boxes).nodes, weights={digest: weights})
    record = replace(empty_record(), measured=said or {}, weights={digest: weights})
    if options.offline:
        seen = Observed(nodes={})
        nodes = {box.name: NodeRecord(name=box.name, address="", facts=box.facts) for box in boxes}
        record = replace(record, nodes=nodes)
    wanted = desired([node(each.name) for each in boxes], [model("chat", of, source=SOURCE)])
    return plan(wanted, record, seen, ADAPTERS, now=NOW, options=options)


def order(made: Plan) -> LaunchSpec:
    (launch,) = [step.launch for step in made.steps if step.launch is not None]
    return launch


def change(made: Plan) -> Change:
    (found,) = [each for each in made.changes if each.model]
    return found


def starts_on(made: Plan) -> list[str]:
    return [step.node for step in made.steps if step.kind is StepKind.START and step.node is not None]


def learnt(*boxes: NodeState) -> dict[str, Measured]:
    """What the record knows after the model ran on the first of these."""
    said = measured(order(planned(runs(memory=Size(20 * GIB)), *boxes)), SAID)
    assert said is not None
    return {said.key: said}


@pytest.mark.parametrize("first", ["memory", "allowed"])
def test_after_its_first_run_nobody_has_to_say_what_it_takes(first: str) -> None:
    refused = change(planned(runs(), box("gpu01")))
    assert refused.keyword == "unknown-size"

    stated = runs(memory=Size(20 * GIB) if first == "memory" else None)
    once = planned(stated, box("gpu01"), options=OPTIONS if first == "memory" else ALLOWED)
    assert starts_on(once) == ["gpu01"]
    said = measured(order(once), SAID)
    assert said is not None

    then = planned(runs(), box("gpu01"), said={said.key: said})
    assert starts_on(then) == ["gpu01"]
    assert (
        "needs 19.5 GiB on one l40s-45g: weights 12.0 (measured), kv 3.0 (8,192 tokens, measured), "
        "activations and overhead 4.5 (measured); it may use 40.5 of 45.0, enough for 8.0 such requests at once"
        in render.plan_text(then)
    )
    assert not then.warnings


def test_what_is_too_long_by_what_was_measured_is_refused_in_numbers() -> None:
    said = learnt(box("gpu01"))
    blocked = change(planned(runs(max_model_len=200_000), box("gpu01"), said=said))
    assert blocked.keyword == "no-room"
    assert blocked.placement is not None
    assert "kv 73.2 (200,000 tokens, measured at 8,192)" in blocked.placement.rejections[0].need
    assert "it would fit with maxModelLen: 65536" in blocked.reason


def test_a_kind_of_gpu_where_it_never_ran_is_turned_down_with_what_to_do() -> None:
    said = learnt(box("gpu01"))
    made = planned(runs(), LARGE, box("gpu01"), said=said)
    assert starts_on(made) == ["gpu01"]
    placement = change(made).placement
    assert placement is not None
    (turned,) = placement.rejections
    assert turned.node == "gpu02"
    assert turned.reason.startswith("what it takes there is not known: it has not run on h100-80g yet, and ")
    assert turned.reason.endswith(STATE_IT)


@pytest.mark.parametrize("options", [ALLOWED, replace(OPTIONS, offline=True)])
def test_there_it_is_placed_with_a_warning_where_that_is_allowed(options: PlanOptions) -> None:
    said = learnt(box("gpu01"))
    made = planned(runs(), LARGE, said=said, options=options)
    assert starts_on(made) == ["gpu02"]
    (warned,) = [each.text for each in made.warnings if "whether it fits" in each.text]
    assert "carry a state along" in warned


def test_no_warning_where_it_ran_before() -> None:
    said = learnt(box("gpu01"))
    both = planned(runs(), box("gpu01"), LARGE, said=said, options=ALLOWED)
    assert starts_on(both) == ["gpu01"]
    assert not both.warnings


def test_a_stated_size_counts_on_kinds_where_it_never_ran() -> None:
    said = learnt(box("gpu01"))
    assert starts_on(planned(runs(memory=Size(20 * GIB)), LARGE, said=said)) == ["gpu02"]
    large = change(planned(runs(memory=Size(90 * GIB)), LARGE, said=said))
    assert large.keyword == "no-room"


def test_another_engine_version_or_flag_starts_from_nothing() -> None:
    said = learnt(box("gpu01"))
    for other in (
        replace(runs(), engine=replace(VLLM, version="0.34.0")),
        runs(args=("--enforce-eager",)),
        runs(quantization="fp8"),
    ):
        assert change(planned(other, box("gpu01"), said=said)).keyword == "unknown-size"
