"""What vLLM is not told by people: flags and variables that llmgw decides about, and shapes that it could not be started in."""

from collections.abc import Iterator, Mapping

from llmgw.engines import checks
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import ProfileSpec
from llmgw.model.problems import Problem

CONTEXT = frozenset({"-pcp", "--prefill-context-parallel-size"})
API_SERVERS = frozenset({"-asc", "--api-server-count"})
BALANCED_ELSEWHERE = ("-dph", "--data-parallel-hybrid-lb", "-dpe", "--data-parallel-external-lb")

_KEY = "the key comes from the fleet's secret: leave it out"
_NAME = "write the name in the model's spec.servedName"
_WEIGHTS = "write the weights in the model's spec.source"
_RANKS = "the plan counts the ranks: write nodes: in the profile"
_LORA = "write adapters: and maxLoadedAdapters: in the model"
_PLAIN = "probes and clients speak plain HTTP to the node's address: leave it out"
OURS: Mapping[str, str] = {
    "--model": _WEIGHTS,
    "--served-model-name": _NAME,
    "--host": "engines bind to the node's address: write it in the node's spec.address",
    "--port": "the plan chooses the port from the node's spec.ports",
    **dict.fromkeys(("--uds", "--grpc"), _PLAIN),
    "--ssl-keyfile": _PLAIN,
    "--ssl-certfile": _PLAIN,
    "--root-path": "probes and clients expect /v1 at the root: leave it out",
    "--api-key": _KEY,
    "--config": "write its flags in spec.args, so that the plan shows them",
    "--max-model-len": "write maxModelLen: in the profile",
    "--dtype": "write dtype: in the profile",
    "-q": "write quantization: in the profile",
    "--quantization": "write quantization: in the profile",
    "--gpu-memory-utilization": "write gpuMemoryUtilization: in the profile",
    "--device-memory-utilization": "write gpuMemoryUtilization: in the profile",
    "-tp": "write parallel.tensor: in the profile",
    "--tensor-parallel-size": "write parallel.tensor: in the profile",
    "-pp": "write parallel.pipeline: in the profile",
    "--pipeline-parallel-size": "write parallel.pipeline: in the profile",
    "-dp": "write parallel.data: in the profile",
    "--data-parallel-size": "write parallel.data: in the profile",
    **dict.fromkeys(("-dpl", "--data-parallel-size-local", "-dpa", "--data-parallel-address"), _RANKS),
    **dict.fromkeys(("-dpp", "--data-parallel-rpc-port", "-dpn", "--data-parallel-rank"), _RANKS),
    **dict.fromkeys(("-dpr", "--data-parallel-start-rank", "-dpb", "--data-parallel-backend"), _RANKS),
    **dict.fromkeys(("-n", "--nnodes", "-r", "--node-rank", "--headless"), _RANKS),
    **dict.fromkeys(("--master-addr", "--master-port"), "the plan chooses the meeting point"),
    "--distributed-executor-backend": "write launch: mp or launch: ray in the profile",
    "--device-ids": "the plan chooses the GPUs: leave it out",
    "--shutdown-timeout": "write timeouts.stop: in the profile; vLLM gets 10 s less",
    **dict.fromkeys(("--enable-lora", "--max-loras", "--max-cpu-loras", "--max-lora-rank"), _LORA),
    **dict.fromkeys(("--no-enable-lora", "--lora-modules"), _LORA),
    "--runner": "write task: in the model",
}
KEPT = {
    "VLLM_API_KEY": "it holds the replica's key: leave it out",
    "VLLM_HOST_IP": "it is the node's address: write that in the node's spec.address",
    "VLLM_PORT": "vLLM finds its inner ports itself, and a fixed one has made ranks clash: leave it out",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "write maxLoadedAdapters: in the model",
    "VLLM_DP_*": "the plan counts the ranks: write parallel.data in the profile",
}
KEPT_WITH_RAY = {
    "RAY_*": "the replica has a Ray of its own, which llmgw sets up: leave it out",
    "VLLM_CONFIG_ROOT": "what must not be copied from rank to rank is written there: leave it out",
}


def context(model: DesiredModel) -> int:
    size, _ = checks.take(model.profile.args + model.spec.args, CONTEXT)
    return int(size) if size and size.isascii() and size.isdigit() and int(size) else 1


def shape_problems(profile: ProfileSpec) -> Iterator[Problem]:
    if profile.launch == "ray":
        yield from _ray_problems(profile)
    if profile.gpus.share is not None and profile.gpu_memory_utilization != 0.9:
        yield Problem(
            what="spec.gpuMemoryUtilization: gpus.share says how much of the GPU vLLM may take",
            instead="write one of them",
        )
    if profile.gpus.per_node == 0 and profile.gpu_memory_utilization != 0.9:
        yield Problem(
            what="spec.gpuMemoryUtilization: there is no GPU (gpus.perNode is 0)",
            instead="write env: {VLLM_CPU_KVCACHE_SPACE: …} with the GiB for its cache",
        )
    if profile.nodes > 1 and profile.gpus.share is not None:
        yield Problem(
            what=f"spec.gpus.share: the ranks of {profile.nodes} nodes take whole GPUs",
            instead="leave share out, or write nodes: 1",
        )


def server_problems(model: DesiredModel) -> Iterator[Problem]:
    servers, _ = checks.take(model.profile.args + model.spec.args, API_SERVERS)
    if model.spec.max_loaded_adapters and servers not in (None, "1"):
        yield Problem(
            what=f"spec.args: adapters can't be changed on {servers} API servers at run time (maxLoadedAdapters)",
            instead="leave --api-server-count out, or maxLoadedAdapters",
        )
    if model.profile.nodes > 1 and checks.given(model, *BALANCED_ELSEWHERE):
        yield Problem(
            what=f"spec.args: requests come to the first of {model.profile.nodes} nodes only, which shares them out itself",
            instead="leave --data-parallel-hybrid-lb and --data-parallel-external-lb out",
        )


def copies_apart(model: DesiredModel) -> Iterator[Problem]:
    """Copies without experts meet each by itself, but all are told the same address to meet at (0.33.0: init_distributed_environment
    of vllm/distributed/parallel_state.py)."""
    parallel, per_node = model.profile.parallel, model.profile.gpus.per_node
    one = parallel.tensor * parallel.pipeline * context(model)
    if parallel.data > 1 and 0 < per_node < one:
        yield Problem(
            what=f"spec.parallel.data: each of {parallel.data} copies spans {one // per_node} nodes, which vLLM does for mixtures "
            "of experts only",
            instead="for other models write data: 1 and more replicas in the model",
        )


def _ray_problems(profile: ProfileSpec) -> Iterator[Problem]:
    if profile.nodes == 1:
        yield Problem(
            what="spec.launch: Ray joins several nodes, and spec.nodes is 1",
            instead="leave launch out: on one node vLLM needs no Ray",
        )
    if profile.gpus.per_node == 0:
        yield Problem(
            what="spec.launch: Ray counts GPUs, and gpus.perNode is 0",
            instead="leave launch out, which means mp",
        )
    if profile.parallel.data > 1:
        yield Problem(
            what=f"spec.parallel.data: {profile.parallel.data} copies over Ray are not launched by llmgw",
            instead="leave launch out, which means mp, or write more replicas in the model",
        )
