"""Plans that know what weights take: the sum that is printed, who is turned down and by which numbers, what is learnt first."""

from collections.abc import Mapping
from typing import Any

import pytest

from llmgw.core.adapter import STATE_IT, EngineAdapter, GpuKind, GpuNeed, Known, Need
from llmgw.core.planner import PlanOptions, plan
from llmgw.core.show import render
from llmgw.model.desired import DesiredModel
from llmgw.model.facts import Gpu, WeightsFact
from llmgw.model.manifest import GIB, Gpus, PlacementRules, ProfileSpec, Size, Source
from llmgw.model.plan import Action, Change, Plan, StepKind
from llmgw.model.record import NodeRecord, Record
from llmgw.model.report import Observed, Reach
from llmgw.model.struct import replace
from llmgw.model.weights import Weights
from tests.core.builders import (
    NOW,
    FakeAdapter,
    NodeState,
    desired,
    empty_record,
    facts,
    model,
    node,
    observed,
    profile,
    stranger,
)
from tests.core.fleets import OPTIONS

TOKEN = 100_000  # bytes that the engine of these tests takes for one
DIGEST = "w" * 64


class Sized(FakeAdapter):
    """Takes its weights, divided by tensor and pipeline, and a cache of what maxModelLen asks for; may use nine tenths of a GPU."""

    def weights(self, model: DesiredModel) -> str | None:
        del model
        return DIGEST

    def need(self, model: DesiredModel, known: Known = Known()) -> Need:  # noqa: B008 - frozen
        plain = super().need(model)
        if known.weights is None or known.weights.problem:
            why = (
                known.weights.problem if known.weights is not None else "the size of its weights is not known"
            )
            return plain if model.profile.memory else replace(plain, unknown=why)
        if model.profile.gpus.per_node == 0:
            return replace(plain, memory=known.weights.size, sum="all of it", reckoned=True)
        return replace(
            plain, on=tuple(self.on(model, known.weights, kind) for kind in known.kinds), reckoned=True
        )

    def on(self, model: DesiredModel, weights: Weights, kind: GpuKind) -> GpuNeed:
        profile = model.profile
        halved = 2 if profile.quantization == "fp8" else 1
        size = weights.size // profile.parallel.tensor // profile.parallel.pipeline // halved
        cache = (profile.max_model_len or 0) * TOKEN // profile.parallel.tensor
        room = kind.memory * 9 // 10
        old = "fp8 needs 8.9" if profile.quantization == "fp8" and kind.capability == "8.0" else ""
        told = f"{(size + cache) / GIB:.1f} GiB on {kind.gpu_class}: weights {size / GIB:.1f}, kv {cache / GIB:.1f}"
        return GpuNeed(kind=kind, memory=size + cache, room=room, takes=room, sum=told, refused=old)


ADAPTERS: Mapping[str, EngineAdapter] = {"sim": Sized()}
WEIGHTS = Weights(digest=DIGEST, description="chat's", size=15 * GIB, context=32_768)
FETCHED = Source(url="https://models.example/x.gguf", sha256="0" * 64)
ON_NODE = Source(path="/models/chat")


def gpus(name: str, count: int, size: int, **more: Any) -> tuple[Gpu, ...]:
    more.setdefault("gpu_class", f"card-{size}g")
    return tuple(
        Gpu(uuid=f"GPU-{name}-{index}", index=index, name="card", memory_total=size * GIB, **more)
        for index in range(count)
    )


def box(
    name: str = "gpu01", *, count: int = 2, size: int = 24, weights: bool = False, **more: Any
) -> NodeState:
    there = (WeightsFact(digest=fetch_digest(), path="/w/x.gguf", size=1),) if weights else ()
    return NodeState(
        name,
        facts(name, gpus=0, weights=there)
        if not count
        else replace(facts(name, gpus=0, weights=there), gpus=gpus(name, count, size, **more)),
    )


def fetch_digest() -> str:
    fetched = Sized().fetch(model("chat", source=FETCHED), desired([], []).fleet.pip)
    assert fetched is not None
    return fetched.digest


def planned(
    of: DesiredModel,
    *boxes: NodeState,
    weights: Weights | None = WEIGHTS,
    options: PlanOptions = OPTIONS,
    record: Record | None = None,
    bad: Mapping[str, str] | None = None,
    adapter: EngineAdapter | None = None,
) -> Plan:
    wanted = desired([node(each.name) for each in boxes], [of])
    seen: Observed = observed(*boxes)
    nodes = {name: replace(it, bad_weights=bad or {}) for name, it in seen.nodes.items()}
    seen = Observed(nodes=nodes, weights={DIGEST: weights} if weights is not None else {})
    adapters = ADAPTERS if adapter is None else {"sim": adapter}
    return plan(wanted, record or empty_record(), seen, adapters, now=NOW, options=options)


def chat(runs: ProfileSpec | None = None, *, source: Source = ON_NODE, **spec: Any) -> DesiredModel:
    return model("chat", runs or profile(gpus=1, max_model_len=32_768), source=source, **spec)


def change(made: Plan) -> Change:
    (found,) = [each for each in made.changes if each.model]
    return found


def ordered(made: Plan) -> set[StepKind]:
    """What is done to nodes."""
    return {step.kind for step in made.steps if step.kind is not StepKind.PUBLISH}


def started(made: Plan) -> bool:
    return any(step.kind is StepKind.START for step in made.steps)


# ---- it fits, or not -----------------------------------------------------------------------------------


def test_the_plan_prints_the_sum_where_it_places() -> None:
    made = planned(chat(), box())
    assert started(made)
    assert "because  needs 18.1 GiB on card-24g: weights 15.0, kv 3.1" in render.plan_text(made)


def test_a_gpu_that_is_too_small_is_turned_down_with_the_sum() -> None:
    made = planned(chat(), box(size=16), box("gpu02", size=24))
    placement = change(made).placement
    assert placement is not None
    assert placement.ranks[0].node == "gpu02"
    (turned,) = placement.rejections
    assert (turned.reason, turned.need) == (
        "too large for its GPUs",
        "18.1 GiB on card-16g: weights 15.0, kv 3.1",
    )
    assert turned.have == "card-16g of 16.0 GiB"


def test_a_refusal_names_the_nearest_shapes_that_fit() -> None:
    made = planned(chat(), box(size=16, count=4))
    blocked = change(made)
    assert (blocked.action, blocked.keyword) == (Action.BLOCKED, "no-room")
    assert (
        "it would fit with quantization: fp8, or with gpus.perNode: 2 and parallel.tensor: 2"
        in blocked.reason
    )
    shorter = change(planned(chat(), box(size=18, count=1)))
    assert "it would fit with maxModelLen: 12800" in shorter.reason


def test_what_is_suggested_does_fit_and_a_little_more_does_not() -> None:
    def fits(length: int) -> bool:
        return started(planned(chat(profile(gpus=1, max_model_len=length)), box(size=18, count=1)))

    assert fits(12_800)
    assert not fits(12_800 + 256)


def nearest(made: Plan) -> str:
    return change(made).reason.partition("; it would fit with ")[2]


def test_the_nearest_shape_may_be_another_kind_of_gpu_or_none_of_a_quantization() -> None:
    old, new = box(compute_capability="8.0"), box("gpu02", gpu_class="new-24g", compute_capability="8.9")
    asked = profile(gpus=0, max_model_len=1024, quantization="fp8")
    of = chat(replace(asked, gpus=Gpus(gpu_class="card-24g")))
    assert nearest(planned(of, old, new)) == "no quantization, or with gpus.class: new-24g"


def test_the_nearest_shape_may_be_a_second_node() -> None:
    of = chat(profile(gpus=2, max_model_len=1024))
    assert (
        nearest(planned(of, box(size=16), box("gpu02", size=16)))
        == "quantization: fp8, or with nodes: 2 and parallel.pipeline: 2"
    )


def test_a_second_node_is_only_named_where_there_is_one() -> None:
    assert "nodes: 2" not in nearest(planned(chat(profile(gpus=2, max_model_len=1024)), box(size=16)))


def test_the_nearest_shape_may_be_a_larger_share() -> None:
    asked = replace(profile(gpus=1, max_model_len=1024), gpus=Gpus(share=Size(12 * GIB)))

    class Sharing(Sized):
        def on(self, model: DesiredModel, weights: Weights, kind: GpuKind) -> GpuNeed:
            share = model.profile.gpus.share
            assert share is not None
            return replace(super().on(model, weights, kind), room=int(share))

    made = planned(chat(asked), box(), adapter=Sharing())
    assert nearest(made) == "quantization: fp8, or with gpus.share: 16GiB"


def test_nothing_is_suggested_where_only_others_are_in_the_way() -> None:
    busy = box(count=1, processes=(stranger(10 * GIB),), memory_used=10 * GIB)
    blocked = change(planned(chat(), busy))
    assert blocked.keyword == "no-room"
    assert "it would fit" not in blocked.reason
    text = render.plan_text(planned(chat(), busy))
    assert "needs 18.1 GiB on card-24g: weights 15.0, kv 3.1" in text
    assert "pid 4711 of user ann holds 10.0 GiB" in text


def test_what_the_engine_takes_at_start_must_be_free_right_now() -> None:
    made = planned(chat(), box(count=1, memory_used=GIB, memory_free=int(21.5 * GIB)))
    blocked = change(made)
    assert blocked.keyword == "no-room"
    assert blocked.placement is not None
    (turned,) = blocked.placement.rejections
    assert turned.have == "0 of 1 GPU free; GPU 0 has only 21.5 GiB free now"
    assert started(planned(chat(), box(count=1, memory_free=22 * GIB)))


def test_each_kind_of_gpu_is_judged_by_itself() -> None:
    of = chat(profile(gpus=1, max_model_len=1024, quantization="fp8"))
    old = box("gpu01", compute_capability="8.0")
    new = box("gpu02", gpu_class="new-24g", compute_capability="8.9")
    made = planned(of, old, new)
    placement = change(made).placement
    assert placement is not None
    assert placement.ranks[0].node == "gpu02"
    assert [(each.reason, each.need) for each in placement.rejections] == [
        ("card-24g can't run it: fp8 needs 8.9", "")
    ]


def test_a_small_gpu_beside_a_large_one_is_passed_over() -> None:
    mixed = box(count=0)
    mixed = replace(mixed, facts=replace(mixed.facts, gpus=(*gpus("a", 1, 16), *gpus("b", 1, 24))))
    placement = change(planned(chat(), mixed)).placement
    assert placement is not None
    assert [claim.uuid for claim in placement.ranks[0].gpus] == ["GPU-b-0"]


def test_on_the_cpu_the_sum_is_what_is_set_aside() -> None:
    made = planned(chat(profile(gpus=0)), box(count=0))
    placement = change(made).placement
    assert placement is not None
    assert placement.ranks[0].memory == 15 * GIB
    assert "needs all of it" in placement.reasons


def test_memory_that_others_use_right_now_is_not_there() -> None:
    crowded = box(count=0)
    crowded = replace(crowded, facts=replace(crowded.facts, memory_available=10 * GIB))
    blocked = change(planned(chat(profile(gpus=0)), crowded))
    assert blocked.placement is not None
    (turned,) = blocked.placement.rejections
    assert (turned.reason, turned.need) == ("not enough memory free right now", "15.0 GiB of memory")
    assert turned.have == "10.0 GiB available of 64.0 GiB, the rest is in use"


def test_gpus_of_one_class_that_compute_differently_are_told_apart() -> None:
    of = chat(profile(gpus=1, max_model_len=1024, quantization="fp8"))
    mixed = box(count=0)
    both = (*gpus("a", 1, 24, compute_capability="8.0"), *gpus("b", 1, 24, compute_capability="8.9"))
    placement = change(planned(of, replace(mixed, facts=replace(mixed.facts, gpus=both)))).placement
    assert placement is not None
    assert [claim.uuid for claim in placement.ranks[0].gpus] == ["GPU-b-0"]


# ---- weights that can't be used ------------------------------------------------------------------------


def test_a_node_without_the_weights_is_turned_down_with_what_to_do() -> None:
    made = planned(
        chat(), box(), bad={DIGEST: "nothing is at /models/chat on this node: copy the weights there"}
    )
    blocked = change(made)
    assert blocked.placement is not None
    (turned,) = blocked.placement.rejections
    assert turned.reason == (
        "the weights can't be used there: nothing is at /models/chat on this node: copy the weights there"
    )


# ---- not known -----------------------------------------------------------------------------------------


def test_unknown_size_is_refused() -> None:
    blocked = change(planned(chat(), box(), weights=None))
    assert (blocked.action, blocked.keyword) == (Action.BLOCKED, "unknown-size")
    assert blocked.reason == f"the size of its weights is not known: {STATE_IT}"


def test_why_it_is_unknown_is_told() -> None:
    broken = Weights(digest=DIGEST, description="x", problem="config.json can't be read")
    assert "config.json can't be read" in change(planned(chat(), box(), weights=broken)).reason


@pytest.mark.parametrize("what", ["option", "memory"])
def test_unknown_size_can_be_allowed_or_stated(what: str) -> None:
    options = replace(OPTIONS, allow_unknown_size=what == "option")
    runs = profile(gpus=1, memory=Size(GIB) if what == "memory" else None)
    made = planned(chat(runs), box(), weights=None, options=options)
    assert started(made)
    warned = [notice.text for notice in made.warnings]
    assert warned == (
        [
            "model/chat: whether it fits is not known (the size of its weights is not known): allowed by --allow-unknown-size"
        ]
        if what == "option"
        else []
    )


def test_offline_nothing_is_blocked_for_what_nobody_could_look_at() -> None:
    record = replace(empty_record(), nodes={"gpu01": NodeRecord(name="gpu01", address="", facts=box().facts)})
    options = replace(OPTIONS, offline=True)
    made = planned(chat(), box(), weights=None, options=options, record=record)
    assert not made.blocked
    assert "offline, nobody could look" in made.warnings[0].text


def test_what_the_record_knows_counts_where_nobody_looked() -> None:
    record = replace(empty_record(), weights={DIGEST: WEIGHTS})
    made = planned(chat(), box(size=16, count=1), weights=None, record=record)
    assert change(made).keyword == "no-room"


def test_weights_that_are_fetched_are_fetched_first_and_tell_their_size() -> None:
    first = planned(chat(source=FETCHED), box(), weights=None)
    assert ordered(first) == {StepKind.INSTALL, StepKind.FETCH}
    coming = change(first)
    assert coming.action is Action.CREATE
    assert coming.replica is None
    assert "known after that" in coming.reason
    assert first.waiting == (
        next(text for text in first.waiting if text.endswith("which tells how much memory it takes")),
    )
    then = planned(chat(source=FETCHED), box(weights=True), weights=WEIGHTS)
    assert started(then)


def test_what_was_wrong_when_somebody_looked_is_told_before_anything_is_fetched() -> None:
    refused = Weights(digest=DIGEST, description="x", problem="refused (401): name a token")
    made = planned(chat(source=FETCHED), box(), weights=refused)
    assert ordered(made) == {StepKind.INSTALL, StepKind.FETCH}
    assert [each.text for each in made.warnings] == [
        "model/chat: its size will be known when it is fetched: refused (401): name a token"
    ]


def test_what_is_fetched_and_still_unknown_is_refused() -> None:
    odd = Weights(digest=DIGEST, description="x", problem="an odd file")
    made = planned(chat(source=FETCHED), box(weights=True), weights=odd)
    assert (change(made).keyword, change(made).reason) == ("unknown-size", f"an odd file: {STATE_IT}")


def test_a_place_is_kept_for_what_is_being_fetched() -> None:
    other = model("other", profile(gpus=1, memory=Size(GIB)), source=ON_NODE, priority=50)
    wanted = desired([node("gpu01")], [chat(source=FETCHED), other])
    seen = Observed(nodes=observed(box(count=1)).nodes, weights={})
    made = plan(wanted, empty_record(), seen, ADAPTERS, now=NOW, options=OPTIONS)
    by_model = {each.model: each for each in made.changes if each.model}
    assert by_model["other"].keyword == "no-room"


def test_weights_on_a_machine_without_agent_are_known_after_bootstrap() -> None:
    bare = replace(box(), reach=Reach.NO_AGENT)
    made = planned(chat(), bare, weights=None)
    assert ordered(made) == {StepKind.BOOTSTRAP, StepKind.INSTALL}


def test_a_replacement_stops_nothing_before_its_size_is_known() -> None:
    rules = PlacementRules()
    made = planned(chat(source=FETCHED, placement=rules), box(count=1), weights=None)
    assert not any(step.kind in (StepKind.DRAIN, StepKind.STOP) for step in made.steps)


def test_a_shape_that_can_not_be_is_refused_as_such() -> None:
    class Odd(Sized):
        def need(self, model: DesiredModel, known: Known = Known()) -> Need:  # noqa: B008 - frozen
            return replace(super().need(model, known), refused="28 heads can't be divided by 8")

    wanted = desired([node("gpu01")], [chat()])
    seen = Observed(nodes=observed(box()).nodes, weights={DIGEST: WEIGHTS})
    made = plan(wanted, empty_record(), seen, {"sim": Odd()}, now=NOW, options=OPTIONS)
    assert (change(made).keyword, change(made).reason) == ("wrong-shape", "28 heads can't be divided by 8")


def test_planning_twice_with_sums_says_the_same() -> None:
    again = [render.plan_text(planned(chat(), box(), box("gpu02", size=16))) for _ in range(2)]
    assert again[0] == again[1]


def test_gpus_are_asked_for_in_shares_as_before() -> None:
    runs = replace(profile(gpus=1, share=20 * GIB, max_model_len=1024), gpus=Gpus(share=Size(20 * GIB)))
    assert started(planned(chat(runs), box()))
