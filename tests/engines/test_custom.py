"""A custom engine: what its command may leave open, and what is refused before it could start wrongly."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.engines import placeholders
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import LATE_PATTERN, LaunchSpec
from llmgw.model.manifest import (
    Adapter,
    Ask,
    Custom,
    Engine,
    Gpus,
    InFlight,
    Parallel,
    ProfileSpec,
    Source,
)
from tests.engines.cases import CPU, SIM, SMOLLM, model
from tests.engines.machines import l40s_box, no_gpu, on
from tests.engines.matrix import DIRECTORY

CUSTOM_ADAPTER = ADAPTERS["custom"]
PLAIN = Custom(command=("/opt/serve", "--at", "${host}:${port}"), env={"KEY": "${key}"})


def custom(**fields: Any) -> Custom:
    plain = {name: getattr(PLAIN, name) for name in ("command", "env")}
    return Custom(**{**plain, **fields})


def a_model(of: dict[str, Any] | None = None, settings: Custom | None = PLAIN, **fields: Any) -> DesiredModel:
    profile = ProfileSpec(**{"engine": Engine(name="custom"), "gpus": CPU, "custom": settings, **fields})
    return model(profile, DIRECTORY, **(of or {}))


def launched(of: DesiredModel) -> tuple[LaunchSpec, ...]:
    return CUSTOM_ADAPTER.launch(on(no_gpu(2) if of.profile.gpus.per_node == 0 else l40s_box(), of))


def test_a_plain_command_is_fine_and_warns_of_nothing() -> None:
    assert CUSTOM_ADAPTER.validate(a_model()) == ()
    assert CUSTOM_ADAPTER.warnings(a_model()) == ()


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("spec.custom: the engine custom", {"settings": None}),
    ("spec.custom.command[0]: ${prot}", {"settings": custom(command=("${prot}${port}",))}),
    ("spec.custom.command[0]: ${port.2}", {"settings": custom(command=("${port}${port.2}",))}),
    ("spec.custom.command[1]: $ stands", {"settings": custom(command=("${port}", "5$"))}),
    ("spec.custom.command[1]: ${secret:X}", {"settings": custom(command=("${port}", "${secret:X}"))}),
    ("spec.custom.env.A: ${nope}", {"settings": custom(env={"A": "${nope}"})}),
    ("spec.custom.command[0]: ${engine} stands", {"settings": custom(command=("${engine}/x", "${port}"))}),
    ("spec.custom.command[1]: ${leader} is about", {"settings": custom(command=("${port}", "${leader}"))}),
    ("spec.custom.command[1]: 'a\\x07'", {"settings": custom(command=("${port}", "a\x07"))}),
    ("spec.custom.command: nothing tells", {"settings": custom(command=("/opt/serve",))}),
    ("spec.custom.worker: spec.nodes is 1", {"settings": custom(worker=("/opt/work",))}),
    ("spec.custom.worker: spec.nodes is 2", {"nodes": 2}),
    ("spec.custom.env.CUDA_VISIBLE_DEVICES", {"settings": custom(env={"CUDA_VISIBLE_DEVICES": "0"})}),
    ("spec.env.KEY", {"env": {"KEY": "mine"}}),
    ("spec.engine.version: nothing says", {"engine": Engine(name="custom", version="1")}),
    ("spec.engine.version: it names", {"settings": custom(packages=("a==1",))}),
    (
        "spec.custom.packages[0]: 'a>=1'",
        {"engine": Engine(name="custom", version="1"), "settings": custom(packages=("a>=1",))},
    ),
    (
        "spec.custom.packages: engine.path",
        {"engine": Engine(name="custom", path="/opt/x"), "settings": custom(packages=("a==1",))},
    ),
    ("spec.parallel", {"parallel": Parallel(tensor=2)}),
    ("spec.maxModelLen", {"max_model_len": 5}),
    ("spec.launch", {"launch": "ray"}),
    ("spec.adapters", {"of": {"adapters": (Adapter(name="a", source=Source(path="/a")),)}}),
]


@pytest.mark.parametrize(("begins", "fields"), REFUSED, ids=[begins[:60] for begins, _ in REFUSED])
def test_what_would_be_ignored_or_stand_for_nothing_is_refused(begins: str, fields: dict[str, Any]) -> None:
    (found,) = CUSTOM_ADAPTER.validate(a_model(**fields))
    assert found.what.startswith(begins)
    assert found.instead


def test_only_a_custom_engine_is_told_by_such_settings() -> None:
    of = model(ProfileSpec(engine=SIM, gpus=CPU, custom=PLAIN))
    (found,) = ADAPTERS["sim"].validate(of)
    assert found.what.startswith("spec.custom: only the engine custom")


def test_a_command_that_shows_the_key_and_an_engine_without_one_are_warned_of() -> None:
    (shown,) = CUSTOM_ADAPTER.warnings(a_model(settings=custom(command=("x", "${port}", "${key}"))))
    assert "can read the key" in shown.what
    (without,) = CUSTOM_ADAPTER.warnings(a_model(settings=custom(env={})))
    assert "told no key" in without.what


text = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)


@given(word=text, served=st.from_regex(r"[a-z$\{\}]{1,8}", fullmatch=True))
def test_what_is_filled_in_never_becomes_a_placeholder_itself(word: str, served: str) -> None:
    escaped = word.replace("$", "$$")
    filled = placeholders.fill(f"{escaped}|${{servedName}}", {"servedName": served})
    assert LATE_PATTERN.sub(lambda found: "$" if found[0] == "$$" else "late", filled) == f"{word}|{served}"


def test_peoples_arguments_come_last_and_as_they_wrote_them() -> None:
    (spec,) = launched(a_model({"args": ("--b=${port}",)}, args=("--a", "$5")))
    assert spec.processes[0].argv == ("/opt/serve", "--at", "10.0.0.1:18000", "--a", "$$5", "--b=$${port}")


def test_a_variable_with_the_key_is_nobody_elses_and_the_others_are_defaults() -> None:
    of = a_model(
        settings=custom(env={"KEY": "Bearer ${key}", "LEVEL": "info", "AT": "${port}"}),
        env={"LEVEL": "debug"},
    )
    (spec,) = launched(of)
    env = spec.processes[0].env
    assert (env["KEY"], env["LEVEL"], env["AT"]) == ("Bearer ${key}", "debug", "18000")


def test_weights_that_no_command_names_are_neither_fetched_nor_waited_for() -> None:
    of = model(a_model().profile, SMOLLM)
    assert CUSTOM_ADAPTER.fetch(of, on(no_gpu(), of).pip) is None
    (spec,) = launched(a_model())
    assert spec.weights_path is None
    named = a_model(settings=custom(command=("x", "${weights}", "${port}")))
    assert launched(named)[0].weights_path == "/models/llama-70b"


def test_a_rank_waits_for_whom_the_profile_says() -> None:
    worker = ("/opt/work", "${port}", "${leader}")
    for who, waiting in (("leader", 1), ("workers", 0), ("none", None)):
        specs = launched(a_model(settings=custom(worker=worker, wait_for=who), nodes=2))
        assert [spec.rank for spec in specs if spec.processes[0].wait_for] == (
            [] if waiting is None else [waiting]
        )
    (leader, _) = launched(a_model(settings=custom(worker=worker, wait_for="workers"), nodes=2))
    assert leader.processes[0].wait_for is not None
    assert leader.processes[0].wait_for.host == "10.0.0.2"


def test_a_leader_of_several_workers_starts_when_all_of_them_listen() -> None:
    worker = ("/opt/work", "${port}", "${leader}")
    of = a_model(settings=custom(worker=worker, wait_for="workers"), nodes=3)
    waits = [spec.processes[0].wait_for for spec in CUSTOM_ADAPTER.launch(on(no_gpu(3), of))]
    assert [wait and wait.host for wait in waits] == ["10.0.0.3", None, "10.0.0.2"]


def test_readiness_is_what_the_profile_says_it_is() -> None:
    asked = custom(
        api="none",
        health="/up",
        token=Ask(path="/gen", body="{}", contains="ok"),
        in_flight=InFlight(names=("busy",)),
    )
    (spec,) = launched(a_model(settings=asked))
    probes = spec.probes
    assert [probe.path for probe in probes.ready] == ["/up"]
    assert probes.token is not None
    assert (probes.token.method, probes.token.path, probes.token.contains) == ("POST", "/gen", "ok")
    assert probes.in_flight is not None
    assert probes.in_flight.names == ("busy",)
    (plain,) = launched(a_model())
    assert [probe.path for probe in plain.probes.ready] == ["/health", "/v1/models"]
    assert plain.probes.in_flight is None


def test_packages_are_an_installation_of_their_own() -> None:
    of = a_model(
        engine=Engine(name="custom", version="1"),
        settings=custom(packages=("a==1",), command=("${engine}/bin/a", "${port}")),
        gpus=Gpus(per_node=1),
    )
    assert CUSTOM_ADAPTER.validate(of) == ()
    placed = on(l40s_box(), of)
    install = CUSTOM_ADAPTER.install(of, placed.nodes["box01"], placed.pip)
    assert install is not None
    assert (install.requirements, install.programs) == (("a==1",), ())
    (spec,) = CUSTOM_ADAPTER.launch(placed)
    assert spec.engine == install.digest
    assert spec.processes[0].env["PATH"].startswith("${engine}/bin:")
