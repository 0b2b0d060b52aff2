"""A flag that a node's engine does not know is refused before anything starts, with what is near it, and is not tried."""

import pytest

from llmgw.core.adapter import NodeContext
from llmgw.core.planner import plan
from llmgw.core.show import render
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.facts import EngineFact
from llmgw.model.manifest import Engine, Pip, Source
from llmgw.model.plan import Action, Change, Plan, StepKind
from llmgw.model.struct import replace
from tests.core.builders import NOW, NodeState, desired, empty_record, facts, model, node, observed, profile
from tests.core.fleets import OPTIONS

FLAGS = ("--host", "--load-seconds", "--model", "--port", "--pretend", "--served-name")


def chat(*args: str, path: str | None = None) -> DesiredModel:
    engine = Engine(name="sim", path=path) if path else Engine(name="sim", version="1")
    return model("chat", replace(profile(gpus=1), engine=engine, args=args), source=Source(path="/w"))


def installed(of: DesiredModel, flags: tuple[str, ...] | None, **more: str) -> EngineFact:
    there = NodeContext(name="gpu01", spec=node("gpu01").spec, facts=None)
    spec = ADAPTERS["sim"].install(of, there, Pip())
    path = of.profile.engine.path
    if path is not None:
        return EngineFact(name="sim", version="", digest="", path=path, flags=flags, **more)
    assert spec is not None
    return EngineFact(
        name="sim", version="1", digest=spec.digest, path="/srv/engines/sim", flags=flags, **more
    )


def planned(of: DesiredModel, *engines: EngineFact) -> Plan:
    state = NodeState("gpu01", replace(facts("gpu01", gpus=1), engines=engines))
    wanted = desired([node("gpu01")], [of])
    return plan(wanted, empty_record(), observed(state), ADAPTERS, now=NOW, options=OPTIONS)


def change(made: Plan) -> Change:
    (found,) = [each for each in made.changes if each.model]
    return found


def starts(made: Plan) -> bool:
    return any(step.kind is StepKind.START for step in made.steps)


def test_an_unknown_flag_is_refused_with_engine_node_and_the_nearest_flag() -> None:
    of = chat("--load-secs", "1")
    made = planned(of, installed(of, FLAGS))
    found = change(made)
    assert (found.action, found.keyword) == (Action.BLOCKED, "unknown-flag")
    assert found.reason == "sim 1 on gpu01 does not know --load-secs (nearest: --load-seconds)"
    assert not starts(made)
    assert "! model/chat/0  unknown-flag" in render.plan_text(made)


def test_flags_that_the_engine_knows_are_started_without_a_word() -> None:
    of = chat("--load-seconds", "1")
    made = planned(of, installed(of, FLAGS))
    assert starts(made)
    assert "knows every flag" not in render.plan_text(made)


def test_before_the_engine_is_there_the_plan_says_so_and_the_node_looks_once_more() -> None:
    made = planned(chat("--load-secs", "1"))
    assert starts(made)
    assert "whether sim 1 on gpu01 knows every flag is unknown until installed" in render.plan_text(made)
    (launch,) = [step.launch for step in made.steps if step.launch is not None]
    assert launch.expect.flags == ("--host", "--port", "--served-name", "--model", "--load-secs")


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("", "unknown until its help is read"),
        ("its help looks truncated: it names 2 flags, and not --port", "unknown: its help looks truncated"),
    ],
)
def test_an_engine_that_told_no_flags_is_started_and_the_plan_says_why_nobody_knows(
    problem: str, told: str
) -> None:
    of = chat("--load-secs", "1")
    made = planned(of, installed(of, None, flags_problem=problem))
    assert starts(made)
    assert told in render.plan_text(made)


def test_an_engine_at_a_path_is_compared_too_once_it_was_asked() -> None:
    of = chat("--load-secs", "1", path="/opt/sim")
    assert "unknown until its help is read" in render.plan_text(planned(of))
    assert change(planned(of, installed(of, FLAGS))).keyword == "unknown-flag"


def test_a_program_that_lies_elsewhere_below_its_path_is_refused_with_what_to_write() -> None:
    of = chat(path="/opt/sim")
    made = planned(of, installed(of, FLAGS, program="/opt/sim/build/bin/sim-engine"))
    assert change(made).reason == (
        "sim on gpu01 is not where it would be started, but at /opt/sim/build/bin/sim-engine: "
        "write engine.path: /opt/sim/build/bin/sim-engine"
    )
