"""Every command line that a profile could come to: as its models ask for it, and with what another model, or a line more in it,
would add. Shapes that the engine refuses are left out. Nothing of it is ever started.
"""

from collections.abc import Iterator

from llmgw.core.adapter import EngineAdapter, NodeContext, Placed
from llmgw.model.claims import GpuClaim
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import replica_id
from llmgw.model.launch import LaunchSpec
from llmgw.model.manifest import Adapter, ModelSpec, Parallel, Pip, ProfileSpec, Source
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct, replace

AS_ASKED = ""
NODES = 2
LENGTH = 4096
RANK = 16
FIRST_PORT = 18000
_ELSEWHERE = "beside-{}"


class Shape(Struct):
    """``what`` says what the model would have to ask for; empty: nothing, it is as it asks."""

    what: str
    model: DesiredModel


def shapes(model: DesiredModel, adapter: EngineAdapter) -> tuple[Shape, ...]:
    """As asked first."""
    wider = (
        Shape(what=what, model=replace(model, spec=spec, profile=profile))
        for what, profile, spec in _wider(model.profile, model.spec)
        if (profile, spec) != (model.profile, model.spec)
    )
    possible = (shape for shape in wider if not adapter.validate(shape.model))
    return (Shape(what=AS_ASKED, model=model), *possible)


def launches(shape: Shape, adapter: EngineAdapter, node: NodeContext, pip: Pip) -> tuple[LaunchSpec, ...]:
    """As if ``node``, and others like it, were to run it."""
    return adapter.launch(_pretended(shape.model, adapter, node, pip))


def _wider(profile: ProfileSpec, spec: ModelSpec) -> Iterator[tuple[str, ProfileSpec, ModelSpec]]:
    for task in ("embed", "rerank"):
        yield f"task: {task}", profile, replace(spec, task=task)
    limits = replace(profile, max_model_len=profile.max_model_len or LENGTH, dtype="bfloat16")
    yield "maxModelLen and dtype", limits, spec
    yield "quantization", replace(profile, quantization=profile.quantization or "fp8"), spec
    one_more = (Adapter(name="adapter", source=_beside(spec.source), rank=RANK),)
    lora = spec.adapters or one_more
    yield "adapters", profile, replace(spec, adapters=lora, max_loaded_adapters=0)
    on_demand = replace(spec, adapters=lora, max_loaded_adapters=1)
    yield "maxLoadedAdapters", profile, on_demand
    for nodes, data in ((1, 1), (1, 2), (NODES, 1), (NODES, 2)):
        shaped = _shaped(profile, nodes=nodes, data=data)
        named = [f"nodes: {nodes}"] * (nodes > 1) + [f"parallel.data: {data}"] * (data > 1)
        what = " and ".join(named) or "parallel.tensor"
        yield what, shaped, spec
        if data > 1:
            yield f"{what} and maxLoadedAdapters", shaped, on_demand
        if nodes > 1:
            yield f"{what} and launch: ray", replace(shaped, launch="ray"), spec


def _shaped(profile: ProfileSpec, *, nodes: int, data: int) -> ProfileSpec:
    """Two GPUs a node, so that there is something to share out."""
    gpus = replace(profile.gpus, per_node=2 * data if profile.gpus.per_node else 0, share=None)
    parallel = Parallel(tensor=2, pipeline=nodes, data=data)
    return replace(profile, gpus=gpus, nodes=nodes, parallel=parallel, launch="mp")


def _beside(source: Source) -> Source:
    """A file or a directory at a path, as the weights are, so that the engine takes the kind."""
    gguf = any(".gguf" in (part or "") for part in (source.path, source.url, source.pip and source.pip.file))
    return Source(path="/adapters/adapter.gguf" if gguf else "/adapters/adapter")


def _pretended(model: DesiredModel, adapter: EngineAdapter, node: NodeContext, pip: Pip) -> Placed:
    profile = model.profile
    need = adapter.need(model)
    gpus = node.facts.gpus if node.facts is not None else ()
    claims = tuple(
        GpuClaim(uuid=gpus[index].uuid if index < len(gpus) else f"GPU-{index}", memory=profile.gpus.share)
        for index in range(profile.gpus.per_node)
    )
    names = [node.name, *(_ELSEWHERE.format(rank) for rank in range(1, profile.nodes))]
    ranks = tuple(
        RankPlacement(
            rank=rank,
            node=name,
            address="127.0.0.1",
            gpus=claims,
            memory=profile.memory or 0,
            ports=tuple(range(FIRST_PORT, FIRST_PORT + need.ports + (0 if rank else need.leader_ports))),
        )
        for rank, name in enumerate(names)
    )
    return Placed(
        model=model,
        replica=replica_id(prefix=model.name, spec_digest=model.spec_digest, ordinal=0, n=1),
        ranks=ranks,
        nodes={name: replace(node, name=name) for name in names},
        pip=pip,
    )
