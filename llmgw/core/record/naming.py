"""Renames: models and nodes keep replicas, their ids and their history when only a name in Git changes."""

from collections.abc import Mapping

from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.record import ModelRecord, NodeRecord, Record, ReplicaRecord
from llmgw.model.struct import replace

EARLIER_KEPT = 8
"""Names that a model or node had before, of which the newest are kept."""


def renames(record: Record, desired: Desired) -> dict[str, str]:
    """Old name to new, for models whose old name is recorded and whose new one is not: as their manifests say, or as they were
    called before, so that a rename that is taken back in Git is a rename as well."""
    said = {name: it.renamed_from for name, it in desired.models.items() if name not in record.models}
    known = {name: it.earlier for name, it in record.models.items() if name not in desired.models}
    return _renames(said, known)


def node_renames(record: Record, desired: Desired) -> dict[str, str]:
    """The same for nodes. Without a word in its manifest only the very machine takes its name back: another one may have been given
    the name that it left."""
    said = {name: it.renamed_from for name, it in desired.nodes.items() if name not in record.nodes}
    known = {
        name: tuple(it for it in node.earlier if it in said and _same_machine(node, desired.nodes[it]))
        for name, node in record.nodes.items()
        if name not in desired.nodes
    }
    return _renames(said, known)


def _renames(said: Mapping[str, str | None], known: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """``said``: what new names are given as their old ones; ``known``: the earlier names of what Git does not name any more."""
    found = {old: name for name, old in said.items() if old is not None and old in known}
    for name in sorted(said.keys() - found.values()):
        before = [old for old, earlier in known.items() if name in earlier and old not in found]
        if len(before) == 1:
            found[before[0]] = name
    return found


def _same_machine(known: NodeRecord, node: DesiredNode) -> bool:
    if known.spec is None or known.address != node.address:
        return False
    old, new = known.spec, node.spec
    return (old.transport, old.local, old.dirs.work) == (new.transport, new.local, new.dirs.work)


def _with(earlier: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    names = [name for name in earlier if name not in (old, new)]
    return (*names, old)[-EARLIER_KEPT:]


def renamed(record: Record, desired: Desired) -> Record:
    """The record as if the models had always been called what Git calls them now; nothing restarts."""
    names = renames(record, desired)
    if not names:
        return record
    models = {
        names.get(name, name): replace(
            model, name=names[name], earlier=_with(model.earlier, name, names[name])
        )
        if name in names
        else model
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


def nodes_renamed(record: Record, desired: Desired) -> Record:
    """The record as if the nodes had always been called what Git calls them now. Their agents may have the old names still."""
    names = node_renames(record, desired)
    if not names:
        return record
    nodes = {
        names.get(name, name): replace(
            node,
            name=names[name],
            formerly=(*node.formerly, name),
            earlier=_with(node.earlier, name, names[name]),
        )
        if name in names
        else node
        for name, node in record.nodes.items()
    }
    forgotten = {
        key: replace(each, replica=_placed(each.replica, names)) for key, each in record.forgotten.items()
    }
    setbacks = {names.get(name, name): setback for name, setback in record.setbacks.items()}
    models = {name: _failed_on(model, names) for name, model in record.models.items()}
    return replace(
        record,
        nodes=dict(sorted(nodes.items())),
        models=models,
        replicas={key: _placed(replica, names) for key, replica in record.replicas.items()},
        forgotten=forgotten,
        given_up=tuple(replace(each, node=names.get(each.node, each.node)) for each in record.given_up),
        setbacks=dict(sorted(setbacks.items())),
    )


def nodes_as_recorded(older: Desired, newest: Desired | None, record: Record) -> Desired:
    """``older``, the commit applied last or another, in the names that the record has by now: a pass about something else renames
    nodes that the ``newest`` commit has renamed, too. None: nobody knows what that says, and the record alone knows."""
    written = newest.nodes if newest is not None else {}
    names = {
        old: name
        for name, node in record.nodes.items()
        for old in dict.fromkeys((*node.earlier, *node.formerly, *_renamed_from(written.get(name))))
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


def _failed_on(model: ModelRecord, names: Mapping[str, str]) -> ModelRecord:
    attempts = {
        ordinal: replace(failed, nodes=tuple(names.get(node, node) for node in failed.nodes))
        for ordinal, failed in model.attempts.items()
    }
    return replace(model, attempts=attempts) if attempts != model.attempts else model


def _placed(replica: ReplicaRecord, names: Mapping[str, str]) -> ReplicaRecord:
    """In the words of the new names; where it runs has not changed."""
    ranks = tuple(replace(rank, node=names.get(rank.node, rank.node)) for rank in replica.ranks)
    return replace(replica, ranks=ranks)
