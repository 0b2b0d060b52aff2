"""What holds for every launch: late values are the known ones, people's text arrives as written, secrets stay out,
and what a shard stands on is what its jobs make."""

import re
from collections.abc import Mapping
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.adapter import Placed, RankNetwork, Variable
from llmgw.engines.registry import ADAPTERS
from llmgw.model.launch import ADAPTER, LATE_PATTERN, LATE_VALUES, LaunchSpec
from llmgw.model.manifest import Engine, Gpus, NodeSpec, Pip, Secret
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.engines.cases import CPU, LLAMA, ON_NODE, SIM, SMOLLM, cases, model, placed, profile
from tests.engines.matrix import matrix


def launched(of: Placed) -> tuple[LaunchSpec, ...]:
    return ADAPTERS[of.model.profile.engine.name].launch(of)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Late values as the agent fills them in."""
    return LATE_PATTERN.sub(lambda found: "$" if found[0] == "$$" else values[found[1]], text)


CASES = {**cases(), **matrix()}
every_case = pytest.mark.parametrize("name", sorted(CASES))


@every_case
def test_late_values_are_known_ones_and_secrets_are_announced(name: str) -> None:
    of = CASES[name]
    adapters = {f"{ADAPTER}{adapter.name}" for adapter in of.model.spec.adapters}
    for spec in launched(of):
        for process in spec.processes:
            found: set[str] = set()
            for text in (*process.argv, *process.env.values(), *(file.content for file in process.files)):
                found |= {match[1] for match in LATE_PATTERN.finditer(text) if match[0] != "$$"}
            secrets = {value.removeprefix("secret:") for value in found if value.startswith("secret:")}
            assert secrets == set(spec.secrets)
            assert found <= {*LATE_VALUES, *adapters, *(f"secret:{secret}" for secret in secrets)}
            assert not any("secret" in word for word in process.argv)


@every_case
def test_a_key_on_a_command_line_is_warned_of_in_the_plan(name: str) -> None:
    of = CASES[name]
    shown = any(
        "${key}" in word for spec in launched(of) for process in spec.processes for word in process.argv
    )
    warnings = ADAPTERS[of.model.profile.engine.name].warnings(of.model)
    assert shown == any("every user of the node can read" in warning.what for warning in warnings)


@every_case
def test_a_launch_survives_the_wire(name: str) -> None:
    for spec in launched(CASES[name]):
        assert codec.loads(LaunchSpec, codec.dumps(spec), strict=True) == spec


@every_case
def test_a_shard_expects_exactly_what_its_jobs_make(name: str) -> None:
    of = CASES[name]
    adapter = ADAPTERS[of.model.profile.engine.name]
    for rank, spec in enumerate(adapter.launch(of)):
        install = adapter.install(of.model, of.nodes[of.ranks[rank].node], of.pip)
        fetch = adapter.fetch(of.model, of.pip)
        loras = adapter.lora_fetches(of.model, of.pip) if spec.lora and spec.lora.calls is None else ()
        assert spec.needs == tuple(job.job for job in (install, fetch, *loras) if job)
        assert spec.engine == spec.expect.engine == (install.digest if install else None)
        assert spec.weights == spec.expect.weights == (fetch.digest if fetch else None)
        words = [word for process in spec.processes for word in process.argv]
        assert spec.engine or spec.engine_path or not any("${engine}" in word for word in words)
        # What a rank that only joins is asked to compute on is named by the leader.
        used = any("${weights}" in word for word in words) or "start" in words
        assert used == (spec.weights is not None or spec.weights_path is not None)


text = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)


@given(word=text, value=text)
def test_what_people_write_arrives_as_written(word: str, value: str) -> None:
    word = f"--x={word}"
    for engine in (LLAMA, SIM):
        of = placed(model(profile(engine, gpus=CPU, args=(word,)), env={"VALUE": value}))
        (spec,) = launched(of)
        assert filled(spec.processes[0].argv[-1], {}) == word
        assert filled(spec.processes[0].env["VALUE"], {}) == value


def test_the_nearest_to_the_model_wins() -> None:
    node = NodeSpec(env={"A": "node", "B": "node", "C": "node", "LANG": "C"})
    of = model(profile(env={"A": "profile", "B": "profile"}), env={"A": "model"})
    (spec,) = launched(placed(of, node=node))
    env = spec.processes[0].env
    assert (env["A"], env["B"], env["C"], env["LANG"]) == ("model", "profile", "node", "C")


def test_what_the_network_asks_for_loses_against_people_and_wins_against_the_adapter() -> None:
    told = {
        name: Variable(value="network$", reason="found")
        for name in ("LANG", "NODE", "PROFILE", "MODEL", "CUDA_VISIBLE_DEVICES")
    }
    network = {0: RankNetwork(environment=told, gids={"mlx5_0:1:3": "::1"}, interface_address="10.0.0.9")}
    of = model(profile(SIM, gpus=CPU, env={"PROFILE": "profile"}), env={"MODEL": "model"})
    on = replace(placed(of, node=NodeSpec(env={"NODE": "node"}), address="10.0.0.11"), network=network)
    (spec,) = launched(on)
    env = spec.processes[0].env
    assert (env["LANG"], env["NODE"], env["PROFILE"], env["MODEL"]) == (
        "network$$",
        "node",
        "profile",
        "model",
    )
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert (spec.expect.gids, spec.expect.interface_address) == ({"mlx5_0:1:3": "::1"}, "10.0.0.9")


def test_a_node_cannot_override_the_key_or_the_gpus() -> None:
    node = NodeSpec(env={"LLAMA_API_KEY": "mine", "CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "x"})
    (spec,) = launched(placed(model(profile(gpus=CPU)), node=node))
    env = spec.processes[0].env
    assert env["LLAMA_API_KEY"] == "${key}"
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("", "PCI_BUS_ID")


def test_secrets_are_referred_to_by_their_variable_and_only_those_that_win() -> None:
    node = NodeSpec(env={"TOKEN": Secret(from_env="NODE"), "PLAIN": Secret(from_env="X")})
    of = model(profile(env={"TOKEN": Secret(from_file="f")}), env={"PLAIN": "text"})
    (spec,) = launched(placed(of, node=node))
    assert spec.secrets == ("TOKEN",)
    assert spec.processes[0].env["PLAIN"] == "text"


def test_served_names_are_found_whole_in_the_list_of_models() -> None:
    (spec,) = launched(placed(model(profile(gpus=CPU), served_name="chat")))
    needle = spec.probes.ready[1].contains
    assert needle
    assert needle not in '{"data":[{"id":"chat-large"}]}'
    assert needle in '{"data": [{"id": "chat"}]}'


def test_a_gang_meets_at_its_leader_and_only_the_leader_serves() -> None:
    leader, worker = launched(cases()["sim-gang"])
    assert leader.processes[0].wait_for is None
    wait = worker.processes[0].wait_for
    assert wait is not None
    assert (wait.host, wait.port) == (leader.address, leader.claims.ports[1])
    assert leader.probes.port == leader.claims.ports[0]
    assert worker.probes.port is None
    assert worker.leader_address == leader.leader_address
    assert not leader.restart.local


def test_a_stated_need_is_taken_and_an_unstated_one_is_said() -> None:
    adapter = ADAPTERS["llamacpp"]
    share = adapter.need(cases()["llamacpp-share"].model)
    assert share.gpu_memory == 12 * 2**30
    assert "not stated" in share.sum
    cpu = adapter.need(cases()["llamacpp-cpu"].model)
    assert (cpu.gpu_memory, cpu.memory, cpu.ports) == (0, 2 * 2**30, 1)
    gang = ADAPTERS["sim"].need(cases()["sim-gang"].model)
    assert (gang.ports, gang.leader_ports) == (1, 1), "the ranks meet at a port of the leader's node alone"


def digest(engine: Engine = LLAMA, node: NodeSpec | None = None, pip: Pip | None = None) -> str:
    of = placed(model(profile(engine)), node=node, pip=pip)
    install = ADAPTERS[engine.name].install(of.model, of.nodes["gpu00"], of.pip)
    assert install is not None
    assert install.job == f"install-{install.digest[:8]}"
    return install.digest


def test_another_version_python_or_index_is_another_installation() -> None:
    different = {
        digest(),
        digest(replace(LLAMA, version="2026.11.1")),
        digest(node=NodeSpec(python="/usr/bin/python3.12")),
        digest(pip=Pip(index_url="https://wheels.example/cuda")),
        digest(pip=Pip(wheel_dir="/srv/wheels")),
        digest(SIM),
    }
    assert len(different) == 6
    assert digest() == digest(node=NodeSpec(env={"A": "b"}))


def test_an_engine_without_packages_does_not_care_where_they_come_from() -> None:
    assert digest(SIM) == digest(SIM, pip=Pip(index_url="https://wheels.example/cuda"))


def test_models_with_one_source_share_their_weights() -> None:
    adapter = ADAPTERS["llamacpp"]
    first = adapter.fetch(model(profile(), SMOLLM), Pip())
    second = adapter.fetch(model(profile(gpus=Gpus(per_node=2)), SMOLLM, served_name="other"), Pip())
    assert first is not None
    assert first == second
    assert re.fullmatch(r"fetch-[0-9a-f]{8}", first.job)
    assert adapter.fetch(model(profile(), ON_NODE), Pip()) is None


def test_every_adapter_is_registered_under_a_name_that_manifests_may_use() -> None:
    allowed = get_args(Engine.__annotations__["name"])
    assert all(name == adapter.name and name in allowed for name, adapter in ADAPTERS.items())
