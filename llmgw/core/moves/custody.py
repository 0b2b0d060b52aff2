"""What a person takes out of management or puts back, by address: which replicas are meant, and why not."""

from collections.abc import Iterable, Iterator, Mapping

from llmgw.core.amounts import names, plural
from llmgw.core.moves.adoption import as_replica
from llmgw.core.moves.diff import spec_changes
from llmgw.core.record.recording import desired_spec
from llmgw.core.seen.condition import LEAVING
from llmgw.core.seen.strays import holds, strays
from llmgw.core.seen.survey import SeenShard, Survey
from llmgw.model.addresses import is_called
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import ReplicaId, parse_replica_id
from llmgw.model.plan import Action, Change, Decision
from llmgw.model.problems import StalledError
from llmgw.model.record import Record, ReplicaRecord, ReplicaSpec
from llmgw.model.struct import Struct

FIELDS_TOLD = 8
"""Differing fields that a refusal spells out."""


class _Name(Struct):
    """A replica's id, and what else it goes by."""

    replica: str
    model: str
    ordinal: int

    def is_meant_by(self, address: str) -> bool:
        return is_called(address, model=self.model, replica=self.replica)


def _of(replica: ReplicaRecord) -> _Name:
    return _Name(replica=replica.id, model=replica.model, ordinal=replica.ordinal)


# ---- forget ------------------------------------------------------------------------------------------


def to_forget(address: str, record: Record) -> tuple[ReplicaRecord, ...]:
    """The recorded replicas that are meant. StalledError where there is none, with what there is."""
    meant = [each for each in record.replicas.values() if _of(each).is_meant_by(address)]
    staying = tuple(each for each in meant if each.phase not in LEAVING)
    if staying:
        return staying
    if meant:
        raise StalledError(
            f"{names(each.id for each in meant)} is being stopped already: nothing is left to be forgotten"
        )
    if any(_of(each.replica).is_meant_by(address) for each in record.forgotten.values()):
        raise StalledError(f"{address} is forgotten already: `llmgw adopt {address}` manages it again")
    there = names(sorted({each.model for each in record.replicas.values()})) or "nothing yet"
    raise StalledError(
        f"nothing that is managed here is called {address}: name a model ({there}), model/NAME/ORDINAL, or a replica of"
        " `llmgw status`"
    )


def forget_change(replica: ReplicaRecord, desired: Desired, *, why: str) -> Change:
    """Says what comes of it: a place that Git asks for is filled again."""
    model = desired.models.get(replica.model)
    then = "Git does not ask for it any more, so nothing comes in its place"
    if model is not None and replica.ordinal < model.spec.replicas:
        then = (
            f"Git still asks for {replica.model}/{replica.ordinal}: the next apply places another copy where it fits; remove it from"
            " Git before that if none is meant"
        )
    because = f" ({why})" if why else ""
    return Change(
        address=f"model/{replica.model}/{replica.ordinal}",
        action=Action.UPDATE,
        keyword="forgotten",
        reason=f"{replica.id} runs on and is not managed any more{because}: it leaves the endpoints and keeps what it holds; {then}",
        model=replica.model,
        ordinal=replica.ordinal,
        previous=replica.id,
    )


# ---- adopt -------------------------------------------------------------------------------------------


def to_adopt(
    address: str, record: Record, desired: Desired, survey: Survey, *, key_id: str
) -> tuple[ReplicaRecord, ...]:
    """What is meant, as it will be recorded. StalledError where one of them can't be managed: Git must ask for exactly what
    runs, and its place must be free."""
    alone = strays(record, survey)
    meant: dict[str, _Name] = {
        name: _of(each.replica)
        for name, each in record.forgotten.items()
        if _of(each.replica).is_meant_by(address)
    }
    for name, shards in alone.items():
        parsed = parse_replica_id(name)
        known = _Name(replica=name, model=shards[0].report.model, ordinal=parsed.ordinal if parsed else -1)
        if known.is_meant_by(address):
            meant[name] = known
    if not meant:
        raise StalledError(_nothing(address, record, alone))
    reasons = [
        f"{name}: {why}"
        for name, known in meant.items()
        if (why := _why_not(known, record, desired, alone.get(name, ()), meant.values()))
    ]
    if reasons:
        raise StalledError(_refused(reasons))
    return tuple(
        _taken(name, record, desired, alone.get(name, ()), survey, key_id=key_id) for name in sorted(meant)
    )


def _nothing(address: str, record: Record, alone: Mapping[str, object]) -> str:
    if any(_of(each).is_meant_by(address) for each in record.replicas.values()):
        return f"{address} is managed already: nothing is to be adopted"
    there = names([*record.forgotten, *alone]) or "there is none"
    return f"nothing that is forgotten or that nobody recorded is called {address}: {there}"


def _refused(reasons: list[str]) -> str:
    head = (
        "it can't be adopted" if len(reasons) == 1 else f"{plural(len(reasons), 'replica')} can't be adopted"
    )
    return head + "".join(f"\n  - {reason}" for reason in reasons)


def _why_not(
    name: _Name,
    record: Record,
    desired: Desired,
    shards: tuple[SeenShard, ...],
    meant: Iterable[_Name],
) -> str:
    """Empty: it can be managed."""
    model = desired.models.get(name.model)
    if model is None:
        return f"Git asks for no model {name.model}: write its manifest first"
    if parse_replica_id(name.replica) is None:
        return "its name is no replica's: it can only be stopped (--prune-unrecorded)"
    if name.ordinal >= model.spec.replicas:
        return f"Git asks for {plural(model.spec.replicas, 'replica')} of {name.model}, and this is ordinal {name.ordinal}"
    for other in record.replicas.values():
        if (other.model, other.ordinal) == (name.model, name.ordinal):
            return f"{other.id} has its place: forget that one first, or ask for more replicas"
    if twins := [each.replica for each in meant if each != name and each.ordinal == name.ordinal]:
        return f"{names(twins)} would have the same place: name one of them"
    return _other_spec(name, record, model, shards)


def _other_spec(name: _Name, record: Record, model: DesiredModel, shards: tuple[SeenShard, ...]) -> str:
    left = record.forgotten.get(name.replica)
    digests = {left.replica.spec_digest} if left is not None else {it.report.spec_digest for it in shards}
    if all(model.runs_as(digest) for digest in digests):
        ranks = {it.report.rank for it in shards}
        if left is None and ranks != set(range(shards[0].report.ranks)):
            return f"only {len(ranks)} of its {shards[0].report.ranks} ranks are seen"
        return ""
    spec = left.replica.spec if left is not None else _known_spec(record, digests)
    told = _fields(spec, model) if spec is not None else _seen_fields(model, shards)
    return f"it does not run what Git asks for: {_listed(told)}"


def _listed(fields: Iterable[str]) -> str:
    listed = list(fields)
    more = f" and {len(listed) - FIELDS_TOLD} more" if len(listed) > FIELDS_TOLD else ""
    return "; ".join(listed[:FIELDS_TOLD]) + more


def _known_spec(record: Record, digests: set[str]) -> ReplicaSpec | None:
    """The record may know what a digest stands for, from another replica or from what was last good."""
    for replica in record.holding:
        if replica.spec_digest in digests:
            return replica.spec
    for known in record.models.values():
        if known.last_good in digests and known.last_good_spec is not None:
            return known.last_good_spec
    return None


def _fields(spec: ReplicaSpec, model: DesiredModel) -> Iterator[str]:
    changes = spec_changes(spec, desired_spec(model, spec.key_id), replaces=True)
    forcing = [each for each in changes if each.forces_replacement]
    for each in forcing or changes:
        yield f"{each.path} is {each.old}, Git says {each.new}"


def _seen_fields(model: DesiredModel, shards: tuple[SeenShard, ...]) -> Iterator[str]:
    """What reports tell of a spec that nobody recorded: little, but more than a digest."""
    first = shards[0].report
    if first.profile != model.profile_name:
        yield f"spec.profile is {first.profile}, Git says {model.profile_name}"
    if first.ranks != model.profile.nodes:
        yield f"profile.nodes is {first.ranks}, Git says {model.profile.nodes}"
    if (have := len(first.claims.gpus)) != model.profile.gpus.per_node:
        yield f"profile.gpus.perNode is {have}, Git says {model.profile.gpus.per_node}"
    yield f"its spec is {first.spec_digest[:8]}, Git's {model.spec_digest[:8]}; nobody recorded what else differs"


def _taken(
    name: str,
    record: Record,
    desired: Desired,
    shards: tuple[SeenShard, ...],
    survey: Survey,
    *,
    key_id: str,
) -> ReplicaRecord:
    if (left := record.forgotten.get(name)) is not None:
        return left.replica
    found = as_replica(ReplicaId(name), list(shards), record.models, desired, survey, key_id=key_id)
    if found is None:
        raise StalledError(
            f"it can't be adopted: {name} was first called otherwise, or its nodes are not in Git, or it holds no port"
        )
    return found


def adopt_change(replica: ReplicaRecord, shards: tuple[SeenShard, ...]) -> Change:
    where = names(dict.fromkeys(rank.node for rank in replica.ranks))
    held = f"; it {holds(shards)}" if shards else ""
    return Change(
        address=f"model/{replica.model}/{replica.ordinal}",
        action=Action.UPDATE,
        keyword="managed",
        reason=f"{replica.id} runs on {where} as Git asks: it is managed again, nothing restarts{held}",
        model=replica.model,
        ordinal=replica.ordinal,
        replica=replica.id,
        placement=Decision(ranks=replica.ranks, reasons=("where it runs",)),
        where=replica.origin.where,
    )
