"""Where packages come from is the fleet's word, and every node hears it."""

from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.model.manifest import FleetSpec, Local, Manifest, Manifests, Metadata, NodeSpec, Pip
from llmgw.model.problems import Where


def test_nodes_know_the_fleets_packages() -> None:
    where = Where(file="f.yaml")
    node = Manifest(
        kind="Node",
        metadata=Metadata(name="n1"),
        spec=NodeSpec(transport="local", local=Local()),
        where=where,
    )
    pip = Pip(wheel_dir="/srv/wheels")
    fleet = Manifest(kind="Fleet", metadata=Metadata(name="f"), spec=FleetSpec(pip=pip), where=where)
    alone = Manifests(commit=None, fleet=None, nodes=(node,), profiles=(), models=())
    told = Manifests(commit=None, fleet=fleet, nodes=(node,), profiles=(), models=())
    assert resolve(alone, key_id="k", adapters=ADAPTERS).nodes["n1"].pip == Pip()
    assert resolve(told, key_id="k", adapters=ADAPTERS).nodes["n1"].pip == pip
