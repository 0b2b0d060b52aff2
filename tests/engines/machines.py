"""Machines as clusters have them, and replicas placed on them: what the golden launches are made for."""

from collections.abc import Sequence

from llmgw.core.adapter import NodeContext, Placed
from llmgw.core.fabric.labels import labels
from llmgw.core.fabric.network import network
from llmgw.core.seen.survey import survey
from llmgw.engines.registry import ADAPTERS
from llmgw.model.claims import GpuClaim
from llmgw.model.desired import DesiredModel, DesiredNode
from llmgw.model.facts import Gpu
from llmgw.model.ids import replica_id
from llmgw.model.manifest import GIB, Pip
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct, replace
from tests.core.builders import NodeState, desired, empty_record, observed
from tests.core.fabric.nodes import infiniband, labelled, machine, roce

FIRST_PORT = 18000


class Machine(Struct):
    node: DesiredNode
    state: NodeState

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that a shard can have: of a GPU in instances only these."""
        parents = {gpu.parent for gpu in self.state.facts.gpus}
        return tuple(gpu for gpu in self.state.facts.gpus if gpu.uuid not in parents)


def ib_pair() -> tuple[Machine, ...]:
    """Two nodes of 8 H100 with 8 InfiniBand adapters each; the fabric is labelled."""
    hcas = [f"mlx5_{number}" for number in range(8)]
    return tuple(
        Machine(
            node=labelled(name, ib_a=hcas), state=machine(name, *(infiniband(hca) for hca in hcas), gpus=8)
        )
        for name in ("gpu01", "gpu02")
    )


def roce_pair() -> tuple[Machine, ...]:
    """Two nodes of 8 H100 with three RoCE adapters whose GID tables disagree, each node's in its own way."""
    first = (roce("mlx5_0", "10.1.0.1", 3), roce("mlx5_1", "10.1.1.1", 3), roce("mlx5_2", "10.1.2.1", 5))
    second = (roce("mlx5_0", "10.1.0.2", 5), roce("mlx5_1", "10.1.1.2", 5), roce("mlx5_2", "10.1.2.2", 3))
    hcas = ["mlx5_0", "mlx5_1", "mlx5_2"]
    return (
        Machine(node=labelled("gpu01", roce_a=hcas), state=machine("gpu01", *first)),
        Machine(
            node=labelled("gpu02", env={"RACK": "b"}, roce_a=hcas),
            state=machine("gpu02", *second),
        ),
    )


def l40s_box() -> tuple[Machine, ...]:
    return (_of("box01", *(_card("l40s", 45, index) for index in range(4))),)


def mixed_box() -> tuple[Machine, ...]:
    """Two kinds of cards; the order is the bus's, not CUDA's idea of speed."""
    return (
        _of("box02", _card("a30", 24, 0), _card("a30", 24, 1), _card("l40s", 45, 2), _card("l40s", 45, 3)),
    )


def mig_box() -> tuple[Machine, ...]:
    """An H100 in two instances beside a whole one."""
    split = replace(_card("h100", 80, 0), health=())
    parts = tuple(
        replace(
            _card("h100-mig-3g", 40, 0),
            uuid=f"MIG-5c1f0000-0000-4000-8000-00000000000{number}",
            parent=split.uuid,
        )
        for number in (1, 2)
    )
    return (_of("box03", *parts, split, _card("h100", 80, 1)),)


def no_gpu(nodes: int = 1) -> tuple[Machine, ...]:
    return tuple(_of(f"cpu0{number}") for number in range(1, nodes + 1))


def _card(name: str, gib: int, index: int) -> Gpu:
    return Gpu(
        uuid=f"GPU-{name}-0000-4000-8000-00000000000{index}",
        index=index,
        name=name.upper(),
        gpu_class=f"{name}-{gib}g",
        memory_total=gib * GIB,
        memory_free=gib * GIB,
    )


def _of(name: str, *gpus: Gpu) -> Machine:
    state = machine(name, gpus=0)
    state.facts = replace(state.facts, gpus=gpus)
    return Machine(node=labelled(name), state=state)


def on(machines: Sequence[Machine], model: DesiredModel, *, gpus: Sequence[int] | None = None) -> Placed:
    """A replica of ``model`` with one rank on each of as many machines as it asks for. ``gpus``: which of theirs; by
    default the first ones."""
    profile = model.profile
    each = machines[: profile.nodes]
    assert len(each) == profile.nodes, "the case asks for more machines than it has"
    chosen = range(profile.gpus.per_node) if gpus is None else gpus
    need = ADAPTERS[profile.engine.name].need(model)
    ranks = tuple(
        RankPlacement(
            rank=rank,
            node=at.node.name,
            address=at.node.address,
            gpus=tuple(GpuClaim(uuid=at.gpus[number].uuid, memory=profile.gpus.share) for number in chosen),
            memory=profile.memory or 0,
            ports=tuple(range(FIRST_PORT, FIRST_PORT + need.ports + (0 if rank else need.leader_ports))),
        )
        for rank, at in enumerate(each)
    )
    nodes = {
        at.node.name: NodeContext(name=at.node.name, spec=at.node.spec, facts=at.state.facts) for at in each
    }
    wanted = desired([at.node for at in each], [model])
    seen = survey(wanted, empty_record(), observed(*(at.state for at in each)).nodes, offline=False)
    return Placed(
        model=model,
        replica=replica_id(prefix=model.name, spec_digest=model.spec_digest, ordinal=0, n=1),
        ranks=ranks,
        nodes=nodes,
        pip=Pip(),
        network=network(model, ranks, nodes, labels(seen.nodes.values())).ranks,
    )
