"""Shapes times engines on given machines: what their golden files in tests/golden/launch/matrix hold."""

from collections.abc import Mapping
from typing import Any

from llmgw.core.adapter import Placed
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import (
    GIB,
    Adapter,
    Ask,
    Custom,
    Duration,
    Engine,
    Gpus,
    InFlight,
    Parallel,
    ProfileSpec,
    Secret,
    Size,
    Source,
    Timeouts,
)
from tests.engines.cases import model
from tests.engines.machines import ib_pair, l40s_box, mig_box, mixed_box, no_gpu, on, roce_pair

VLLM = Engine(name="vllm", version="0.33.0")
VLLM_PATH = Engine(name="vllm", path="/opt/vllm")
SGLANG = Engine(name="sglang", version="0.5.23")
CUSTOM = Engine(name="custom", path="/opt/tgi")
LLAMA = Engine(name="llamacpp", version="2026.10.11549")
DIRECTORY = Source(path="/models/llama-70b")
GGUF = Source(path="/models/llama-8b.gguf")
LORAS = (
    Adapter(name="sql", source=Source(path="/adapters/sql"), rank=16),
    Adapter(name="team/legal", source=Source(path="/adapters/legal"), rank=48),
)


def _model(
    engine: Engine, source: Source = DIRECTORY, *, of_model: Mapping[str, Any] | None = None, **fields: Any
) -> DesiredModel:
    return model(ProfileSpec(engine=engine, **fields), source, **(of_model or {}))


def _gpus(number: int, **more: Any) -> Gpus:
    return Gpus(per_node=number, **more)


def vllm_cases() -> Mapping[str, Placed]:
    two: dict[str, Any] = {"gpus": _gpus(8), "nodes": 2, "fabric": "required"}
    return {
        "vllm-one-l40s": on(l40s_box(), _model(VLLM, max_model_len=8192)),
        "vllm-tp4-fp8-l40s": on(
            l40s_box(),
            _model(VLLM, gpus=_gpus(4), parallel=Parallel(tensor=4), quantization="fp8", dtype="bfloat16"),
        ),
        "vllm-dp4-l40s": on(l40s_box(), _model(VLLM, gpus=_gpus(4), parallel=Parallel(data=4))),
        "vllm-tp2-pp2-l40s": on(
            l40s_box(), _model(VLLM, gpus=_gpus(4), parallel=Parallel(tensor=2, pipeline=2))
        ),
        "vllm-second-kind-of-a-mixed-box": on(
            mixed_box(),
            _model(VLLM, gpus=_gpus(2, gpu_class="l40s-45g"), parallel=Parallel(tensor=2)),
            gpus=(2, 3),
        ),
        "vllm-mig-instance": on(mig_box(), _model(VLLM, gpus=_gpus(1))),
        "vllm-mig-instance-unknown-version": on(mig_box(), _model(VLLM_PATH, gpus=_gpus(1))),
        "vllm-share-embed": on(
            l40s_box(),
            _model(VLLM, gpus=_gpus(1, share=Size(12 * GIB)), of_model={"task": "embed"}),
        ),
        "vllm-share-rerank": on(
            l40s_box(),
            _model(VLLM, gpus=_gpus(1, share=Size(20 * GIB)), of_model={"task": "rerank"}),
        ),
        "vllm-cpu-path": on(
            no_gpu(),
            _model(
                VLLM_PATH,
                gpus=_gpus(0),
                dtype="float32",
                max_model_len=1024,
                env={"VLLM_CPU_KVCACHE_SPACE": "1"},
            ),
        ),
        "vllm-cpu-tp2-two-nodes": on(
            no_gpu(2),
            _model(
                Engine(name="vllm", path="/opt/vllm/bin/vllm"),
                gpus=_gpus(0),
                nodes=2,
                parallel=Parallel(tensor=2),
                args=("--enforce-eager",),
                env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            ),
        ),
        "vllm-tp8-pp2-infiniband": on(
            ib_pair(),
            _model(VLLM, parallel=Parallel(tensor=8, pipeline=2), max_model_len=32768, **two),
        ),
        "vllm-tp16-no-fabric": on(
            ib_pair(), _model(VLLM, gpus=_gpus(8), nodes=2, parallel=Parallel(tensor=16))
        ),
        "vllm-dp2-tp8-infiniband": on(ib_pair(), _model(VLLM, parallel=Parallel(tensor=8, data=2), **two)),
        "vllm-tp8-pp2-roce": on(
            roce_pair(),
            _model(VLLM, parallel=Parallel(tensor=8, pipeline=2), **{**two, "fabric": "preferred"}),
        ),
        "vllm-ray-roce": on(
            roce_pair(),
            _model(
                VLLM, parallel=Parallel(tensor=8, pipeline=2), launch="ray", **{**two, "fabric": "preferred"}
            ),
        ),
        "vllm-ray-infiniband-path": on(
            ib_pair(),
            _model(VLLM_PATH, parallel=Parallel(tensor=8, pipeline=2), launch="ray", **two),
        ),
        "vllm-user-env-wins-over-the-network": on(
            ib_pair(),
            _model(
                VLLM,
                parallel=Parallel(tensor=8, pipeline=2),
                env={"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "=mlx5_0"},
                **two,
            ),
        ),
        "vllm-lora-static": on(l40s_box(), _model(VLLM, of_model={"adapters": LORAS})),
        "vllm-lora-on-demand": on(
            l40s_box(), _model(VLLM, of_model={"adapters": LORAS, "max_loaded_adapters": 4})
        ),
        "vllm-lora-on-demand-dp": on(
            l40s_box(),
            _model(
                VLLM,
                gpus=_gpus(4),
                parallel=Parallel(tensor=2, data=2),
                of_model={"max_loaded_adapters": 2},
            ),
        ),
        "vllm-lora-on-demand-dp-infiniband": on(
            ib_pair(),
            _model(VLLM, parallel=Parallel(tensor=8, data=2), of_model={"max_loaded_adapters": 2}, **two),
        ),
        "vllm-dollars-and-secrets": on(
            l40s_box(),
            _model(
                VLLM,
                args=("--chat-template", "{{ '$' }}"),
                timeouts=Timeouts(stop=Duration(8)),
                startup_timeout=Duration(3600),
                of_model={"env": {"HF_TOKEN": Secret(from_env="HF_TOKEN")}, "args": ("--seed", "1")},
            ),
        ),
    }


def sglang_cases() -> Mapping[str, Placed]:
    two: dict[str, Any] = {"gpus": _gpus(8), "nodes": 2, "fabric": "required"}
    return {
        "sglang-one-l40s": on(l40s_box(), _model(SGLANG, max_model_len=8192)),
        "sglang-tp2-dp2-l40s": on(
            l40s_box(),
            _model(SGLANG, gpus=_gpus(4), parallel=Parallel(tensor=2, data=2), gpu_memory_utilization=0.85),
        ),
        "sglang-tp8-pp2-infiniband": on(
            ib_pair(), _model(SGLANG, parallel=Parallel(tensor=8, pipeline=2), quantization="fp8", **two)
        ),
        "sglang-tp16-roce": on(
            roce_pair(), _model(SGLANG, parallel=Parallel(tensor=16), **{**two, "fabric": "preferred"})
        ),
        "sglang-attention-dp-infiniband": on(
            ib_pair(),
            _model(SGLANG, parallel=Parallel(tensor=16), args=("--attn-dp-size", "4"), **two),
        ),
        "sglang-before-ready-route": on(l40s_box(), _model(Engine(name="sglang", version="0.5.10"))),
        "sglang-key-on-the-command-line": on(l40s_box(), _model(Engine(name="sglang", version="0.5.2"))),
        "sglang-lora-on-demand": on(
            l40s_box(), _model(SGLANG, of_model={"adapters": LORAS, "max_loaded_adapters": 2})
        ),
        "sglang-lora-static": on(
            l40s_box(),
            _model(SGLANG, args=("--lora-target-modules", "q_proj"), of_model={"adapters": LORAS}),
        ),
        "sglang-embed-mig": on(mig_box(), _model(SGLANG, of_model={"task": "embed"})),
        "sglang-cpu-path": on(
            no_gpu(), _model(Engine(name="sglang", path="/opt/sglang"), gpus=_gpus(0), memory=Size(8 * GIB))
        ),
    }


def other_cases() -> Mapping[str, Placed]:
    tgi = Custom(
        command=(
            "${engine}/bin/launcher",
            "--model-id",
            "${weights}",
            "--hostname",
            "${host}",
            "-p",
            "${port}",
        ),
        env={"API_KEY": "${key}", "MASTER_PORT": "${port.2}"},
        ports=2,
        health="/health",
        in_flight=InFlight(names=("tgi_queue_size", "tgi_batch_current_size")),
    )
    rpc = Custom(
        command=(
            "${engine}/llama-server",
            *("-m", "${weights}", "--alias", "${servedName}", "--host", "${host}", "--port", "${port}"),
            *("--rpc", "${workers}", "-ngl", "99", "--metrics"),
        ),
        worker=("${engine}/ggml-rpc-server", "-H", "${host}", "-p", "${port}"),
        wait_for="workers",
        env={"LLAMA_API_KEY": "${key}"},
        in_flight=InFlight(names=("llamacpp:requests_processing", "llamacpp:requests_deferred")),
    )
    packaged = Custom(
        command=(
            "${engine}/bin/infinity_emb",
            "v2",
            "--model-id",
            "${weights}",
            "--port",
            "${port}",
            "--api-key",
            "${key}",
        ),
        packages=("infinity-emb==0.0.77",),
        api="none",
        health="/health",
        token=Ask(path="/embeddings", body='{"input":"Hi"}', contains="embedding"),
    )
    return {
        "custom-two-gpus": on(
            l40s_box(), _model(CUSTOM, gpus=_gpus(2), custom=tgi, args=("--cuda-graphs", "0"))
        ),
        "custom-rpc-two-nodes": on(
            ib_pair(),
            _model(Engine(name="custom", path="/opt/llama.cpp"), GGUF, gpus=_gpus(1), nodes=2, custom=rpc),
        ),
        "custom-packages": on(
            l40s_box(),
            _model(
                Engine(name="custom", version="0.0.77"),
                gpus=_gpus(1, share=Size(4 * GIB)),
                custom=packaged,
                of_model={"task": "embed"},
            ),
        ),
        "custom-waits-for-the-leader": on(
            no_gpu(2),
            _model(
                Engine(name="custom"),
                gpus=_gpus(0),
                nodes=2,
                custom=Custom(
                    command=(
                        "/opt/serve",
                        "--listen",
                        "${host}:${port}",
                        "--meet",
                        "${leader}",
                        "--world",
                        "${ranks}",
                    ),
                    worker=(
                        "/opt/serve",
                        "--join",
                        "${leader.host}",
                        "${leader.port}",
                        "--rank",
                        "${rank}",
                        "--cost=$$5",
                    ),
                ),
            ),
        ),
        "llamacpp-mixed-box": on(
            mixed_box(),
            _model(LLAMA, GGUF, gpus=_gpus(1, gpu_class="l40s-45g"), max_model_len=8192),
            gpus=(2,),
        ),
        "llamacpp-mig-instance": on(mig_box(), _model(LLAMA, GGUF, max_model_len=4096)),
        "sim-infiniband": on(
            ib_pair(),
            _model(
                Engine(name="sim"), gpus=_gpus(8), nodes=2, fabric="preferred", parallel=Parallel(tensor=16)
            ),
        ),
    }


def matrix() -> Mapping[str, Placed]:
    return {**vllm_cases(), **sglang_cases(), **other_cases()}
