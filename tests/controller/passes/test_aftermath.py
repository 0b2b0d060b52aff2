"""What became of the commands of a pass whose controller died, as far as the nodes can tell."""

import pytest

from llmgw.controller.passes.aftermath import became_of
from llmgw.model.plan import StepKind, StepOutcome
from llmgw.model.report import NodeObservation, Observed, Reach
from tests.controller.passes.doubles import plan_of, report, shard, start, step

PLAN = plan_of(step("b", StepKind.BOOTSTRAP), start("s"))


def outcomes(observation: NodeObservation) -> dict[str, StepOutcome]:
    observed = Observed(nodes={observation.node: observation})
    return {name: result.outcome for name, result in became_of(PLAN, observed).items()}


def test_a_start_that_its_node_knows_was_carried_out_and_one_that_it_does_not_was_not() -> None:
    known = NodeObservation(node="gpu01", reach=Reach.OK, report=report("gpu01", shards=(shard("loading"),)))
    assert outcomes(known)["s"] is StepOutcome.DONE
    unknown = NodeObservation(node="gpu01", reach=Reach.OK, report=report("gpu01"))
    assert outcomes(unknown)["s"] is StepOutcome.DEFERRED


@pytest.mark.parametrize("reach", [Reach.UNREACHABLE, Reach.NOT_ASKED, Reach.NO_AGENT])
def test_a_start_on_a_node_whose_agent_does_not_answer_stays_unknown(reach: Reach) -> None:
    """An agent that died with its machine has left orders on disk, and starts them when it is back."""
    assert outcomes(NodeObservation(node="gpu01", reach=reach))["s"] is StepOutcome.UNKNOWN


def test_an_agent_that_is_not_there_was_not_started() -> None:
    assert outcomes(NodeObservation(node="gpu01", reach=Reach.NO_AGENT))["b"] is StepOutcome.DEFERRED
    assert outcomes(NodeObservation(node="gpu01", reach=Reach.UNREACHABLE))["b"] is StepOutcome.UNKNOWN
