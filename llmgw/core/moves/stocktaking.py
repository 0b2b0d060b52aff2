"""Find where one model stands, from the record and what was seen."""

from collections import Counter

from llmgw.core.moves.copies import Copy, serves
from llmgw.core.moves.round import Round
from llmgw.core.moves.sizes import need_of
from llmgw.core.moves.standing import Standing
from llmgw.core.record.numbering import given_to_others
from llmgw.core.seen.condition import Health, condition
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import Digest, ReplicaName, parse_replica_id
from llmgw.model.record import Held, ModelRecord, ReplicaRecord, ReplicaSpec
from llmgw.model.struct import replace


def standing(
    round_: Round, model: DesiredModel, replicas: list[ReplicaRecord], adopted: frozenset[str]
) -> Standing:
    known = round_.record.models.get(model.name)
    held = known.held if known is not None and known.held is not None else None
    held = held if held is not None and held.spec_digest == model.spec_digest else None
    goal = _goal(model, known, held)
    copies: dict[int, list[Copy]] = {}
    for replica in replicas:
        copy = Copy(replica=replica, state=condition(replica, round_.survey))
        copies.setdefault(replica.ordinal, []).append(copy)
    for of_ordinal in copies.values():
        of_ordinal.sort(key=lambda copy: -copy.replica.n)
    every = [copy for of_ordinal in copies.values() for copy in of_ordinal]
    adapter = round_.adapters[(goal or model).profile.engine.name]
    fetch = adapter.fetch(goal or model, round_.book.pip)
    lora = adapter.lora(goal or model)
    return Standing(
        model=model,
        known=known,
        held=held,
        goal=goal,
        need=need_of(round_, goal or model),
        reads=adapter.weights(goal or model),
        weights=fetch.digest if fetch is not None else None,
        copies=copies,
        total=sum(1 for copy in every if not copy.state.given_up),
        serving={copy.replica.ordinal for copy in every if serves(copy)},
        ready=sum(1 for copy in every if serves(copy)),
        nodes=Counter(node for copy in every if not copy.leaving for node in copy.nodes),
        adapter_paths=tuple(each.path for each in lora.adapters if each.path) if lora is not None else (),
        moving=any(copy.leaving or copy.state.health is Health.COMING for copy in every),
        adopted=adopted,
        placements=_placements(known, every, _unrecorded(round_, model, known)),
        number=given_to_others(
            round_.record, known.id_prefix if known is not None else model.name, name=model.name
        ),
    )


def _unrecorded(round_: Round, model: DesiredModel, known: ModelRecord | None) -> list[ReplicaName]:
    """Copies that a node knows and the record does not: their numbers are taken."""
    prefix = known.id_prefix if known is not None else model.name
    seen = (shard.report.replica for shard in round_.survey.shards.values())
    begins = f"{prefix}-"
    strays = (
        it
        for it in (*seen, *round_.record.forgotten)
        if it.startswith(begins) and it not in round_.record.replicas
    )
    names = (parse_replica_id(replica) for replica in strays)
    return [name for name in names if name is not None and name.prefix == prefix]


def _placements(
    known: ModelRecord | None, copies: list[Copy], unrecorded: list[ReplicaName]
) -> dict[int, int]:
    counts = {int(ordinal): n for ordinal, n in known.placements.items()} if known is not None else {}
    for copy in copies:
        counts[copy.replica.ordinal] = max(counts.get(copy.replica.ordinal, 0), copy.replica.n)
    for name in unrecorded:
        counts[name.ordinal] = max(counts.get(name.ordinal, 0), name.n)
    return counts


def _goal(model: DesiredModel, known: ModelRecord | None, held: Held | None) -> DesiredModel | None:
    """While Git's spec is held the model goes back to what was last good, if it may and that is something else."""
    if held is None:
        return model
    if (
        not model.spec.rollout.auto_revert
        or known is None
        or known.last_good_spec is None
        or known.last_good in (None, held.spec_digest)
    ):
        return None
    return as_desired(model, known.last_good_spec, str(known.last_good))


def as_desired(model: DesiredModel, spec: ReplicaSpec, digest: str) -> DesiredModel:
    """A recorded spec under the placement, rollout and count that Git asks for now."""
    return replace(
        model,
        spec=replace(
            spec.model,
            replicas=model.spec.replicas,
            placement=model.spec.placement,
            priority=model.spec.priority,
            rollout=model.spec.rollout,
            aliases=model.spec.aliases,
            protect=model.spec.protect,
        ),
        profile_name=spec.profile_name,
        profile=spec.profile,
        served_name=spec.served_name,
        spec_digest=Digest(digest),
        also_runs_as=(),
    )
