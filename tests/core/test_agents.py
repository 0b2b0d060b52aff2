"""Which agents are replaced: older ones, and over SSH those made of other files; never newer ones."""

import pytest

from llmgw.core.planner import plan
from llmgw.model.manifest import AgentSettings, FleetSpec
from llmgw.model.plan import Plan, StepKind
from llmgw.model.problems import StalledError
from llmgw.model.report import NodeObservation, Observed
from llmgw.model.struct import replace
from tests.core.builders import ADAPTERS, NOW, NodeState, desired, empty_record, facts, node, observed
from tests.core.fleets import OPTIONS

MINE, THEIRS = "0123456789ab", "ba9876543210"


def made(
    *, agent: str, asked: str | None = None, build: str = "", ours: str = "0.5.0", transport: str = "ssh"
) -> Plan:
    """``build`` of the agent that answers; this llmgw is ``ours`` and of the build MINE."""
    seen = observed(NodeState("n1", facts("n1", gpus=1)))
    wanted = desired([node("n1", transport=transport)], fleet=FleetSpec(agent=AgentSettings(version=asked)))
    options = replace(OPTIONS, agent_version=ours, agent_build=MINE)
    told = Observed(nodes={name: _says(it, agent, build) for name, it in seen.nodes.items()})
    return plan(wanted, empty_record(), told, ADAPTERS, now=NOW, options=options)


def _says(seen: NodeObservation, version: str, build: str) -> NodeObservation:
    assert seen.report is not None
    info = replace(seen.report.agent, version=version, build=build)
    return replace(seen, report=replace(seen.report, agent=info))


def upgraded(found: Plan) -> str:
    """The keyword of the change that replaces the agent; empty: it stays."""
    bootstraps = [step for step in found.steps if step.kind is StepKind.BOOTSTRAP]
    keywords = [each.keyword for each in found.changes if each.keyword.startswith("agent-")]
    assert len(bootstraps) == len(keywords)
    return "".join(keywords)


@pytest.mark.parametrize(
    ("agent", "asked", "build", "keyword"),
    [
        ("0.4.0", None, MINE, "agent-older"),
        ("0.5.0", None, MINE, ""),
        ("0.6.0", None, THEIRS, ""),  # never an implicit downgrade
        ("0.4.0", "0.4.0", THEIRS, ""),  # the fleet asks for no more
        ("0.3.9", "0.4.0", MINE, "agent-older"),
        ("0.5.0", "0.4.0", THEIRS, ""),
        ("0.5.0", None, THEIRS, "agent-build"),
        ("0.5.0", None, "", "agent-build"),  # from before agents told it
        ("0.5.0", "0.5.0", THEIRS, "agent-build"),
    ],
)
def test_an_agent_is_replaced_when_it_is_older_than_asked_or_of_another_build(
    agent: str, asked: str | None, build: str, keyword: str
) -> None:
    assert upgraded(made(agent=agent, asked=asked, build=build)) == keyword


def test_what_an_older_agent_is_upgraded_to_is_said() -> None:
    (change,) = [it for it in made(agent="0.3.0", asked="0.4.0").changes if it.keyword == "agent-older"]
    assert change.reason == "agent 0.3.0 is older than 0.4.0, upgraded to 0.5.0, engines stay as they are"


def test_an_agent_of_this_machine_runs_from_our_own_files() -> None:
    assert upgraded(made(agent="0.5.0", build="", transport="local")) == ""


def test_a_fleet_that_asks_for_newer_agents_than_this_llmgw_brings_is_refused() -> None:
    with pytest.raises(StalledError, match=r"agents of version 0\.6\.0 or newer .* this llmgw is 0\.5\.0"):
        made(agent="0.5.0", asked="0.6.0")
