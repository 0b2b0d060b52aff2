"""Plans with the engines that exist: what a start stands on is ordered before it, and what it claims is what was placed."""

from llmgw.core.planner import plan
from llmgw.core.show import render
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import Engine, PipFile, ProfileSpec, Size, Source, Value
from llmgw.model.plan import Plan, Step, StepKind
from llmgw.model.struct import replace
from tests.core.builders import (
    NOW,
    NodeState,
    desired,
    empty_record,
    facts,
    model,
    node,
    observed,
    profile,
)
from tests.core.fleets import OPTIONS

WEIGHTS = Source(pip=PipFile(requirement="llm-tiny==1.0", file="tiny/model.gguf", sha256="a" * 64))


def on(engine: str, runs: ProfileSpec, **spec: object) -> DesiredModel:
    version = "2026.10.11549" if engine == "llamacpp" else "1"
    runs = replace(runs, engine=Engine(name=engine, version=version))  # type: ignore[arg-type] # one of the known
    return model(engine, runs, source=WEIGHTS, **spec)


def planned(*models: DesiredModel) -> Plan:
    state = NodeState("gpu01", facts("gpu01", gpus=2))
    wanted = desired([node("gpu01")], models)
    return plan(wanted, empty_record(), observed(state), ADAPTERS, now=NOW, options=OPTIONS)


def starts(made: Plan) -> list[Step]:
    return [step for step in made.steps if step.kind is StepKind.START]


def test_jobs_that_a_start_needs_are_ordered_before_it() -> None:
    made = planned(on("llamacpp", profile(gpus=0, memory=Size(2**30))), on("sim", profile(gpus=1)))
    steps = {step.id: step for step in made.steps}
    assert len(starts(made)) == 2
    for start in starts(made):
        assert start.launch is not None
        before = [steps[name] for name in start.after]
        ordered = {job.job for step in before if (job := step.install or step.fetch) is not None}
        assert set(start.launch.needs) == ordered
        assert all(step.node == start.node for step in before)


def test_a_start_claims_exactly_what_was_placed() -> None:
    made = planned(on("sim", profile(gpus=2)))
    (start,), (change,) = starts(made), [each for each in made.changes if each.model]
    assert start.launch is not None
    assert change.placement is not None
    (rank,) = change.placement.ranks
    assert (start.launch.claims.gpus, start.launch.claims.ports) == (rank.gpus, rank.ports)
    assert start.launch.address == rank.address


def test_commands_show_late_values_and_no_secret() -> None:
    env: dict[str, Value] = {"TOKEN_PLACE": "here"}
    text = render.plan_text(planned(on("sim", profile(gpus=1), env=env)), show_commands=True)
    assert "SIM_API_KEY=${key}" in text
    assert "${engine}/bin/sim-engine" in text
    assert "TOKEN_PLACE=here" in text
