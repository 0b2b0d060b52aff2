"""What is asked for and not there is explained where people look first, also when no replica of it was ever started."""

from llmgw.core.show import render_status
from llmgw.core.show.status import ModelRow, Status, status
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, model, node
from tests.core.fleets import fleet

SHORT = Status(
    fleet="lab",
    serial=4,
    commit="c" * 40,
    outcome="failed",
    errors=("start web-1 on gpu01: the policy allows vllm",),
    models=(
        ModelRow(name="chat", served_name="chat", wanted=1, ready=0, placed=1),
        ModelRow(name="web", served_name="web", wanted=2, ready=1, placed=1),
    ),
)


def test_why_a_model_has_no_replica_is_told_with_what_to_do() -> None:
    text = render_status.status_text(SHORT)
    assert "    last pass: start web-1 on gpu01: the policy allows vllm\n" in text
    assert "    not placed: web: `llmgw plan` says where" in text


def test_nothing_is_told_of_models_that_are_placed_held_or_being_applied() -> None:
    held = tuple(replace(row, placed=0, held="it does not start") for row in SHORT.models)
    placed = tuple(replace(row, placed=row.wanted) for row in SHORT.models)
    for quiet in (
        replace(SHORT, models=held),
        replace(SHORT, models=placed),
        replace(SHORT, holder="ann@desk"),
    ):
        assert "not placed" not in render_status.status_text(quiet)
        assert "last pass: " not in render_status.status_text(quiet)


def test_a_removed_node_without_an_agent_is_not_said_to_get_one() -> None:
    states = [NodeState("gpu01", facts("gpu01")), NodeState("gpu02", facts("gpu02"))]
    world = fleet(desired([node("gpu01"), node("gpu02")], [model("chat")]), states)
    world.settle()
    (idle,) = (name for name, state in world.nodes.items() if not state.shards)
    gone = world.nodes[idle]
    gone.reach, gone.error = Reach.NO_AGENT, "no agent listens there: the next `llmgw apply` starts it"
    without = replace(
        world.desired, nodes={name: each for name, each in world.desired.nodes.items() if name != idle}
    )
    for wanted, told in ((world.desired, "starts it"), (without, "forgets it")):
        shown = status(world.record, world.observe(), now=world.now, desired=wanted)
        (row,) = (row for row in shown.nodes if row.name == idle)
        assert [told in problem for problem in row.problems] == [True]
