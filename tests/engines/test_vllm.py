"""vLLM: what it refuses, what it warns of, and what its command lines must never get wrong."""

import json
from typing import Any

import pytest

from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import LaunchSpec
from llmgw.model.manifest import (
    GIB,
    Adapter,
    Duration,
    Engine,
    Gpus,
    Parallel,
    ProfileSpec,
    Size,
    Source,
    Timeouts,
)
from llmgw.model.struct import replace
from tests.engines.cases import BY_URL, CPU, SHA, SMOLLM, model
from tests.engines.machines import ib_pair, l40s_box, no_gpu, on, roce_pair
from tests.engines.matrix import DIRECTORY, LORAS, VLLM, VLLM_PATH

VLLM_ADAPTER = ADAPTERS["vllm"]


def a_model(of: dict[str, Any] | None = None, source: Source = DIRECTORY, **fields: Any) -> DesiredModel:
    return model(ProfileSpec(**{"engine": VLLM, **fields}), source, **(of or {}))


def problems(of: DesiredModel) -> list[str]:
    return [problem.what for problem in VLLM_ADAPTER.validate(of)]


TWO_NODES: dict[str, Any] = {"gpus": Gpus(per_node=8), "nodes": 2, "parallel": Parallel(tensor=8, pipeline=2)}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("spec.engine.version: vllm needs", {"engine": Engine(name="vllm")}),
    (
        "spec.parallel: tensor 1 x pipeline 1 = 1 GPUs, but nodes 1 x gpus.perNode 4 = 4",
        {"gpus": Gpus(per_node=4)},
    ),
    (
        "spec.parallel: tensor 8 x pipeline 2 = 16 GPUs, but nodes 1 x gpus.perNode 8 = 8",
        {**TWO_NODES, "nodes": 1},
    ),
    (
        "spec.parallel: tensor 2 x pipeline 1 x data 3 = 6 GPUs",
        {"gpus": Gpus(per_node=4), "parallel": Parallel(tensor=2, data=3)},
    ),
    (
        "spec.parallel: tensor 2 x pipeline 1 x context 2 = 4 GPUs, but nodes 1 x gpus.perNode 2 = 2",
        {"gpus": Gpus(per_node=2), "parallel": Parallel(tensor=2), "args": ("-pcp", "2")},
    ),
    (
        "spec.parallel: tensor 2 x pipeline 1 x context 2 = 4 GPUs, but nodes 1 x gpus.perNode 2 = 2",
        {
            "gpus": Gpus(per_node=2),
            "parallel": Parallel(tensor=2),
            "args": ("--prefill_context_parallel_size=2",),
        },
    ),
    ("spec.parallel: tensor 3", {"gpus": CPU, "nodes": 2, "parallel": Parallel(tensor=3)}),
    ("spec.launch: Ray joins", {"launch": "ray"}),
    (
        "spec.launch: Ray counts GPUs",
        {"launch": "ray", "gpus": CPU, "nodes": 2, "parallel": Parallel(tensor=2)},
    ),
    (
        "spec.parallel.data: 2 copies over Ray",
        {**TWO_NODES, "launch": "ray", "parallel": Parallel(tensor=8, data=2)},
    ),
    ("spec.gpuMemoryUtilization: gpus.share", {"gpus": Gpus(share=Size(GIB)), "gpu_memory_utilization": 0.5}),
    ("spec.gpuMemoryUtilization: there is no GPU", {"gpus": CPU, "gpu_memory_utilization": 0.5}),
    (
        "spec.gpus.share: the ranks",
        {"gpus": Gpus(share=Size(GIB)), "nodes": 2, "parallel": Parallel(tensor=2)},
    ),
    ("spec.args[0]: llmgw decides about --port itself", {"args": ("--port", "1")}),
    ("spec.args[0]: llmgw decides about -tp itself", {"args": ("-tp", "2")}),
    (
        "spec.args[0]: llmgw decides about --tensor_parallel_size, which stands for --tensor-parallel-size, itself",
        {"args": ("--tensor_parallel_size=2",)},
    ),
    (
        "spec.args[1]: llmgw decides about --max-model, which stands for --max-model-len",
        {"args": ("x", "--max-model=5")},
    ),
    ("spec.args[0]: llmgw decides about -n2, which stands for -n, itself", {"args": ("-n2",)}),
    ("spec.args[0]: llmgw decides about -qfp8, which stands for -q, itself", {"args": ("-qfp8",)}),
    (
        "spec.args: requests come to the first of 2 nodes only",
        {**TWO_NODES, "args": ("--data-parallel-hybrid-lb",)},
    ),
    ("spec.args[0]: llmgw decides about --grpc itself", {"args": ("--grpc",)}),
    ("spec.args[0]: llmgw decides about --config", {"args": ("--config", "x.yaml")}),
    ("spec.env.VLLM_PORT", {"env": {"VLLM_PORT": "tcp://10.0.0.1:80"}}),
    ("spec.env.VLLM_HOST_IP", {"env": {"VLLM_HOST_IP": "1.2.3.4"}}),
    ("spec.env.VLLM_API_KEY", {"env": {"VLLM_API_KEY": "x"}}),
    ("spec.env.VLLM_DP_RANK", {"env": {"VLLM_DP_RANK": "1"}}),
    ("spec.env.RAY_ADDRESS", {**TWO_NODES, "launch": "ray", "env": {"RAY_ADDRESS": "auto"}}),
]


@pytest.mark.parametrize(("begins", "fields"), REFUSED, ids=[begins[:60] for begins, _ in REFUSED])
def test_vllm_refuses_before_launch_what_would_fail_at_start(begins: str, fields: dict[str, Any]) -> None:
    (found,) = problems(a_model(**fields))
    assert found.startswith(begins)


def test_flags_of_vllm_that_only_look_like_ours_are_peoples_own() -> None:
    own = (
        "--enable-prefix-caching",
        "--max-num-seqs",
        "64",
        "--data-parallel-hybrid-lb",
        "--host-like-value",
    )
    assert problems(a_model(args=own)) == []


def test_too_few_nodes_are_told_with_how_many_it_takes() -> None:
    (found,) = VLLM_ADAPTER.validate(a_model(**{**TWO_NODES, "nodes": 1}))
    assert "write nodes: 2" in found.instead


@pytest.mark.parametrize(
    "source",
    [
        Source(url="https://models.example/model.safetensors", sha256=SHA),
        replace(BY_URL, url="https://x/a.zip"),
    ],
)
def test_a_single_file_that_is_no_gguf_is_refused(source: Source) -> None:
    (found,) = problems(a_model(source=source))
    assert found.startswith("spec.source.url: vLLM reads a model's directory or one GGUF file")


@pytest.mark.parametrize("source", [DIRECTORY, BY_URL, SMOLLM])
def test_directories_and_gguf_files_are_taken(source: Source) -> None:
    assert problems(a_model(source=source)) == []


# ---- adapters ------------------------------------------------------------------------------------------


def adapter(name: str = "sql", rank: int = 16) -> Adapter:
    return Adapter(name=name, source=Source(path="/adapters/x"), rank=rank)


@pytest.mark.parametrize(
    ("told", "adapters"),
    [
        ("spec.adapters[0].name: 'a b'", (adapter("a b"),)),
        ("spec.adapters[0].name: 'a=b'", (adapter("a=b"),)),
        ("spec.adapters[0].name: '${x}'", (adapter("${x}"),)),
        ("spec.adapters[0].name: chat is the model's own name", (adapter("chat"),)),
        ("spec.adapters[0].name: other is an alias", (adapter("other"),)),
        ("spec.adapters[1].name: sql is the name of another adapter", (adapter(), adapter())),
        ("spec.adapters[0].rank: vLLM takes ranks up to 512, not 513", (adapter(rank=513),)),
    ],
)
def test_adapters_that_requests_could_not_choose_are_refused(
    told: str, adapters: tuple[Adapter, ...]
) -> None:
    (found,) = problems(a_model({"adapters": adapters, "aliases": ("other",)}))
    assert found.startswith(told)


@pytest.mark.parametrize(
    ("ranks", "flag"), [((1,), "1"), ((2,), "8"), ((16, 48), "64"), ((300,), "320"), ((512,), "512")]
)
def test_the_highest_rank_is_rounded_up_to_one_that_vllm_allows(ranks: tuple[int, ...], flag: str) -> None:
    adapters = tuple(adapter(f"a{rank}", rank) for rank in ranks)
    argv = engine_of(a_model({"adapters": adapters})).argv
    assert argv[argv.index("--max-lora-rank") + 1] == flag


def test_adapters_on_demand_leave_the_command_line_alone_when_one_of_the_same_rank_comes() -> None:
    one = engine_of(a_model({"adapters": LORAS, "max_loaded_adapters": 4}))
    two = engine_of(a_model({"adapters": (*LORAS, adapter("more")), "max_loaded_adapters": 4}))
    assert one == two
    assert not any("adapter:" in word for word in one.argv)
    assert one.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_static_adapters_cannot_be_changed_by_requests() -> None:
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in engine_of(a_model({"adapters": LORAS})).env


def test_adapters_that_change_while_vllm_serves_need_one_api_server() -> None:
    (found,) = problems(a_model({"max_loaded_adapters": 2}, args=("--api-server-count", "4")))
    assert found.startswith("spec.args: adapters can't be changed on 4 API servers")
    assert problems(a_model({"max_loaded_adapters": 2}, args=("--api-server-count=1",))) == []
    assert problems(a_model({"adapters": LORAS}, args=("--api-server-count", "4"))) == []


# ---- launches ------------------------------------------------------------------------------------------


def launched(of: DesiredModel) -> tuple[LaunchSpec, ...]:
    machines = no_gpu(2) if of.profile.gpus.per_node == 0 else l40s_box()
    machines = ib_pair() if of.profile.nodes > 1 and of.profile.gpus.per_node else machines
    return VLLM_ADAPTER.launch(on(machines, of))


def engine_of(of: DesiredModel) -> Any:
    return launched(of)[0].processes[-1]


@pytest.mark.parametrize(
    ("engine", "program"),
    [
        (VLLM, "${engine}/bin/vllm"),
        (VLLM_PATH, "${engine}/bin/vllm"),
        (Engine(name="vllm", path="/opt/vllm/bin/vllm"), "${engine}"),
    ],
)
def test_a_path_may_name_the_environment_or_the_program(engine: Engine, program: str) -> None:
    assert engine_of(a_model(engine=engine)).argv[0] == program


def test_ray_is_found_beside_a_program_that_a_path_names() -> None:
    fields = {**TWO_NODES, "launch": "ray", "engine": Engine(name="vllm", path="/srv/$x/bin/vllm")}
    leader, worker = launched(a_model(**fields))
    assert leader.processes[0].argv[4] == worker.processes[0].argv[4] == "/srv/$$x/bin/ray"
    assert leader.processes[1].argv[0] == "${engine}"


@pytest.mark.parametrize(("stop", "left"), [(60, "50"), (10, "0"), (5, "0"), (120.5, "110")])
def test_vllm_ends_by_itself_before_it_would_be_killed(stop: float, left: str) -> None:
    argv = engine_of(a_model(timeouts=Timeouts(stop=Duration(stop)))).argv
    assert argv[argv.index("--shutdown-timeout") + 1] == left


def test_every_rank_is_told_the_address_of_its_own_node_and_only_the_first_serves() -> None:
    leader, worker = launched(a_model(**TWO_NODES))
    assert (leader.processes[0].env["VLLM_HOST_IP"], worker.processes[0].env["VLLM_HOST_IP"]) == (
        "10.0.0.1",
        "10.0.0.2",
    )
    assert leader.probes.port == 18000
    assert worker.probes.port is None
    assert "--port" not in worker.processes[0].argv
    assert worker.processes[0].argv.count("--headless") == 1


def test_ranks_meet_where_the_leader_claims_a_port() -> None:
    for fields in (TWO_NODES, {**TWO_NODES, "launch": "ray"}):
        leader, worker = launched(a_model(**fields))
        wait = worker.processes[-1].wait_for
        assert wait is not None
        assert wait.host == leader.address
        assert wait.port in leader.claims.ports[1:]


COPIES: dict[str, Any] = {"gpus": Gpus(per_node=8), "nodes": 2, "parallel": Parallel(tensor=8, data=2)}


def test_copies_on_several_nodes_meet_at_the_port_that_the_leader_opens_for_any_model() -> None:
    leader, worker = launched(a_model(**COPIES))
    wait = worker.processes[0].wait_for
    argv = leader.processes[0].argv
    assert wait is not None
    assert str(wait.port) == argv[argv.index("--data-parallel-rpc-port") + 1]
    assert wait.port in leader.claims.ports


@pytest.mark.parametrize(
    ("of", "args"), [({"max_loaded_adapters": 2}, ()), ({}, ("--api-server-count", "2"))]
)
def test_a_rank_without_a_server_is_told_of_no_api_servers(of: dict[str, Any], args: tuple[str, ...]) -> None:
    leader, worker = launched(a_model(of, **COPIES, args=(*args, "--seed", "1")))
    assert "--api-server-count" in leader.processes[0].argv
    assert "--headless" in worker.processes[0].argv
    assert "--api-server-count" not in worker.processes[0].argv
    assert worker.processes[0].argv[-2:] == ("--seed", "1")


def test_rays_workers_take_no_port_that_engines_are_given() -> None:
    for spec in launched(a_model(**TWO_NODES, launch="ray")):
        argv = spec.processes[0].argv
        assert {"--min-worker-port=0", "--max-worker-port=0", "--block"} <= set(argv)
        named = [
            int(word.rpartition("=")[2]) for word in argv if "-port=" in word or word.startswith("--port=")
        ]
        assert {port for port in named if port} <= set(spec.claims.ports)
        assert f"--node-ip-address={spec.processes[0].env['VLLM_HOST_IP']}" in argv


def test_only_who_has_the_key_may_use_a_replicas_ray_and_no_command_line_shows_it() -> None:
    for spec in launched(a_model(**TWO_NODES, launch="ray")):
        for process in spec.processes:
            assert (process.env["RAY_AUTH_MODE"], process.env["RAY_AUTH_TOKEN"]) == ("token", "${key}")
            assert not any("${key}" in word for word in process.argv)


def test_what_is_each_nodes_own_is_not_copied_from_the_leader_to_its_workers() -> None:
    """The adapters' index differs between the two nodes: copied, it would be wrong on one."""
    fields = {**TWO_NODES, "launch": "ray", "fabric": "preferred"}
    leader, worker = VLLM_ADAPTER.launch(on(roce_pair(), a_model(**fields)))
    server, join = leader.processes[1], worker.processes[0]
    (kept,) = server.files
    differing = {name for name, value in join.env.items() if server.env.get(name) != value}
    assert {"NCCL_IB_GID_INDEX", "VLLM_HOST_IP", "RACK"} <= differing
    assert differing <= set(json.loads(kept.content))


def test_two_replicas_have_rays_with_files_of_their_own() -> None:
    first = launched(a_model(**TWO_NODES, launch="ray"))
    other = launched(replace(a_model(**TWO_NODES, launch="ray"), name="other"))
    links = {spec.processes[0].argv[3] for spec in (*first, *other)}
    assert len(links) == 4
    assert all(len(link) < 107 - 66 for link in links), "a socket's path has 107 bytes, and Ray adds up to 66"


def test_a_share_is_given_to_vllm_as_its_part_of_the_gpu_rounded_down() -> None:
    argv = engine_of(a_model(gpus=Gpus(share=Size(10 * GIB)))).argv
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.222"
    assert 0.222 * 45 <= 10


# ---- versions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "shown"),
    [("0.31.1", "indices"), ("0.32.0", "uuids"), ("0.33.0.post1", "uuids"), (None, "indices")],
)
def test_gpus_are_named_by_uuid_only_to_versions_that_understand_it(version: str | None, shown: str) -> None:
    engine = VLLM_PATH if version is None else replace(VLLM, version=version)
    assert engine_of(a_model(engine=engine)).env["CUDA_VISIBLE_DEVICES"] == f"${{gpu.{shown}}}"


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0"])
def test_a_version_that_nobody_tried_is_a_warning_and_no_refusal(version: str) -> None:
    of = a_model(engine=replace(VLLM, version=version))
    (warning,) = VLLM_ADAPTER.warnings(of)
    assert f"vLLM {version} is none of the versions" in warning.what
    assert problems(of) == []


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.33.0", "0.33.2"])
def test_known_versions_and_their_fixes_warn_of_nothing(version: str) -> None:
    assert VLLM_ADAPTER.warnings(a_model(engine=replace(VLLM, version=version))) == ()


def test_routes_that_open_without_a_key_are_warned_of() -> None:
    (warning,) = VLLM_ADAPTER.warnings(a_model(env={"VLLM_SERVER_DEV_MODE": "1"}))
    assert "without a key" in warning.what


def test_copies_that_span_nodes_are_warned_of() -> None:
    spanning: dict[str, Any] = {
        "gpus": Gpus(per_node=8),
        "nodes": 4,
        "parallel": Parallel(tensor=8, pipeline=2, data=2),
    }
    (warning,) = VLLM_ADAPTER.warnings(a_model(**spanning))
    assert warning.what.startswith("spec.parallel.data: each of 2 copies spans 2 nodes")
    assert VLLM_ADAPTER.warnings(a_model(**COPIES)) == ()
    assert problems(a_model(**spanning)) == []


def test_ray_comes_with_the_engine_only_where_it_is_used() -> None:
    node = on(ib_pair(), a_model(**TWO_NODES)).nodes["gpu01"]
    for launch, packages in (("mp", ("vllm==0.33.0",)), ("ray", ("vllm==0.33.0", "ray[client]==2.60.0"))):
        of = on(ib_pair(), a_model(**TWO_NODES, launch=launch))
        install = VLLM_ADAPTER.install(of.model, node, of.pip)
        assert install is not None
        assert install.requirements == packages
