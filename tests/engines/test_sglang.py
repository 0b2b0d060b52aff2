"""SGLang: what it refuses, how it is told its key, and when it counts as ready."""

from typing import Any

import pytest

from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import LaunchSpec
from llmgw.model.manifest import GIB, Duration, Engine, Gpus, Parallel, ProfileSpec, Size, Timeouts
from llmgw.model.struct import replace
from tests.engines.cases import CPU, model
from tests.engines.machines import ib_pair, l40s_box, on
from tests.engines.matrix import DIRECTORY, LORAS, SGLANG

SGLANG_ADAPTER = ADAPTERS["sglang"]
TWO_NODES: dict[str, Any] = {"gpus": Gpus(per_node=8), "nodes": 2, "parallel": Parallel(tensor=16)}


def a_model(of: dict[str, Any] | None = None, **fields: Any) -> DesiredModel:
    return model(ProfileSpec(**{"engine": SGLANG, **fields}), DIRECTORY, **(of or {}))


def launched(of: DesiredModel) -> tuple[LaunchSpec, ...]:
    return SGLANG_ADAPTER.launch(on(ib_pair() if of.profile.nodes > 1 else l40s_box(), of))


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("spec.engine.version: sglang needs", {"engine": Engine(name="sglang")}),
    ("spec.parallel: tensor 1 x pipeline 1 = 1 GPUs", {"gpus": Gpus(per_node=2)}),
    ("spec.launch: SGLang's ranks meet by themselves", {**TWO_NODES, "launch": "ray"}),
    ("spec.parallel.data: SGLang keeps copies", {**TWO_NODES, "parallel": Parallel(tensor=8, data=2)}),
    ("spec.gpus.share", {"gpus": Gpus(share=Size(GIB))}),
    ("spec.gpus.perNode: SGLang's packages", {"gpus": CPU}),
    ("spec.args[0]: llmgw decides about --tp, which stands for --tp-size,", {"args": ("--tp", "2")}),
    ("spec.args[0]: llmgw decides about --admin-api-key", {"args": ("--admin-api-key", "x")}),
    ("spec.args[0]: llmgw decides about --mem-fraction-static", {"args": ("--mem-fraction-static=0.8",)}),
    ("spec.args[0]: llmgw decides about --grpc-mode itself", {"args": ("--grpc-mode",)}),
    ("spec.env.HOST_IP", {"env": {"HOST_IP": "1.2.3.4"}}),
]


@pytest.mark.parametrize(("begins", "fields"), REFUSED, ids=[begins[:60] for begins, _ in REFUSED])
def test_sglang_refuses_before_launch_what_would_fail_at_start(begins: str, fields: dict[str, Any]) -> None:
    (found,) = SGLANG_ADAPTER.validate(a_model(**fields))
    assert found.what.startswith(begins)
    assert found.instead


def test_a_name_with_the_colon_that_sglang_keeps_for_adapters_is_refused() -> None:
    (found,) = SGLANG_ADAPTER.validate(a_model({"served_name": "org/chat:v2"}))
    assert found.what.startswith("spec.servedName: SGLang refuses the colon in 'org/chat:v2'")


def test_copies_take_no_adapters_while_they_run() -> None:
    copies: dict[str, Any] = {"gpus": Gpus(per_node=2), "parallel": Parallel(data=2)}
    (found,) = SGLANG_ADAPTER.validate(a_model({"adapters": LORAS, "max_loaded_adapters": 1}, **copies))
    assert found.what.startswith("spec.maxLoadedAdapters: SGLang loads no adapters into 2 copies")
    assert SGLANG_ADAPTER.validate(a_model({"adapters": LORAS}, **copies)) == ()


def test_an_adapter_that_is_loaded_already_is_told_from_one_that_failed() -> None:
    order = SGLANG_ADAPTER.lora(a_model({"max_loaded_adapters": 1}))
    assert order is not None
    assert order.calls is not None
    said = '{"error_message":"Failed to load LoRA adapter sql because it is already loaded","success":false}'
    assert order.calls.already in said


def test_attention_data_parallel_takes_no_gpus_of_its_own_and_ports_for_its_inner_traffic() -> None:
    of = a_model(**TWO_NODES, args=("--attn-dp-size", "4"))
    assert SGLANG_ADAPTER.validate(of) == ()
    assert SGLANG_ADAPTER.need(of).leader_ports == 14
    assert SGLANG_ADAPTER.need(a_model(**TWO_NODES)).leader_ports == 1


@pytest.mark.parametrize(
    ("version", "args", "behind"),
    [
        ("0.5.23", ("--attn-dp-size", "4"), 13),
        ("0.5.23", ("--attn_dp_size=4",), 13),
        ("0.5.6", ("--enable-dp-attention",), 13),
        ("0.5.5", ("--enable-dp-attention",), 0),
        ("0.5.23", (), 0),
    ],
)
def test_ranks_wait_where_the_leader_listens_before_it_waits_for_them(
    version: str, args: tuple[str, ...], behind: int
) -> None:
    leader, worker = launched(a_model(**TWO_NODES, engine=replace(SGLANG, version=version), args=args))
    argv, wait = leader.processes[0].argv, worker.processes[0].wait_for
    meeting = int(argv[argv.index("--dist-init-addr") + 1].rpartition(":")[2])
    assert wait is not None
    assert wait.port == meeting + behind
    assert wait.port in leader.claims.ports


def test_the_key_travels_in_a_file_and_on_no_command_line() -> None:
    for spec in launched(a_model(**TWO_NODES)):
        (process,) = spec.processes
        (file,) = process.files
        assert file.content == 'api-key: "${key}"\n'
        assert process.argv[3:5] == ("--config", f"${{home}}/{file.path}")
        assert not any("${key}" in word for word in process.argv)


def test_a_version_without_such_a_file_shows_its_key_and_the_plan_says_so() -> None:
    of = a_model(engine=replace(SGLANG, version="0.5.2"))
    (process,) = launched(of)[0].processes
    assert process.files == ()
    assert process.argv[3:5] == ("--api-key", "${key}")
    assert any("every user of the node can read" in warning.what for warning in SGLANG_ADAPTER.warnings(of))


def test_only_rank_0_is_asked_and_by_the_route_that_computes_nothing() -> None:
    leader, worker = launched(a_model(**TWO_NODES))
    assert [probe.path for probe in leader.probes.ready] == ["/ready", "/v1/models"]
    assert leader.probes.alive is not None
    assert leader.probes.alive.path == "/ready"
    assert worker.probes.port is None


def test_before_there_was_such_a_route_health_is_asked() -> None:
    (spec,) = launched(a_model(engine=replace(SGLANG, version="0.5.10")))
    assert [probe.path for probe in spec.probes.ready] == ["/health", "/v1/models"]


@pytest.mark.parametrize(("stop", "workers"), [(60, 10), (5, 5)])
def test_ranks_that_ignore_sigterm_are_not_waited_for(stop: float, workers: float) -> None:
    leader, worker = launched(a_model(**TWO_NODES, timeouts=Timeouts(stop=Duration(stop))))
    assert (leader.timeouts.stop, worker.timeouts.stop) == (stop, workers)


def test_the_model_itself_has_a_place_among_the_adapters_of_a_batch() -> None:
    (spec,) = launched(a_model({"adapters": LORAS, "max_loaded_adapters": 4}))
    argv = spec.processes[0].argv
    assert argv[argv.index("--max-loras-per-batch") + 1] == "5"
    assert "--lora-paths" not in argv
