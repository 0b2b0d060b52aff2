"""LoRA adapters in plans: what changes in place, what needs another engine and why, what is told of those that fail."""

import pytest

from llmgw.core.moves.diff import spec_changes
from llmgw.core.record.recording import desired_spec
from llmgw.core.resolving.resolve import spec_digests
from llmgw.core.show import render_status
from llmgw.core.show.status import status
from llmgw.engines.lora import RANKS
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import Adapter, Dirs, Source
from llmgw.model.plan import Action, Plan, StepKind
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.core.builders import KEY, NodeState, desired, facts, model, node, profile
from tests.core.fleets import Fleet, fleet


def lora(name: str, rank: int = 16, path: str = "") -> Adapter:
    return Adapter(name=name, source=Source(path=path or f"/adapters/{name}"), rank=rank)


SQL, LEGAL, MORE = lora("sql"), lora("team/legal"), lora("more")


def chat(*adapters: Adapter, most: int = 2, **spec: object) -> DesiredModel:
    """With the digests that its manifest would get."""
    made = model("chat", None, adapters=adapters, max_loaded_adapters=most, **spec)
    told = codec.to_json(made.profile)
    first, *also = spec_digests(made.spec, told, served_name="chat", key_id=KEY, lora_ranks=RANKS)
    return replace(made, spec_digest=first, also_runs_as=tuple(also))


def settled(*models: DesiredModel, gpus: int = 2) -> Fleet:
    world = fleet(desired([node("gpu01")], models), [NodeState("gpu01", facts("gpu01", gpus=gpus))])
    world.adapters = ADAPTERS
    world.settle()
    return world


def asked(world: Fleet, *models: DesiredModel) -> Plan:
    world.desired = desired([node("gpu01")], models)
    return world.plan()


def held(world: Fleet) -> dict[str, tuple[str, ...]]:
    return {
        shard.shard: tuple(each.name for each in shard.adapters)
        for state in world.nodes.values()
        for shard in state.shards.values()
    }


def only_shard(world: Fleet) -> str:
    (found,) = held(world)
    return found


def test_within_the_rank_that_it_was_started_for_adapters_come_and_go_in_place() -> None:
    world = settled(chat(SQL))
    shard = only_shard(world)
    made = asked(world, chat(LEGAL, lora("small", rank=8)))
    assert [change.action for change in made.changes] == [Action.UPDATE] * 2
    assert [step.kind for step in made.commands] == [StepKind.ADAPTERS, StepKind.PUBLISH]
    assert made.steps[0].id == f"load adapter team/legal, load adapter small, unload adapter sql on {shard}"
    world.settle()
    assert held(world) == {shard: ("team/legal", "small")}
    assert not world.plan().steps
    assert world.plan().unchanged == 1


def test_only_the_first_are_loaded_and_status_lists_the_others() -> None:
    world = settled(chat(SQL, LEGAL, MORE))
    assert list(held(world).values()) == [("sql", "team/legal")]
    text = render_status.status_text(
        status(world.record, world.observe(), now=world.now, desired=world.desired)
    )
    assert "adapter sql: routable" in text
    assert "adapter more: not loaded, maxLoadedAdapters is 2" in text


def test_one_beyond_those_that_are_loaded_touches_no_shard() -> None:
    world = settled(chat(SQL, LEGAL))
    made = asked(world, chat(SQL, LEGAL, MORE))
    assert [step.kind for step in made.steps] == [StepKind.PUBLISH]
    assert [each.path for each in made.changes[0].fields] == [
        "spec.adapters.more.rank",
        "spec.adapters.more.source.path",
    ]
    world.settle()
    assert not world.plan().changes


def test_a_command_that_was_lost_is_sent_again() -> None:
    world = settled(chat(SQL))
    world.refuses = lambda step: step.kind is StepKind.ADAPTERS
    asked(world, chat(SQL, LEGAL))
    world.one_pass()
    world.refuses = lambda _: False
    made = world.plan()
    assert [step.kind for step in made.commands] == [StepKind.ADAPTERS]
    world.settle()
    assert list(held(world).values()) == [("sql", "team/legal")]


def test_another_source_under_the_same_name_is_loaded_anew() -> None:
    world = settled(chat(SQL))
    made = asked(world, chat(lora("sql", path="/adapters/newer")))
    assert made.steps[0].id.startswith("load adapter sql anew on ")


def test_when_the_highest_rank_goes_nothing_restarts_and_it_may_come_back() -> None:
    big = lora("big", rank=64)
    world = settled(chat(SQL, big))
    shard = only_shard(world)
    for adapters in ((SQL,), (SQL, big), (lora("other", rank=48),)):
        asked(world, chat(*adapters))
        world.settle()
        assert held(world) == {shard: tuple(each.name for each in adapters)}


REPLACED: dict[str, tuple[DesiredModel, DesiredModel, str]] = {
    "rank": (chat(SQL), chat(SQL, lora("big", rank=64)), "rank 64 is above what it was started for"),
    "off": (chat(most=0), chat(SQL), "sim runs with LoRA off"),
    "static": (chat(SQL, most=0), chat(SQL, LEGAL, most=0), "it has the adapters that it was started with"),
    "to static": (chat(SQL), chat(SQL, LEGAL, most=0), "adapters are loaded when it starts"),
    "places": (chat(SQL), chat(SQL, most=3), "places for adapters are set aside when it starts"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_can_not_change_in_place_is_a_replacement_and_the_plan_says_why(name: str) -> None:
    before, after, why = REPLACED[name]
    made = asked(settled(before), after)
    (change,) = made.changes
    assert change.action is Action.CREATE_BEFORE_DESTROY
    assert change.reason.endswith(why)
    assert any(each.forces_replacement for each in change.fields)


def test_an_engine_that_loads_at_its_start_only_is_named() -> None:
    class AtStart(type(ADAPTERS["sim"])):  # type: ignore[misc] # a sim that is not able to
        lora_ranks = ()

    world = settled(chat(SQL, most=0))
    world.adapters = {"sim": AtStart()}
    (change,) = asked(world, chat(SQL, LEGAL, most=0)).changes
    assert change.reason.endswith("sim loads adapters only when it starts")


def test_another_flag_replaces_and_blames_no_adapter() -> None:
    (change,) = asked(settled(chat(SQL)), chat(SQL, LEGAL, args=("--token-delay", "1"))).changes
    assert change.reason == "spec.args can't change while it runs"
    assert [each.path for each in change.fields if each.forces_replacement] == ["spec.args"]


def fetched(name: str) -> Adapter:
    return Adapter(name=name, source=Source(url=f"https://adapters.example/{name}", sha256="0" * 64))


def test_what_is_loaded_later_is_fetched_beside_the_start_and_what_the_start_needs_before() -> None:
    later = asked(settled(chat(SQL)), chat(SQL, fetched("far")))
    assert {step.kind for step in later.steps if not step.after} >= {StepKind.FETCH, StepKind.ADAPTERS}
    world = fleet(
        desired([node("gpu01")], [chat(fetched("far"), most=0)]), [NodeState("gpu01", facts("gpu01"))]
    )
    world.adapters = ADAPTERS
    start = next(step for step in world.plan().steps if step.kind is StepKind.START)
    assert any(name.startswith("fetch-") for name in start.after)
    assert start.launch is not None
    assert any(job.startswith("fetch-") for job in start.launch.needs)


def test_an_adapter_on_its_way_is_waited_for_and_one_that_failed_is_told_while_the_model_serves() -> None:
    world = settled(chat(SQL, LEGAL))
    state = world.nodes["gpu01"]
    (key,) = state.shards
    sql, legal = state.shards[key].adapters
    failing = replace(legal, state="failed", reason="/v1/load_lora_adapter answered 400: no")
    state.shards[key] = replace(state.shards[key], adapters=(replace(sql, state="loading"), failing))
    made = world.plan()
    assert made.waiting == ("model/chat/0: adapter sql is loading",)
    (blocked,) = made.blocked
    assert blocked.keyword == "adapter-failed"
    assert "serves without team/legal: team/legal: /v1/load_lora_adapter answered 400: no" in blocked.reason
    assert not made.steps


def test_endpoints_name_the_adapters_that_requests_can_choose_and_how() -> None:
    world = settled(chat(SQL, LEGAL))
    world.one_pass()
    (endpoint,) = world.record.endpoints
    assert [(each.name, each.send) for each in endpoint.adapters] == [
        ("sql", {"model": "sql"}),
        ("team/legal", {"model": "team/legal"}),
    ]
    state = world.nodes["gpu01"]
    (key,) = state.shards
    sql, legal = state.shards[key].adapters
    odd = replace(legal, send="[")
    state.shards[key] = replace(state.shards[key], adapters=(replace(sql, state="loaded"), odd))
    world.one_pass()
    (endpoint,) = world.record.endpoints
    assert [(each.name, each.send) for each in endpoint.adapters] == [("team/legal", {})]


def test_what_was_last_good_goes_on_with_the_adapters_of_now() -> None:
    world = settled(chat(SQL))
    asked(world, chat(LEGAL))
    world.settle()
    good = world.record.models["chat"].last_good_spec
    assert good is not None
    assert good.model.adapters == (LEGAL,)


def test_their_order_alone_is_told_as_their_order() -> None:
    old, new = (desired_spec(chat(*each), KEY) for each in ((SQL, LEGAL), (LEGAL, SQL)))
    (change,) = spec_changes(old, new, replaces=False)
    assert (change.path, change.new) == ("spec.adapters.(order)", '["team/legal", "sql"]')


def test_ranks_of_a_gang_are_all_told_and_only_the_leader_loads() -> None:
    two = [NodeState(name, facts(name)) for name in ("gpu01", "gpu02")]
    of = chat(SQL)
    gang = replace(of, profile=profile(nodes=2))
    world = fleet(desired([node("gpu01"), node("gpu02")], [gang]), two)
    world.adapters = ADAPTERS
    world.settle()
    world.desired = desired([node("gpu01"), node("gpu02")], [replace(chat(SQL, LEGAL), profile=gang.profile)])
    told = [(step.node, step.reason) for step in world.plan().steps if step.kind is StepKind.ADAPTERS]
    assert told == [("gpu01", "Git asks for it"), ("gpu02", "its leader loads it for all ranks")]


def test_the_digest_holds_what_decides_the_launch_and_nothing_that_is_loaded_later() -> None:
    def first(*adapters: Adapter, most: int = 2) -> str:
        return chat(*adapters, most=most).spec_digest

    assert first(SQL) == first(LEGAL, MORE) == first(lora("small", rank=9)) == first()
    assert first(SQL) != first(lora("small", rank=8))
    assert first(SQL) != first(SQL, most=3)
    assert first(SQL, most=0) != first(LEGAL, most=0)
    assert chat(lora("small", rank=8)).runs_as(first(SQL))
    assert not chat(SQL).runs_as(first(lora("small", rank=8)))
    at_start = spec_digests(
        chat(SQL).spec, codec.to_json(chat(SQL).profile), served_name="chat", key_id=KEY, lora_ranks=()
    )
    assert len(at_start) == 1


def test_a_replica_of_a_higher_rank_that_its_node_lost_is_started_for_what_is_asked_now() -> None:
    world = settled(chat(SQL, lora("big", rank=64)))
    asked(world, chat(SQL))
    world.settle()
    (state,) = world.nodes.values()
    state.shards.clear()
    made = world.plan()
    (start,) = [step for step in made.steps if step.kind is StepKind.START]
    assert start.launch is not None
    assert start.launch.spec_digest == chat(SQL).spec_digest
    assert str(start.replica).startswith(f"chat-{chat(SQL).spec_digest[:8]}-")
    world.settle()
    assert not world.plan().steps


def test_ranks_that_would_look_for_adapters_in_different_places_are_warned_of() -> None:
    def warned(second: str) -> list[str]:
        two = [NodeState(name, facts(name)) for name in ("gpu01", "gpu02")]
        nodes = [node("gpu01"), node("gpu02", dirs=Dirs(weights=second))]
        world = fleet(
            desired([nodes[0], nodes[1]], [replace(chat(fetched("far")), profile=profile(nodes=2))]), two
        )
        world.adapters = ADAPTERS
        return [note.text for note in world.plan().warnings if "look where the leader" in note.text]

    at_first = f"{Dirs().work}/weights"
    assert warned(at_first) == []
    (text,) = warned("/data/weights")
    assert f"{at_first} on gpu01 and /data/weights on gpu02" in text
