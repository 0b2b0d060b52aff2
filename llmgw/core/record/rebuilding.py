"""A record made anew from what the agents hold and what a commit asks for, and from an older record where there is one.

What runs and stands neither in the manifests nor in the older record can't be recorded, since its spec is not known: it is
told, and left alone.
"""

from collections.abc import Mapping, Sequence

from llmgw.core.record.custody import still_forgotten
from llmgw.core.record.endpoints import endpoints
from llmgw.core.seen.condition import Health, condition
from llmgw.core.seen.survey import survey
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import FleetId, ReplicaId, parse_replica_id
from llmgw.model.record import (
    ModelRecord,
    NodeRecord,
    Origin,
    RankPlacement,
    Record,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaSpec,
)
from llmgw.model.report import NodeObservation, Observed, ShardReport, ShardState
from llmgw.model.struct import replace

_ENDED = frozenset({Health.MISSING, Health.STOPPED})
_PHASES: Mapping[str, ReplicaPhase] = {
    ShardState.READY.value: ReplicaPhase.SERVING,
    ShardState.DRAINING.value: ReplicaPhase.DRAINING,
    ShardState.STOPPING.value: ReplicaPhase.STOPPING,
    ShardState.STOPPED.value: ReplicaPhase.STOPPING,
}


def serials(observed: Observed, fleet: FleetId) -> Mapping[str, int]:
    """The serial that each node's agent obeys, where this fleet has ever commanded it."""
    return {
        name: node.report.fence.serial
        for name, node in observed.nodes.items()
        if node.report is not None and node.report.fence is not None and node.report.fence.fleet == fleet
    }


def rebuilt(
    desired: Desired, observed: Observed, *, key_id: str, fleet: FleetId, before: Record | None = None
) -> tuple[Record, tuple[str, ...]]:
    """The record, one serial above everything that any agent obeys, and what runs but can't be recorded. ``before`` is an older
    record of the same fleet: what it knows of what still runs stands as it was."""
    assert desired.commit is not None
    old = before or Record(fleet=fleet)
    serial = max([*serials(observed, fleet).values(), old.serial]) + 1
    seen = survey(desired, old, observed.nodes, offline=False)
    forgotten = still_forgotten(old, seen)
    replicas: dict[str, ReplicaRecord] = {
        name: each for name, each in old.replicas.items() if condition(each, seen).health not in _ENDED
    }
    left: list[str] = []
    for replica, ranks in _by_replica(observed):
        if replica in replicas or replica in forgotten:
            continue
        model = desired.models.get(ranks[0][1].model)
        where = f"{replica} on {', '.join(node for node, _ in ranks)}"
        if model is None or parse_replica_id(replica) is None:
            left.append(f"{where}: no model {ranks[0][1].model} in the manifests")
        elif len(ranks) < ranks[0][1].ranks:
            left.append(
                f"{where}: only {len(ranks)} of its {ranks[0][1].ranks} ranks are seen; it is adopted when all of them are"
            )
        else:
            replicas[replica] = _replica(replica, ranks, model, desired, key_id=key_id, serial=serial)
    record = replace(
        old,
        serial=serial,
        commit=desired.commit,
        key_id=key_id,
        models=_models(replicas, desired, old),
        replicas=dict(sorted(replicas.items())),
        nodes=_nodes(observed, desired, old),
        forgotten=forgotten,
    )
    published = endpoints(record, survey(desired, record, observed.nodes, offline=False))
    return replace(record, endpoints=published), tuple(left)


def _by_replica(observed: Observed) -> list[tuple[ReplicaId, list[tuple[str, ShardReport]]]]:
    shards: dict[ReplicaId, list[tuple[str, ShardReport]]] = {}
    for name, node in sorted(observed.nodes.items()):
        for shard in node.report.shards if node.report is not None else ():
            shards.setdefault(shard.replica, []).append((name, shard))
    return sorted(shards.items())


def _nodes(observed: Observed, desired: Desired, old: Record) -> dict[str, NodeRecord]:
    """Those that answer as they are, the others as they were known."""
    found = {name: _node(node, desired) for name, node in observed.nodes.items() if node.report is not None}
    return dict(sorted({**old.nodes, **found}.items()))


def _replica(
    replica: ReplicaId,
    ranks: Sequence[tuple[str, ShardReport]],
    model: DesiredModel,
    desired: Desired,
    *,
    key_id: str,
    serial: int,
) -> ReplicaRecord:
    """The spec is the manifests'. Where the running digest is another, the digest stands as it runs, so that the next
    plan sees a changed spec and replaces it."""
    name = parse_replica_id(replica)
    assert name is not None
    assert desired.commit is not None
    ordered = sorted(ranks, key=lambda rank: rank[1].rank)
    phases = {_PHASES.get(shard.state, ReplicaPhase.STARTING) for _, shard in ordered}
    return ReplicaRecord(
        id=replica,
        model=model.name,
        ordinal=name.ordinal,
        n=name.n,
        spec_digest=ordered[0][1].spec_digest,
        spec=ReplicaSpec(
            model=model.spec,
            profile_name=model.profile_name,
            profile=model.profile,
            served_name=model.served_name,
            key_id=key_id,
        ),
        ranks=tuple(_rank(node, shard, desired) for node, shard in ordered),
        phase=phases.pop() if len(phases) == 1 else ReplicaPhase.STARTING,
        origin=Origin(commit=desired.commit, where=model.where, serial=serial),
        reasons=("found running when the record was rebuilt",),
    )


def _rank(node: str, shard: ShardReport, desired: Desired) -> RankPlacement:
    known = desired.nodes.get(node)
    ports = shard.claims.ports
    if shard.port is not None:  # the HTTP port comes first
        ports = (shard.port, *(port for port in ports if port != shard.port))
    return RankPlacement(
        rank=shard.rank,
        node=node,
        address=known.address if known is not None else "",
        gpus=shard.claims.gpus,
        memory=shard.claims.memory,
        ports=ports,
    )


def _models(replicas: Mapping[str, ReplicaRecord], desired: Desired, old: Record) -> dict[str, ModelRecord]:
    """Of a model that Git does not name any more the older record tells, its protection too."""
    models = dict(old.models)
    for replica in replicas.values():
        wanted = desired.models.get(replica.model)
        name = parse_replica_id(replica.id)
        if wanted is None or name is None:
            continue
        known = models.get(replica.model) or ModelRecord(
            name=wanted.name, id_prefix=name.prefix, served_name=wanted.served_name
        )
        placements = dict(known.placements)
        placements[str(replica.ordinal)] = max(placements.get(str(replica.ordinal), 0), replica.n)
        good = replica.phase is ReplicaPhase.SERVING and wanted.runs_as(replica.spec_digest)
        models[replica.model] = replace(
            known,
            served_name=wanted.served_name,
            protect=wanted.spec.protect,
            replicas=wanted.spec.replicas,
            priority=wanted.spec.priority,
            aliases=wanted.spec.aliases,
            labels=dict(wanted.labels),
            placements=placements,
            last_good=replica.spec_digest if good else known.last_good,
            last_good_spec=replica.spec if good else known.last_good_spec,
        )
    return models


def _node(node: NodeObservation, desired: Desired) -> NodeRecord:
    report = node.report
    assert report is not None
    wanted, said = desired.nodes[node.node], report.agent.node
    return NodeRecord(
        name=node.node,
        address=wanted.address,
        formerly=(said,) if said in (wanted.renamed_from, *wanted.formerly) else (),
        facts=report.facts.stable(),
        agent_version=report.agent.version,
        boot_id=report.agent.boot_id,
        journal_cursor=report.journal_read,
    )
