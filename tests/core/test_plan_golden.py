"""Plans as people read them, to the letter, one file a situation in tests/golden/plans.

``UPDATE_GOLDEN=1 python -m pytest tests/core/test_plan_golden.py`` writes them anew; read the difference before committing it.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from llmgw.core.planner import plan
from llmgw.core.show import render
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import ReplicaId, ShardId
from llmgw.model.manifest import GIB, Expect, Rollout, Size, Source
from llmgw.model.plan import Plan, Step
from llmgw.model.report import ByHand, Reach
from llmgw.model.struct import replace
from tests.core.builders import (
    ADAPTERS,
    COMMIT,
    NOW,
    NodeState,
    desired,
    facts,
    gpu,
    model,
    node,
    profile,
    stranger,
)
from tests.core.fleets import OPTIONS, Fleet, fleet

GOLDEN = Path(__file__).parent.parent / "golden" / "plans"
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"


def box(name: str = "gpu01", *, gpus: int = 2) -> NodeState:
    return NodeState(name, facts(name, gpus=gpus))


def lab(*models: DesiredModel, nodes: tuple[str, ...] = ("gpu01",)) -> Desired:
    return desired([node(name) for name in nodes], models)


def settled(wanted: Desired, *states: NodeState) -> Fleet:
    world = fleet(wanted, states)
    world.settle()
    return world


def first_create() -> Plan:
    chat = model("chat", source=Source(url="https://example.org/chat.gguf"), replicas=2)
    world = fleet(
        lab(chat, nodes=("gpu01", "gpu02")),
        [NodeState("gpu01", facts("gpu01", gpus=1), reach=Reach.NO_AGENT), box("gpu02")],
    )
    return world.plan()


def no_op() -> Plan:
    return settled(lab(model("chat")), box()).plan()


def in_place() -> Plan:
    world = settled(lab(model("chat")), box())
    world.desired = lab(model("chat", replicas=2, priority=200, aliases=("default",)))
    return world.plan()


def replace_with_surge() -> Plan:
    world = settled(lab(model("chat", replicas=2)), box(gpus=3))
    world.desired = lab(model("chat", profile(max_model_len=16384), replicas=2, args=("--fast",)))
    return world.plan()


def replace_half_way() -> Plan:
    world = settled(lab(model("chat")), box())
    world.desired = lab(model("chat", args=("--fast",)))
    world.one_pass()
    world.advance()
    world.advance()
    return world.plan()


def replace_on_full_node() -> Plan:
    world = settled(lab(model("chat")), box(gpus=1))
    world.desired = lab(model("chat", args=("--fast",), source=Source(url="https://example.org/v2.gguf")))
    return world.plan()


def replace_not_allowed() -> Plan:
    rollout = Rollout(max_unavailable=0)
    world = settled(lab(model("chat", rollout=rollout)), box(gpus=1))
    world.desired = lab(model("chat", args=("--fast",), rollout=rollout))
    return world.plan()


def remove() -> Plan:
    world = settled(lab(model("chat"), model("old")), box())
    world.desired = lab(model("chat"))
    return world.plan()


def prune_blocked() -> Plan:
    world = settled(lab(*(model(f"m{n}") for n in range(4))), box(gpus=4))
    world.desired = lab(model("m0"))
    return world.plan()


def emptied_fleet() -> Plan:
    world = settled(lab(model("chat"), model("code")), box())
    world.desired = lab()
    return world.plan()


def protected() -> Plan:
    world = settled(lab(model("chat", protect=True), model("code")), box())
    world.desired = lab(model("code"))
    return world.plan()


def no_room() -> Plan:
    busy = (gpu("gpu03", 0), gpu("gpu03", 1, memory=44 * GIB, processes=(stranger(int(31.9 * GIB)),)))
    states = [
        box("gpu01", gpus=1),
        NodeState("gpu02", facts("gpu02", gpus=0)),
        NodeState("gpu03", replace(facts("gpu03"), gpus=busy)),
        NodeState("gpu04", facts("gpu04"), reach=Reach.UNREACHABLE, error="connection timed out"),
        NodeState("gpu05", facts("gpu05", gpus=4)),
    ]
    nodes = [
        node("gpu01"),
        node("gpu02"),
        node("gpu03"),
        node("gpu04"),
        node("gpu05", pool="research"),
    ]
    big = model("big", profile(gpus=2, share=None))
    big = replace(
        big, profile=replace(big.profile, gpus=replace(big.profile.gpus, min_memory=Size(40 * GIB)))
    )
    world = fleet(desired(nodes, [big, model("small")]), states)
    return world.plan()


def fails(step: Step) -> bool:
    return step.launch is not None and "--bad" in step.launch.processes[-1].argv


def held() -> Plan:
    world = settled(lab(model("chat")), box())
    world.fails = fails
    world.desired = lab(model("chat", args=("--bad",)))
    world.settle()
    return world.plan()


def held_half_way() -> Plan:
    world = settled(lab(model("chat")), box())
    world.fails = fails
    world.desired = lab(model("chat", args=("--bad",)))
    world.one_pass()
    world.advance()
    return world.plan()


def unknown_node() -> Plan:
    world = settled(
        lab(model("chat"), model("code"), nodes=("gpu01", "gpu02")),
        box("gpu01", gpus=1),
        box("gpu02", gpus=1),
    )
    world.nodes["gpu02"].reach = Reach.UNREACHABLE
    world.nodes["gpu02"].error = "no route to host"
    world.desired = lab(
        model("chat", args=("--fast",)), model("code", args=("--fast",)), nodes=("gpu01", "gpu02")
    )
    return world.plan()


def node_removed() -> Plan:
    world = settled(lab(model("chat"), nodes=("gpu01", "gpu02")), box("gpu01", gpus=1), box("gpu02", gpus=0))
    world.desired = lab(model("chat"), nodes=("gpu03",))
    world.nodes = {"gpu03": box("gpu03")}
    return world.plan()


def drifted() -> Plan:
    world = settled(lab(model("chat"), model("code"), model("embed")), box(gpus=4))
    state = world.nodes["gpu01"]
    shards = {shard.model: shard for shard in state.shards.values()}
    del state.shards[shards["chat"].shard]
    back_off = replace(
        shards["code"],
        state="backoff",
        reason="next try in 20 s",
        last_error="exited with code 1",
        attempts=2,
    )
    state.shards[back_off.shard] = back_off
    state.shards[shards["embed"].shard] = replace(
        shards["embed"],
        by_hand=ByHand(verb="drained", by="ann", at=NOW),
        state="stopped",
    )
    foreign = replace(
        shards["code"],
        shard=ShardId("code-00000000-7.1-r0"),
        replica=ReplicaId("code-00000000-7.1"),
        state="ready",
    )
    state.shards[foreign.shard] = replace(foreign, claims=replace(foreign.claims, ports=(18900,), gpus=()))
    state.facts = replace(state.facts, boot_id="boot-again", gpus=state.facts.gpus[:3])
    return world.plan()


def adopted() -> Plan:
    world = settled(lab(model("chat")), box())
    world.record = replace(world.record, replicas={}, models={}, endpoints=())
    return world.plan()


def renamed() -> Plan:
    world = settled(lab(model("chat", served_name="chat")), box())
    talk = replace(model("talk", served_name="chat", source=Source(path="/models/chat")), renamed_from="chat")
    world.desired = lab(talk)
    return world.plan()


def node_renamed() -> Plan:
    world = settled(lab(model("chat")), box())
    world.nodes = {
        "gpu09": replace(
            box(name="gpu09"),
            facts=world.nodes["gpu01"].facts,
            says="gpu01",
            shards=world.nodes["gpu01"].shards,
        )
    }
    new = replace(node("gpu01"), name="gpu09", renamed_from="gpu01")
    world.desired = desired([new], [model("chat")])
    return world.plan()


def offline() -> Plan:
    world = settled(lab(model("chat")), box(gpus=1))
    nodes = [node("gpu01"), node("gpu02", expect=Expect(gpus=2, gpu_class="h100-80g")), node("gpu03")]
    wanted = desired(nodes, [model("chat"), model("code")], commit=None)
    options = replace(OPTIONS, offline=True, record_at=NOW + timedelta(hours=1), record_commit=COMMIT)
    return plan(wanted, world.record, world.observe(), ADAPTERS, now=world.now, options=options)


def pair(**spec: object) -> DesiredModel:
    return model("chat", profile(nodes=2, gpus=2), **spec)


def gang_create() -> Plan:
    source = Source(url="https://example.org/chat.gguf")
    return fleet(lab(pair(source=source), nodes=("gpu01", "gpu02")), [box("gpu01"), box("gpu02")]).plan()


def gang_no_room() -> Plan:
    names = ("gpu01", "gpu02", "gpu03")
    return fleet(lab(pair(), nodes=names), [box("gpu01"), box("gpu02", gpus=1), box("gpu03", gpus=1)]).plan()


def gang_rank_lost() -> Plan:
    world = settled(lab(pair(), nodes=("gpu01", "gpu02")), box("gpu01"), box("gpu02"))
    (key,) = world.nodes["gpu02"].shards
    shard = world.nodes["gpu02"].shards[key]
    error = "engine was ended by signal 9"
    world.nodes["gpu02"].shards[key] = replace(shard, state="failed", reason=error, last_error=error)
    return world.plan()


def gang_replace() -> Plan:
    world = settled(lab(pair(), nodes=("gpu01", "gpu02")), box("gpu01"), box("gpu02"))
    world.desired = lab(pair(args=("--fast",)), nodes=("gpu01", "gpu02"))
    return world.plan()


def evicting() -> Plan:
    cheap = model("cheap", priority=10, replicas=2)
    world = settled(lab(cheap, nodes=("gpu01", "gpu02")), box("gpu01"), box("gpu02", gpus=1))
    wanted = model("chat", profile(gpus=2), priority=200)
    world.desired = lab(cheap, wanted, nodes=("gpu01", "gpu02"))
    return world.plan()


def evicted() -> Plan:
    world = settled(lab(model("cheap", priority=10)), box(gpus=1))
    world.desired = lab(model("cheap", priority=10), model("chat", priority=200))
    world.settle()
    return world.plan()


def large() -> Plan:
    names = [f"gpu{number:03d}" for number in range(1, 101)]
    models = [model(f"m{number:02d}", profile(gpus=4), replicas=20) for number in range(12)]
    world = fleet(lab(*models, nodes=tuple(names)), [box(name, gpus=8) for name in names])
    return world.plan()


SITUATIONS: dict[str, Callable[[], Plan]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        first_create,
        no_op,
        in_place,
        replace_with_surge,
        replace_half_way,
        replace_on_full_node,
        replace_not_allowed,
        remove,
        prune_blocked,
        emptied_fleet,
        protected,
        no_room,
        held,
        held_half_way,
        unknown_node,
        node_removed,
        drifted,
        adopted,
        renamed,
        node_renamed,
        offline,
        gang_create,
        gang_no_room,
        gang_rank_lost,
        gang_replace,
        evicting,
        evicted,
    )
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_plan_reads_as_written_down(name: str) -> None:
    text = render.plan_text(SITUATIONS[name](), show_commands=name == "first-create")
    path = GOLDEN / f"{name}.txt"
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs; UPDATE_GOLDEN=1 writes it anew"


def test_every_golden_plan_has_its_situation() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_change_names_a_field_or_a_reason(name: str) -> None:
    for change in SITUATIONS[name]().changes:
        assert change.reason
        assert change.keyword


def test_a_large_plan_stays_readable() -> None:
    made = large()
    text = render.plan_text(made)
    assert "--json tells each" in text
    assert max(len(change.placement.rejections) for change in made.changes if change.placement) <= 12
    assert "and 9" in text  # nodes that share a reason are told together


def test_colour_goes_by_the_sign_and_changes_no_text() -> None:
    made = no_room()
    painted = render.plan_text(made, paint=lambda text, sign: f"<{sign}>{text}</>" if sign else text)
    assert "<!>" in painted
    assert painted.replace("<!>", "").replace("<+>", "").replace("<~>", "").replace(
        "</>", ""
    ) == render.plan_text(made)


def test_a_fleet_without_any_node_is_told_so() -> None:
    (blocked,) = fleet(lab(model("chat"), nodes=()), []).plan().changes
    assert (blocked.keyword, blocked.reason.partition(":")[0]) == ("no-room", "the fleet has no node yet")


def test_a_stranger_under_our_name_is_left_alone() -> None:
    world = settled(lab(model("chat")), box())
    spec = next(iter(world.nodes["gpu01"].shards.values()))
    other = replace(
        spec, shard=ShardId("ghost-00000000-0.1-r0"), replica=ReplicaId("ghost-00000000-0.1"), model="ghost"
    )
    world.nodes["gpu01"].shards[other.shard] = replace(
        other, claims=replace(other.claims, gpus=(), ports=(18500,))
    )
    made = world.plan()
    assert [(each.keyword, each.shard) for each in made.drift] == [("unrecorded", other.shard)]
    assert not made.steps
