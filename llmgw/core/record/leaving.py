"""What the record adds to the nodes of Git: those that Git does not name any more while replicas of the record run there, asked
and commanded the way that was recorded last until nothing of ours is left; and the names that agents may still have."""

from collections.abc import Iterator

from llmgw.core.record.naming import nodes_renamed
from llmgw.model.desired import Desired, DesiredNode
from llmgw.model.problems import Where
from llmgw.model.record import Record
from llmgw.model.struct import replace

WHERE = Where(file="(not in Git any more)")


def with_leaving(desired: Desired, record: Record) -> Desired:
    """The same fleet and its leaving nodes, each as if its manifest said ``drain: true``; every node with its former names."""
    record = nodes_renamed(record, desired)
    found = {node.name: node for node in _leaving(desired, record)}
    nodes = {name: _with_names(node, record) for name, node in {**desired.nodes, **found}.items()}
    return replace(desired, nodes=dict(sorted(nodes.items()))) if nodes != desired.nodes else desired


def _with_names(node: DesiredNode, record: Record) -> DesiredNode:
    known = record.nodes.get(node.name)
    formerly = known.formerly if known is not None else ()
    return node if node.formerly == formerly else replace(node, formerly=formerly)


def _leaving(desired: Desired, record: Record) -> Iterator[DesiredNode]:
    holding = {rank.node for replica in record.replicas.values() for rank in replica.ranks}
    for name, node in record.nodes.items():
        if name in desired.nodes or name not in holding or node.spec is None:
            continue
        yield DesiredNode(
            name=name,
            labels={},
            spec=replace(node.spec, drain=True),
            address=node.address,
            where=WHERE,
            pip=desired.fleet.pip,
            leaving=True,
        )
