"""What somebody does to a shard on its node is told by plan and status in the same words, and put right by the next apply."""

from datetime import timedelta

from llmgw.core.show.render_status import status_text
from llmgw.core.show.status import status
from llmgw.model.report import ByHand
from llmgw.model.struct import replace
from tests.core.builders import NOW, NodeState, desired, facts, model, node
from tests.core.fleets import Fleet, fleet

AT = NOW + timedelta(hours=1)
TOLD = "stopped by hand on gpu01 by ann at 2026-03-01 11:00:00Z"


def serving() -> Fleet:
    world = fleet(desired([node("gpu01")], [model("chat")]), [NodeState("gpu01", facts("gpu01"))])
    world.settle()
    return world


def touched(world: Fleet, verb: str, state: str) -> None:
    shards = world.nodes["gpu01"].shards
    (name,) = shards
    shards[name] = replace(shards[name], state=state, by_hand=ByHand(verb=verb, by="ann", at=AT))


def test_what_was_stopped_by_hand_is_drift_told_once_and_started_again_in_the_same_place() -> None:
    world = serving()
    touched(world, "stopped", "stopped")
    made = world.plan()
    assert [drift.keyword for drift in made.drift] == ["manual"]
    assert TOLD in made.drift[0].text
    (change,) = made.changes
    assert TOLD in change.reason
    assert "started again in the same place" in change.reason
    assert TOLD in status_text(status(world.record, world.observe(), now=AT))


def test_what_was_started_by_hand_and_should_run_is_no_drift_but_is_told() -> None:
    world = serving()
    touched(world, "started", "ready")
    made = world.plan()
    assert made.drift == ()
    assert not made.changes
    assert "started by hand on gpu01 by ann" in status_text(status(world.record, world.observe(), now=AT))


def test_what_is_being_drained_by_hand_is_drift() -> None:
    world = serving()
    touched(world, "drained", "draining")
    assert {drift.keyword for drift in world.plan().drift} == {"manual", "draining"}
