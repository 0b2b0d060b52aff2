"""Shards of ours that run and that nobody recorded: taken over when they are exactly what Git asks for, else left
alone. A record that was lost in part comes back this way without a restart."""

from collections.abc import Mapping

from llmgw.core.record.recording import desired_spec
from llmgw.core.seen.condition import ENDED
from llmgw.core.seen.survey import SeenShard, Survey
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import Commit, ReplicaId, ReplicaName, parse_replica_id
from llmgw.model.plan import Action, Change, Decision
from llmgw.model.record import ModelRecord, Origin, RankPlacement, Record, ReplicaPhase, ReplicaRecord


def adoptable(record: Record, desired: Desired, survey: Survey, *, key_id: str) -> tuple[ReplicaRecord, ...]:
    """One replica for an ordinal that has no copy at all, the newest where there are several."""
    groups: dict[str, list[SeenShard]] = {}
    for seen in survey.shards.values():
        commanded = survey.nodes[seen.node].known
        if commanded and not record.knows(seen.report.replica) and seen.report.state not in ENDED:
            groups.setdefault(seen.report.replica, []).append(seen)
    taken = {(replica.model, replica.ordinal) for replica in record.replicas.values()}
    found: dict[tuple[str, int], ReplicaRecord] = {}
    for replica_id, shards in sorted(groups.items()):
        replica = as_replica(ReplicaId(replica_id), shards, record.models, desired, survey, key_id=key_id)
        if replica is None or (place := (replica.model, replica.ordinal)) in taken:
            continue
        if place not in found or found[place].n < replica.n:
            found[place] = replica
    return tuple(found.values())


def as_replica(
    replica: ReplicaId,
    shards: list[SeenShard],
    known: Mapping[str, ModelRecord],
    desired: Desired,
    survey: Survey,
    *,
    key_id: str,
) -> ReplicaRecord | None:
    name = parse_replica_id(replica)
    model = desired.models.get(shards[0].report.model)
    if name is None or model is None or not _is_wanted(name, model, shards, known.get(model.name)):
        return None
    ranks = tuple(
        RankPlacement(
            rank=seen.report.rank,
            node=seen.node,
            address=node.address,
            gpus=seen.report.claims.gpus,
            memory=seen.report.claims.memory,
            ports=seen.report.claims.ports,
        )
        for seen in sorted(shards, key=lambda seen: seen.report.rank)
        if (node := survey.nodes[seen.node].desired) is not None
    )
    if len(ranks) != len(shards) or not ranks[0].ports:
        return None
    return ReplicaRecord(
        id=replica,
        model=model.name,
        ordinal=name.ordinal,
        n=name.n,
        spec_digest=shards[0].report.spec_digest,
        spec=desired_spec(model, key_id),
        ranks=ranks,
        phase=ReplicaPhase.STARTING,
        origin=Origin(commit=desired.commit or Commit(""), where=model.where, serial=0),
    )


def _is_wanted(
    name: ReplicaName, model: DesiredModel, shards: list[SeenShard], known: ModelRecord | None
) -> bool:
    prefix = known.id_prefix if known is not None else model.name
    whole = {seen.report.rank for seen in shards} == set(range(shards[0].report.ranks))
    same = model.runs_as(shards[0].report.spec_digest) and len({it.report.spec_digest for it in shards}) == 1
    return whole and same and name.prefix == prefix and name.ordinal < model.spec.replicas


def adoption_change(replica: ReplicaRecord) -> Change:
    nodes = ", ".join(dict.fromkeys(rank.node for rank in replica.ranks))
    return Change(
        address=f"model/{replica.model}/{replica.ordinal}",
        action=Action.UPDATE,
        keyword="adopted",
        reason=f"{replica.id} runs on {nodes} already, exactly as Git asks: it is adopted, nothing restarts",
        model=replica.model,
        ordinal=replica.ordinal,
        replica=replica.id,
        placement=Decision(ranks=replica.ranks, reasons=("where it runs",)),
        where=replica.origin.where,
    )
