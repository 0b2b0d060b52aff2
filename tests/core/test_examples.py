"""Every shipped example, planned: offline where its manifests tell what its machines are, else on such machines."""

import pytest

from llmgw.core.show import render
from llmgw.model.facts import Interface
from llmgw.model.plan import StepKind
from llmgw.model.report import Observed
from tests.core.builders import NodeState, facts, observed
from tests.core.examples import EXAMPLES, NOBODY_ASKED, planned

NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


def box(name: str, address: str) -> NodeState:
    """Without a GPU."""
    return NodeState(name, facts(name, gpus=0, interfaces=(Interface(name="eth0", addresses=(address,)),)))


MACHINES: dict[str, Observed] = {
    "ci": observed(box("here", "127.0.0.1")),
    "cron": observed(box("here", "127.0.0.1")),
    "monitoring": observed(box("here", "127.0.0.1")),
    "systemd": observed(box("gpu01", "10.0.0.11")),
    "two-nodes-ssh": observed(box("gpu01", "10.0.0.11"), box("gpu02", "10.0.0.12")),
}


@pytest.mark.parametrize("example", NAMES)
def test_every_model_of_an_example_finds_its_place(example: str) -> None:
    made = planned(example, seen=MACHINES.get(example, NOBODY_ASKED))
    asked = {change.model for change in made.changes if change.model}
    started = {
        step.launch.model for step in made.steps if step.kind is StepKind.START and step.launch is not None
    }
    assert asked, example
    assert started == asked, render.plan_text(made)
    assert made.blocked == (), render.plan_text(made)
