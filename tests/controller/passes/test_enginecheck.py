"""Engines are asked node by node, none hides another, and each answer counts for the models that need it."""

import asyncio
from typing import Any

import pytest

from llmgw.controller.passes import helps
from llmgw.controller.passes.enginecheck import EngineCheck, chosen
from llmgw.controller.passes.links import Links
from llmgw.core.adapter import NodeContext
from llmgw.core.enginecheck.result import Checked, lines
from llmgw.core.enginecheck.verdict import NO_HELP, UNTIL_INSTALLED
from llmgw.engines.registry import ADAPTERS
from llmgw.engines.widest import launches, shapes
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.facts import EngineFact, Facts
from llmgw.model.launch import LaunchSpec
from llmgw.model.manifest import Engine, FleetSpec, ModelSpec, Pip, PlacementRules, ProfileSpec, Source
from llmgw.model.problems import AgentError, RetryError, StalledError
from llmgw.model.report import ComputesOn, NodeObservation, Observed, Reach, Report, ShardReport
from llmgw.model.struct import replace
from llmgw.wire.messages import METHOD_NOT_FOUND, Helped, HelpParams, Tokened
from tests.controller.passes.doubles import Script, ScriptedTransport, node, report, transports
from tests.controller.passes.pretend import World
from tests.core.builders import model as built
from tests.core.builders import shard_report

SIM = ProfileSpec(engine=Engine(name="sim", version="1"))
AT_PATH = ProfileSpec(engine=Engine(name="sim", path="/opt/sim"))
FLAGS = (
    "--adapter",
    "--host",
    "--max-adapter-rank",
    "--max-adapters",
    "--model",
    "--port",
    "--pretend",
    "--rank",
    "--ranks",
    "--rendezvous",
    "--served-name",
)


def using(profile: ProfileSpec, name: str = "chat", *args: str, **spec: Any) -> DesiredModel:
    of = built(name)
    return replace(
        of,
        profile=profile,
        spec=ModelSpec(source=Source(path="/w"), profile=of.profile_name, args=args, **spec),
    )


def engine(of: DesiredModel, flags: tuple[str, ...] | None = FLAGS, **more: str) -> EngineFact:
    path = of.profile.engine.path
    spec = ADAPTERS["sim"].install(of, NodeContext(name="a", spec=node("a").spec, facts=None), Pip())
    digest, version = (spec.digest, "1") if spec is not None else ("", "")
    return EngineFact(name="sim", version=version, digest=digest, path=path or "/e", flags=flags, **more)


def says(name: str, *engines: EngineFact, shards: tuple[ShardReport, ...] = (), **answers: Any) -> Script:
    told: Report = replace(report(name), facts=Facts(engines=engines), shards=shards)
    return Script(name, report=(told,), **answers)


def wanted(*models: DesiredModel, nodes: tuple[str, ...]) -> Desired:
    return Desired(
        commit=None,
        fleet_name="lab",
        fleet=FleetSpec(),
        nodes={name: node(name) for name in nodes},
        models={model.name: model for model in models},
    )


def checked(*models: DesiredModel, scripts: tuple[Script, ...], token: bool = False) -> tuple[Checked, ...]:
    desired = wanted(*models, nodes=tuple(script.name for script in scripts))

    async def main() -> tuple[Checked, ...]:
        fleet = replace(World().fleet(), adapters=ADAPTERS)
        links = Links(transports(ScriptedTransport(*scripts)))
        check = EngineCheck(fleet=fleet, desired=desired, links=links, token=token, ask_again=0.01)
        return await check.of(chosen(desired, None), tuple(desired.nodes))

    return asyncio.run(main())


def text(found: Checked) -> list[str]:
    return [f"{sign} {line}".strip() for sign, line in lines(found)]


def test_an_engine_that_knows_every_flag_says_how_many_were_compared() -> None:
    of = using(SIM)
    (found,) = checked(of, scripts=(says("a", engine(of), help=[Helped(engine=engine(of))]),))
    assert not found.bad
    assert not found.unsure
    assert text(found) == [
        f"{of.profile_name} on a: sim 1 knows every flag ({len(FLAGS)} flags in its help, {found.asked} command lines compared)"
    ]
    assert found.asked > 5


def test_what_a_model_needs_and_what_only_another_shape_would_need_are_told_apart() -> None:
    of = using(SIM, "chat", "--load-secs", "1")
    fewer = tuple(flag for flag in FLAGS if flag != "--rendezvous")
    (found,) = checked(of, scripts=(says("a", engine(of, fewer), help=[Helped(engine=engine(of, fewer))]),))
    assert found.bad
    assert text(found) == [
        f"! {of.profile_name} on a: sim 1 does not know --load-secs, which model chat needs",
        f"~ {of.profile_name} on a: sim 1 does not know --rendezvous: only needed with nodes: 2",
    ]
    (wide,) = checked(
        using(SIM), scripts=(says("a", engine(of, fewer), help=[Helped(engine=engine(of, fewer))]),)
    )
    assert not wide.bad


def test_what_is_not_installed_is_unknown_until_it_is_and_is_not_asked() -> None:
    script = says("a")
    (found,) = checked(using(SIM), scripts=(script,))
    assert (found.untold, found.bad, found.unsure) == (UNTIL_INSTALLED, False, False)
    assert "help" not in script.methods()


def test_one_at_a_path_is_asked_until_it_has_been_read() -> None:
    of = using(AT_PATH)
    script = says("a", help=[Helped(), Helped(), Helped(engine=engine(of), devices=("CUDA0: A",))])
    (found,) = checked(of, scripts=(script,))
    assert script.methods().count("help") == 3
    asked = next(params for method, params in script.asked if method == "help")
    assert isinstance(asked, HelpParams)
    assert (asked.path, asked.digest, asked.devices) == ("/opt/sim", None, True)
    assert text(found)[-1] == "it sees: CUDA0: A"


def test_a_program_that_lies_elsewhere_is_told_with_what_to_write() -> None:
    of = using(AT_PATH)
    there = engine(of, program="/opt/sim/build/sim-engine")
    (found,) = checked(of, scripts=(says("a", help=[Helped(engine=there)]),))
    assert found.bad
    assert "write engine.path: /opt/sim/build/sim-engine" in text(found)[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (AgentError("no", code=METHOD_NOT_FOUND), "its agent can't ask engines yet: upgrade it"),
        (RetryError("the line is lost"), "the line is lost"),
        (
            Helped(engine=engine(using(SIM), None, flags_problem="its help looks truncated")),
            "unknown: its help looks truncated",
        ),
    ],
)
def test_an_engine_that_does_not_answer_hides_no_other_and_is_not_taken_for_good(
    answer: Any, why: str
) -> None:
    of = using(SIM)
    silent = says("a", engine(of, None), help=[answer])
    fine = says("b", engine(of), help=[Helped(engine=engine(of))])
    bad, good = checked(of, scripts=(silent, fine))
    assert bad.unsure
    assert why in text(bad)[0]
    assert "knows every flag" in text(good)[0]


def test_only_nodes_where_a_model_may_run_are_asked_and_an_unused_profile_is_named() -> None:
    of = using(SIM, placement=PlacementRules(nodes=("b",)))
    other = says("a", engine(of))
    (found,) = checked(of, scripts=(other, says("b", engine(of), help=[Helped(engine=engine(of))])))
    assert found.node == "b"
    assert other.methods() == []
    with pytest.raises(StalledError, match="no model uses a profile other"):
        chosen(wanted(of, nodes=("a",)), "other")


# ---- one token -------------------------------------------------------------------------------------------


def ready(of: DesiredModel, *, gpus: tuple[GpuClaim, ...] = ()) -> ShardReport:
    (spec,) = _launches(of)
    return replace(shard_report(spec, "ready"), profile=of.profile_name, claims=Claims(gpus=gpus))


def _launches(of: DesiredModel) -> tuple[LaunchSpec, ...]:
    shape = shapes(of, ADAPTERS["sim"])[0]
    there = NodeContext(name="a", spec=node("a").spec, facts=None)
    return launches(shape, ADAPTERS["sim"], there, Pip())


@pytest.mark.parametrize(
    ("answer", "gpus", "line", "bad"),
    [
        (Tokened(took=2, computes_on=ComputesOn()), 0, "in 2s, computed on the CPU", 0),
        (Tokened(took=2, computes_on=ComputesOn()), 1, "though it has GPUs", 1),
        (
            Tokened(took=2, computes_on=ComputesOn(gpus={"GPU-1": 2**30})),
            1,
            "computed on GPU-1 (1.0 GiB held)",
            0,
        ),
        (Tokened(wrong="/v1/completions answered 500"), 1, "answered 500", 1),
        (Tokened(took=2), 1, "nobody knows what", 0),
        (AgentError("it is loading", code=1005), 1, "no token: it is loading", 0),
    ],
)
def test_a_token_says_what_computed_it(answer: Any, gpus: int, line: str, bad: int) -> None:
    of = using(SIM)
    shard = ready(of, gpus=(GpuClaim(uuid="GPU-1"),) if gpus else ())
    script = says("a", engine(of), shards=(shard,), help=[Helped(engine=engine(of))], token=[answer])
    (found,) = checked(of, scripts=(script,), token=True)
    assert line in text(found)[-1]
    assert found.bad == bool(bad)


def test_without_a_ready_replica_no_token_is_asked_for() -> None:
    of = using(SIM)
    script = says("a", engine(of), help=[Helped(engine=engine(of))])
    (found,) = checked(of, scripts=(script,), token=True)
    assert "no replica of it is ready there" in text(found)[-1]
    assert "token" not in script.methods()


# ---- a pass ----------------------------------------------------------------------------------------------


def passed(of: DesiredModel, script: Script, *engines: EngineFact, reach: Reach = Reach.OK) -> None:
    seen = Observed(nodes={"a": NodeObservation(node="a", reach=reach, facts=Facts(engines=engines))})

    async def main() -> None:
        fleet = replace(World().fleet(), adapters=ADAPTERS)
        links = Links(transports(ScriptedTransport(script)))
        await helps.have_read(fleet, wanted(of, nodes=("a",)), seen, links)

    asyncio.run(main())


def test_a_pass_has_an_engine_at_a_path_read_once_and_never_waits_for_it() -> None:
    script = says("a", help=[Helped()])
    passed(using(AT_PATH), script)
    assert script.methods() == ["help"]
    known = says("a", help=[Helped()])
    passed(using(AT_PATH), known, engine(using(AT_PATH), None, flags_problem="it is broken"))
    assert known.methods() == []


@pytest.mark.parametrize("of", [using(SIM), using(AT_PATH, placement=PlacementRules(pool="other"))])
def test_a_pass_asks_nothing_else(of: DesiredModel) -> None:
    script = says("a")
    passed(of, script)
    assert script.methods() == []


def test_a_pass_goes_on_when_nobody_answers() -> None:
    script = says("a", help=[RetryError("the line is lost")])
    passed(using(AT_PATH), script)
    passed(using(AT_PATH), script, reach=Reach.UNREACHABLE)
    assert script.methods() == ["help"]


def test_a_command_of_somebodys_own_can_not_be_asked_and_is_no_failure() -> None:
    """A fleet with one custom engine made every engine-check end with 5."""
    mine = Checked(profile="p", node="a", engine="custom", untold=NO_HELP)
    assert not mine.unsure
    assert not mine.bad
    assert text(mine) == [f"? p on a: custom: {NO_HELP}"]
