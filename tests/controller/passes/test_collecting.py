"""What a node has stored is needed by whoever may still start with it, and removed only when nobody may."""

from typing import Any

from llmgw.controller.passes.collecting import Sorting, sort
from llmgw.model.ids import ShardId, digest
from llmgw.model.launch import FetchSpec
from llmgw.model.manifest import Source
from llmgw.model.record import Record
from llmgw.model.report import Stored
from llmgw.model.struct import replace
from tests.core.builders import ADAPTERS, NodeState, desired, facts, model, node
from tests.core.fleets import Fleet, fleet

URL = "https://models.example.org/{}.gguf"
ENGINE = f"engine/{digest(['sim', '1'])}"


def weights(name: str) -> str:
    return f"weights/{digest(URL.format(name))}"


def chat(name: str = "chat", **spec: Any) -> Any:
    return model(name, source=Source(url=URL.format(name), sha256="0" * 64), **spec)


def stored(name: str, **changes: Any) -> Stored:
    return Stored(name=name, description=name[:12], path="/x", size=1, **changes)


def of(world: Fleet, *names: str | Stored, record: Record | None = None) -> Sorting:
    there = [one if isinstance(one, Stored) else stored(one) for one in names]
    return sort(
        there,
        node=world.desired.nodes["n1"],
        desired=world.desired,
        record=record or world.record,
        report=world.observe().nodes["n1"].report,
        adapters=ADAPTERS,
    )


def why(found: Sorting) -> dict[str, str]:
    return {it.stored.name: it.why for it in found.kept}


def serving(*models: Any) -> Fleet:
    world = fleet(desired([node("n1")], models), [NodeState("n1", facts("n1", gpus=4))])
    world.settle()
    return world


def test_what_a_model_of_the_manifests_needs_stays_wherever_it_runs() -> None:
    world = serving()
    world.desired = desired([node("n1")], [chat(replicas=0)])
    found = of(world, ENGINE, weights("chat"), weights("old"), f"half/fetch-{weights('chat')[8:16]}/.part-x")
    assert [one.name for one in found.unused] == [weights("old")]
    assert set(why(found).values()) == {"model chat needs it"}


def test_what_a_recorded_replica_runs_with_stays_when_its_model_has_changed() -> None:
    world = serving(chat())
    other = replace(chat().spec, source=Source(url=URL.format("new"), sha256="0" * 64))
    world.desired = desired([node("n1")], [replace(chat(), spec=other)])
    found = of(world, weights("chat"), weights("new"))
    assert found.unused == ()
    replica = next(iter(world.record.replicas))
    assert why(found) == {
        weights("chat"): f"replica {replica} runs with it",
        weights("new"): "model chat needs it",
    }


def test_what_a_model_may_go_back_to_stays() -> None:
    world = serving(chat())
    world.desired = desired([node("n1")], [])
    record = replace(world.record, replicas={})
    assert next(iter(record.models.values())).last_good_spec is not None
    found = of(world, weights("chat"), ENGINE, record=record)
    assert set(why(found).values()) == {"model chat may go back to it"}


def test_what_an_agent_holds_stays_but_for_orders_of_what_has_ended_and_nobody_records() -> None:
    world = serving(chat())
    (shard,) = world.nodes["n1"].shards
    gone = replace(world.record, replicas={}, models={})
    world.desired = desired([node("n1")], [])
    held = stored(weights("old"), held=f"shard {shard} refers to it", shards=(ShardId(shard),))
    busy = stored(weights("busy"), held="fetch-0 works on it")
    assert set(why(of(world, held, busy, record=gone))) == {weights("old"), weights("busy")}, "it lives"
    for key, report in world.nodes["n1"].shards.items():
        world.nodes["n1"].shards[key] = replace(report, state="stopped")
    assert set(why(of(world, held, busy))) == {weights("old"), weights("busy")}, "it is recorded"
    assert set(why(of(world, held, busy, record=gone))) == {weights("busy")}


def test_a_tool_stays_as_long_as_a_model_is_fetched_with_it() -> None:
    class Hub(type(ADAPTERS["sim"])):  # type: ignore[misc] # the tests' own engine
        def fetch(self, of: Any, pip: Any) -> FetchSpec | None:
            found = super().fetch(of, pip)
            return replace(found, tool="huggingface_hub==2.4.0") if found else None

    world = serving()
    world.desired = desired([node("n1")], [chat()])
    found = sort(
        [stored("tool/huggingface_hub-2.4.0-12345678"), stored("tool/huggingface_hub-2.3.0-12345678")],
        node=world.desired.nodes["n1"],
        desired=world.desired,
        record=world.record,
        report=None,
        adapters={"sim": Hub()},
    )
    assert [one.name for one in found.unused] == ["tool/huggingface_hub-2.3.0-12345678"]


def test_the_largest_stand_first() -> None:
    small, large = stored("weights/a"), replace(stored("weights/b"), size=10)
    assert of(serving(), small, large).unused == (large, small)
