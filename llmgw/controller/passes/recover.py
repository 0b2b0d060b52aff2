"""``llmgw recover``: rebuild a lost record from what the agents report and what a commit asks for.

The agents know which shards run, where and for which fleet; the manifests know what a model's spec is. What runs and
stands in no manifest can't be recorded, since its spec is not known: it is told, and left alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.lease import LEASE
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe
from llmgw.controller.passes.story import recover_message
from llmgw.core.record.endpoints import endpoints
from llmgw.core.seen.survey import survey
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import Commit, FleetId, ReplicaId, key_id, parse_replica_id
from llmgw.model.problems import StalledError
from llmgw.model.record import (
    ModelRecord,
    NodeRecord,
    Origin,
    Outcome,
    PassRecord,
    RankPlacement,
    Record,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaSpec,
)
from llmgw.model.report import NodeObservation, Observed, Reach, ShardReport, ShardState

_PHASES: Mapping[str, ReplicaPhase] = {
    ShardState.READY.value: ReplicaPhase.SERVING,
    ShardState.DRAINING.value: ReplicaPhase.DRAINING,
    ShardState.STOPPING.value: ReplicaPhase.STOPPING,
    ShardState.STOPPED.value: ReplicaPhase.STOPPING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    record: Record
    version: Commit
    left_alone: tuple[str, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)


async def recover(fleet: Fleet, links: Links, *, commit: Commit | None, after: Commit | None) -> Recovered:
    """``after`` is the version that the new record replaces: None where the state branch is gone, its tip where it can't
    be read. Raises StalledError when the agents don't agree whose they are."""
    secret = fleet.secret.load()
    if secret is None:
        raise StalledError(
            f"the fleet's secret is not on this machine, and the running replicas' keys are made from it: put it in "
            f"{fleet.secret.place} (mode 0600) first"
        )
    commit = commit or await fleet.source.newest()
    desired = await fleet.source.desired(commit, key_id=key_id(secret))
    links.whoever = True
    observed = await observe(desired.nodes, None, links, clock=fleet.clock)
    record, left = rebuilt(desired, observed, key_id=key_id(secret), fleet=_owner(observed, fleet.first_id))
    record = replace(record, last_pass=_pass(fleet, record, commit))
    silent = {name: node.error for name, node in observed.nodes.items() if node.reach is Reach.UNREACHABLE}
    message = recover_message(record, left_alone=left, unreachable=silent)
    version = await fleet.store.write(record, after=after, message=message)
    return Recovered(record=record, version=version, left_alone=left, unreachable=silent)


def _owner(observed: Observed, first: FleetId) -> FleetId:
    """The fleet that the agents belong to."""
    owners: dict[str, list[str]] = {}
    for name, node in observed.nodes.items():
        if node.report is not None and node.report.agent.fleet:
            owners.setdefault(node.report.agent.fleet, []).append(name)
    if len(owners) > 1:
        told = "; ".join(f"{fleet}: {', '.join(names)}" for fleet, names in sorted(owners.items()))
        raise StalledError(
            f"the nodes belong to different fleets ({told}): take the others' out of the manifests first"
        )
    return FleetId(next(iter(owners))) if owners else first


def rebuilt(
    desired: Desired, observed: Observed, *, key_id: str, fleet: FleetId
) -> tuple[Record, tuple[str, ...]]:
    """The record, and what runs but can't be recorded. Pure."""
    serials = [
        node.report.fence.serial for node in observed.nodes.values() if node.report and node.report.fence
    ]
    assert desired.commit is not None
    serial = max(serials, default=0) + 1
    shards: dict[ReplicaId, list[tuple[str, ShardReport]]] = {}
    for name, node in sorted(observed.nodes.items()):
        for shard in node.report.shards if node.report is not None else ():
            shards.setdefault(shard.replica, []).append((name, shard))
    replicas: dict[str, ReplicaRecord] = {}
    left: list[str] = []
    for replica, ranks in sorted(shards.items()):
        model = desired.models.get(ranks[0][1].model)
        if model is None or parse_replica_id(replica) is None:
            left.append(
                f"{replica} on {', '.join(node for node, _ in ranks)}: no model {ranks[0][1].model} in the manifests"
            )
            continue
        if len(ranks) < ranks[0][1].ranks:
            left.append(
                f"{replica} on {', '.join(node for node, _ in ranks)}: only {len(ranks)} of its {ranks[0][1].ranks} ranks "
                "are seen; it is adopted when all of them are"
            )
            continue
        replicas[replica] = _replica(replica, ranks, model, desired, key_id=key_id, serial=serial)
    record = Record(
        fleet=fleet,
        serial=serial,
        commit=desired.commit,
        key_id=key_id,
        models=_models(replicas, desired),
        replicas=replicas,
        nodes={
            name: _node(node, desired) for name, node in observed.nodes.items() if node.report is not None
        },
    )
    published = endpoints(record, survey(desired, record, observed.nodes, offline=False))
    return replace(record, endpoints=published), tuple(left)


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


def _models(replicas: Mapping[str, ReplicaRecord], desired: Desired) -> dict[str, ModelRecord]:
    models: dict[str, ModelRecord] = {}
    for replica in replicas.values():
        wanted = desired.models[replica.model]
        name = parse_replica_id(replica.id)
        assert name is not None
        known = models.get(replica.model) or ModelRecord(
            name=wanted.name,
            id_prefix=name.prefix,
            served_name=wanted.served_name,
            protect=wanted.spec.protect,
            replicas=wanted.spec.replicas,
            priority=wanted.spec.priority,
            aliases=wanted.spec.aliases,
            labels=dict(wanted.labels),
        )
        placements = dict(known.placements)
        placements[str(replica.ordinal)] = max(placements.get(str(replica.ordinal), 0), replica.n)
        good = replica.phase is ReplicaPhase.SERVING and wanted.runs_as(replica.spec_digest)
        models[replica.model] = replace(
            known,
            placements=placements,
            last_good=replica.spec_digest if good else known.last_good,
            last_good_spec=replica.spec if good else known.last_good_spec,
        )
    return models


def _node(node: NodeObservation, desired: Desired) -> NodeRecord:
    report = node.report
    assert report is not None
    return NodeRecord(
        name=node.node,
        address=desired.nodes[node.node].address,
        facts=report.facts.stable(),
        agent_version=report.agent.version,
        boot_id=report.agent.boot_id,
        journal_cursor=report.journal_read,
    )


def _pass(fleet: Fleet, record: Record, commit: Commit) -> PassRecord:
    now = fleet.clock.now()
    return PassRecord(
        serial=record.serial,
        holder=fleet.holder,
        trigger=fleet.trigger,
        actor=fleet.actor,
        commit=commit,
        plan_digest="",
        started=now,
        lease_until=now + LEASE,
        outcome=Outcome.RECOVERED,
        ended=now,
    )
