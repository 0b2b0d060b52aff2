"""What makes a saved plan stale, and what does not."""

from collections.abc import Callable

import pytest

from llmgw.model.manifest import GIB
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, model, node, stranger
from tests.core.fleets import Fleet, fleet


def running() -> Fleet:
    world = fleet(desired([node("gpu01")], [model("chat")]), [NodeState("gpu01", facts("gpu01", gpus=2))])
    world.settle()
    return world


def set_gpu(box: NodeState, /, **changes: object) -> None:
    first, second = box.facts.gpus
    box.facts = replace(box.facts, gpus=(first, replace(second, **changes)))  # type: ignore[arg-type] # the test's own words


def set_shard(box: NodeState, /, **changes: object) -> None:
    (key,) = box.shards
    box.shards[key] = replace(box.shards[key], **changes)  # type: ignore[arg-type] # the test's own words


MOVES: dict[str, Callable[[NodeState], None]] = {
    "the machine was restarted": lambda state: setattr(
        state, "facts", replace(state.facts, boot_id="another")
    ),
    "another agent": lambda state: setattr(state, "agent", "0.2.0"),
    "a GPU became unhealthy": lambda state: set_gpu(state, health=("Xid 48",)),
    "a GPU went": lambda state: setattr(state, "facts", replace(state.facts, gpus=state.facts.gpus[:1])),
    "somebody took a GPU": lambda state: set_gpu(state, processes=(stranger(GIB),)),
    "a shard failed": lambda state: set_shard(state, state="failed"),
    "a shard went": lambda state: state.shards.clear(),
    "the node can't be reached": lambda state: setattr(state, "reach", Reach.UNREACHABLE),
}
STAYS: dict[str, Callable[[NodeState], None]] = {
    "memory in use": lambda state: set_gpu(state, memory_used=3 * GIB, memory_free=70 * GIB),
    "attempts and lines": lambda state: set_shard(state, attempts=2, last_line="loading 7/9"),
    "disk and memory": lambda state: setattr(state, "facts", replace(state.facts, memory_available=1)),
}


@pytest.mark.parametrize("what", MOVES)
def test_what_decides_makes_a_plan_stale(what: str) -> None:
    world = running()
    before = world.plan().basis.observed
    MOVES[what](world.nodes["gpu01"])
    assert world.plan().basis.observed != before


@pytest.mark.parametrize("what", STAYS)
def test_what_changes_by_itself_does_not(what: str) -> None:
    world = running()
    before = world.plan().basis.observed
    STAYS[what](world.nodes["gpu01"])
    assert world.plan().basis.observed == before


def test_getting_on_with_loading_does_not() -> None:
    world = running()
    set_shard(world.nodes["gpu01"], state="starting")
    before = world.plan().basis.observed
    set_shard(world.nodes["gpu01"], state="loading")
    assert world.plan().basis.observed == before
