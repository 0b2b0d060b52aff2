"""Death at any call to the world, one after another: of the apply that begins a rollout, and of the agents that it commands."""

import pytest

from llmgw.model.struct import replace
from tests.sim.commits import FleetWish, ModelWish, NodeWish
from tests.sim.deeds import Event
from tests.sim.history import History, play

START = FleetWish(
    nodes=(NodeWish(name="node1", gpus=2), NodeWish(name="node2", gpus=1)),
    models=(ModelWish(name="ant", shape="whole", replicas=2),),
)
ROLLOUT = START.changed(replace(START.models[0], flag=1))
SERVES = (Event(kind="settle a while", seconds=40.0), Event(kind="commit", wish=ROLLOUT))
WAITS = Event(kind="apply waits", seconds=200.0)

CALLS_OF_AN_APPLY = 90
"""More than the first pass of the rollout makes: beyond its last it lives."""
CALLS_OF_AN_AGENT = 300
"""From the commit until its shards have been started, stopped and forgotten."""


def points(count: int, *, every: int) -> list[object]:
    """Each call, but most of them not in every run: one is much like the next."""
    rest = pytest.mark.long("an apply and an agent that die at each single call to the world")
    return [
        pytest.param(call) if call % every == 1 else pytest.param(call, marks=rest)
        for call in range(1, count + 1)
    ]


def lives_through(*events: Event) -> None:
    ran = play(History(seed=1, start=START, events=(*SERVES, *events), allow_prune=True))
    if ran.violations:
        pytest.fail(ran.story(), pytrace=False)


@pytest.mark.parametrize("call", points(CALLS_OF_AN_APPLY, every=6))
def test_an_apply_that_dies_there_is_finished_by_the_next(call: int) -> None:
    lives_through(Event(kind="apply", calls=call))


@pytest.mark.parametrize("call", points(CALLS_OF_AN_AGENT, every=25))
@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_dies_there_loses_nothing(node: int, call: int) -> None:
    lives_through(Event(kind="crash agent", node=node, calls=call), WAITS)
