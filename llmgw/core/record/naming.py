"""Renames: models and nodes keep replicas, their ids and their history when only a name in Git changes."""

from collections.abc import Mapping
from dataclasses import replace

from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.record import Record, ReplicaRecord


def renames(record: Record, desired: Desired) -> dict[str, str]:
    """Old name to new, for models whose old name is recorded and whose new one is not."""
    return {
        model.renamed_from: name
        for name, model in desired.models.items()
        if model.renamed_from is not None
        and model.renamed_from in record.models
        and model.renamed_from not in desired.models
        and name not in record.models
    }


def renamed(record: Record, desired: Desired) -> Record:
    """The record as if the models had always been called what Git calls them now; nothing restarts."""
    names = renames(record, desired)
    if not names:
        return record
    models = {
        names.get(name, name): replace(model, name=names[name]) if name in names else model
        for name, model in record.models.items()
    }
    replicas = {
        key: replace(replica, model=names[replica.model]) if replica.model in names else replica
        for key, replica in record.replicas.items()
    }
    forgotten = {
        key: replace(each, replica=replace(each.replica, model=names[each.replica.model]))
        if each.replica.model in names
        else each
        for key, each in record.forgotten.items()
    }
    models = dict(sorted(models.items()))
    return replace(record, models=models, replicas=replicas, forgotten=forgotten)


def node_renames(record: Record, desired: Desired) -> dict[str, str]:
    """Old name to new, for nodes whose old name is recorded and whose new one is not."""
    return {
        node.renamed_from: name
        for name, node in desired.nodes.items()
        if node.renamed_from is not None
        and node.renamed_from in record.nodes
        and node.renamed_from not in desired.nodes
        and name not in record.nodes
    }


def nodes_renamed(record: Record, desired: Desired) -> Record:
    """The record as if the nodes had always been called what Git calls them now. Their agents may have the old names still."""
    names = node_renames(record, desired)
    if not names:
        return record
    nodes = {
        names.get(name, name): replace(node, name=names[name], formerly=(*node.formerly, name))
        if name in names
        else node
        for name, node in record.nodes.items()
    }
    forgotten = {
        key: replace(each, replica=_placed(each.replica, names)) for key, each in record.forgotten.items()
    }
    setbacks = {names.get(name, name): setback for name, setback in record.setbacks.items()}
    return replace(
        record,
        nodes=dict(sorted(nodes.items())),
        replicas={key: _placed(replica, names) for key, replica in record.replicas.items()},
        forgotten=forgotten,
        given_up=tuple(replace(each, node=names.get(each.node, each.node)) for each in record.given_up),
        setbacks=dict(sorted(setbacks.items())),
    )


def nodes_as_recorded(older: Desired, newest: Desired | None, record: Record) -> Desired:
    """``older``, the commit applied last or another, in the names that the record has by now: a pass about something else renames
    nodes that the ``newest`` commit has renamed, too. None: nobody knows what that says, and the record only knows of renames
    that the nodes' agents have not heard of."""
    written = newest.nodes if newest is not None else {}
    names = {
        old: name
        for name, node in record.nodes.items()
        for old in (*node.formerly, *_renamed_from(written.get(name)))
        if old in older.nodes and old not in record.nodes and name not in older.nodes
    }
    nodes = [replace(node, name=names.get(name, name)) for name, node in older.nodes.items()]
    models = {name: _on(model, names) for name, model in older.models.items()}
    nodes.sort(key=lambda node: node.name)
    return replace(older, nodes={node.name: node for node in nodes}, models=models)


def _renamed_from(node: DesiredNode | None) -> tuple[str, ...]:
    return (node.renamed_from,) if node is not None and node.renamed_from is not None else ()


def _on(model: DesiredModel, names: Mapping[str, str]) -> DesiredModel:
    """Placed on the same nodes."""
    rules = model.spec.placement
    there = tuple(names.get(name, name) for name in rules.nodes)
    return replace(model, spec=replace(model.spec, placement=replace(rules, nodes=there)))


def _placed(replica: ReplicaRecord, names: Mapping[str, str]) -> ReplicaRecord:
    """In the words of the new names; where it runs has not changed."""
    ranks = tuple(replace(rank, node=names.get(rank.node, rank.node)) for rank in replica.ranks)
    return replace(replica, ranks=ranks)
