"""Desired + record + observed -> plan. Reads as the story of a plan; each chapter has a module of its own.

Pure: the same inputs give the same plan, to the byte. It decides to the last word, gives a reason for everything, and
leaves no choice to those who carry it out.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from llmgw import __version__
from llmgw.core.adapter import EngineAdapter
from llmgw.core.moves.adapters import paths_apart
from llmgw.core.moves.adoption import adoptable, adoption_change
from llmgw.core.moves.basis import observed_digest
from llmgw.core.moves.guards import (
    blocked_change,
    blocked_removals,
    diverged_history,
    emptied,
    refuse_going_back,
    refuse_newer_agents,
    refuse_other_secret,
    refuse_second_agents,
)
from llmgw.core.moves.jobs import drop_unwanted
from llmgw.core.moves.membership import Agents, settle_nodes
from llmgw.core.moves.narrowing import freeze, require_known, target
from llmgw.core.moves.networks import lost_fabrics, shortcomings, untrue_labels
from llmgw.core.moves.removal import leftovers, remove_models
from llmgw.core.moves.returned import stop_returned
from llmgw.core.moves.rollout import settle_model
from llmgw.core.moves.round import Round
from llmgw.core.moves.sizes import kinds_of
from llmgw.core.moves.standing import Want
from llmgw.core.moves.steps import StepBook
from llmgw.core.moves.stocktaking import standing
from llmgw.core.moves.strays import prune_strays, tell_forgotten
from llmgw.core.moves.succession import fulfil
from llmgw.core.place.claims import ledgers
from llmgw.core.place.placement import Placer
from llmgw.core.record.anew import asked_anew
from llmgw.core.record.naming import node_renames, nodes_renamed, renamed, renames
from llmgw.core.record.news import fold_replicas
from llmgw.core.record.recording import KEY_ID
from llmgw.core.record.setbacks import resting
from llmgw.core.seen.drift import drift
from llmgw.core.seen.fences import obeying
from llmgw.core.seen.silence import listened
from llmgw.core.seen.survey import Survey, survey
from llmgw.core.windows import gate
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import Commit
from llmgw.model.plan import Action, Basis, Change, Drift, Plan, Step, StepKind, told_of
from llmgw.model.record import Record, ReplicaRecord
from llmgw.model.report import Observed
from llmgw.model.struct import Struct, field, replace


class PlanOptions(Struct):
    """What the shell knows and a person may allow. ``strict_ancestor``: the commit is a strict ancestor of the recorded one; ``diverged``: neither comes after the other.
    ``record_commit`` and ``record_at`` say which record an offline plan was made from. Agents older than ``agent_version``
    are upgraded, and over SSH those of another ``agent_build`` replaced (empty: any will do).

    ``suspended_by`` tells who suspended the fleet. ``override`` is why changes are to be made although they are frozen,
    ``targets`` are the only addresses to plan, ``replaced`` those that get new copies though nothing changed, and who asks.
    ``rotated_from`` is the key id that ``key_id`` takes the place of."""

    allow_prune: bool = False
    allow_rollback: bool = False
    strict_ancestor: bool = False
    diverged: bool = False
    offline: bool = False
    worktree: bool = False
    key_id: str = ""
    record_commit: Commit | None = None
    record_at: datetime | None = None
    agent_version: str = __version__
    agent_build: str = ""
    suspended_by: str = ""
    override: str = ""
    targets: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    rotated_from: str = ""
    allow_unknown_size: bool = False
    prune_unrecorded: bool = False


def plan(
    desired: Desired,
    record: Record,
    observed: Observed,
    adapters: Mapping[str, EngineAdapter],
    *,
    now: datetime,
    options: PlanOptions,
) -> Plan:
    """The changes from what was recorded and seen to what is desired, and the steps that make them.

    Raises StalledError where the whole plan is refused; what is blocked for itself only is a change of the plan."""
    made = _whole(desired, asked_anew(record, options.replaced), observed, adapters, now=now, options=options)
    made = replace(made, replaced=options.replaced, override=options.override)
    made = replace(made, gate=gate(desired.fleet, now, suspended=options.suspended_by))
    if options.targets:
        require_known(options.targets, _addresses(desired, record))
        made = target(made, options.targets)
    if asked_anew(record, options.replaced) != record:
        made = replace(made, steps=(*_note_wishes(options.replaced), *made.steps))
    if made.gate is None or made.gate.open or options.override or options.offline or options.worktree:
        return made
    return freeze(made, made.gate, record)


def _note_wishes(replaced: Mapping[str, str]) -> Iterator[Step]:
    """The record remembers what somebody asked for until it is done, also where nothing can be done about it yet."""
    for address, by in replaced.items():
        wish = f"publish the wish for new copies of {address}"
        yield Step(id=wish, kind=StepKind.PUBLISH, reason=f"{by} asks for it")


def _addresses(desired: Desired, record: Record) -> frozenset[str]:
    """Everything that a plan can be about."""
    replicas = {f"model/{it.model}/{it.ordinal}" for it in record.replicas.values()}
    replicas |= {f"model/{it.name}/{n}" for it in desired.models.values() for n in range(it.spec.replicas)}
    models = {f"model/{name}" for name in (*desired.models, *record.models)}
    return frozenset(replicas | models | {f"node/{name}" for name in (*desired.nodes, *record.nodes)})


def _whole(
    desired: Desired,
    record: Record,
    observed: Observed,
    adapters: Mapping[str, EngineAdapter],
    *,
    now: datetime,
    options: PlanOptions,
) -> Plan:
    """Everything that Git asks for."""
    refuse_other_secret(record, options.key_id, rotated_from=options.rotated_from)
    refuse_newer_agents(desired, options.agent_version)
    refuse_going_back(
        record, desired, strict_ancestor=options.strict_ancestor, allowed=options.allow_rollback
    )
    renamed_nodes = frozenset(node_renames(record, desired).values())
    record = nodes_renamed(record, desired)
    seen = survey(desired, record, observed.nodes, offline=options.offline)
    refuse_second_agents(record, desired, seen)
    seen = obeying(listened(seen, record, desired.fleet.unreachable, now=now), record)
    seen = resting(seen, record.setbacks, now=now)
    settled = record if options.offline else fold_replicas(record, seen, now)
    renamed_models = {new: old for old, new in renames(settled, desired).items()}
    settled = renamed(settled, desired)
    replicas = _by_model(settled)
    blocked = blocked_removals(settled, desired, replicas, allow_prune=options.allow_prune)
    if emptied(settled, desired, replicas) and not options.allow_prune:
        changes = tuple(blocked_change(name, why) for name, why in sorted(blocked.items()))
        return _bound(desired, record, seen, now, options, changes, drift(settled, seen, frozenset()))

    adopted = adoptable(settled, desired, seen, key_id=options.key_id)
    for replica in adopted:
        replicas.setdefault(replica.model, []).append(replica)
    every = (*settled.holding, *adopted)
    weights = {**record.weights, **(observed.weights or {})}
    round_ = Round(
        desired=desired,
        record=settled,
        survey=seen,
        placer=Placer(ledgers(seen, every)),
        book=StepBook(seen, adapters, desired.fleet.pip, now, weights),
        adapters=adapters,
        key_id=options.key_id,
        now=now,
        renamed=renamed_models,
        renamed_nodes=renamed_nodes,
        weights=weights,
        kinds=kinds_of(seen.nodes.values()),
        allow_unknown_size=options.allow_unknown_size,
    )
    round_.told.warnings += [told_of(problem) for problem in desired.warnings]
    if options.diverged:
        round_.told.warnings.append(diverged_history(record, desired))
    settle_nodes(
        round_, agents=Agents.wanted(desired.fleet.agent, options.agent_version, options.agent_build)
    )
    remove_models(round_, replicas, blocked)
    _adopt(round_, adopted)
    tell_forgotten(round_)
    stop_returned(round_, adopted=frozenset(each.id for each in adopted))
    if options.prune_unrecorded:
        prune_strays(round_, adopted=frozenset(each.id for each in adopted))
    _settle_models(round_, replicas, frozenset(replica.id for replica in adopted))
    return _finish(round_, record, options, _drift(settled, seen, adopted, options))


def _by_model(record: Record) -> dict[str, list[ReplicaRecord]]:
    found: dict[str, list[ReplicaRecord]] = {}
    for replica in record.replicas.values():
        found.setdefault(replica.model, []).append(replica)
    return found


def _adopt(round_: Round, adopted: tuple[ReplicaRecord, ...]) -> None:
    for replica in adopted:
        change = adoption_change(replica)
        round_.told.changes.append(change)
        round_.book.publish(replica.id, model=replica.model, reason=change.reason)


def _settle_models(
    round_: Round, replicas: Mapping[str, list[ReplicaRecord]], adopted: frozenset[str]
) -> None:
    """Everything that goes or stays first, for all models; then places for what comes."""
    wants: list[Want] = []
    for name, model in sorted(round_.desired.models.items()):
        if model.profile.engine.name not in round_.adapters:
            round_.told.changes.append(_no_engine(model))
            continue
        stand = round_.stands[name] = standing(round_, model, replicas.get(name, []), adopted)
        wants += settle_model(round_, stand)
    for want in sorted(wants, key=lambda want: want.order):
        fulfil(round_, want)


def _no_engine(model: DesiredModel) -> Change:
    return Change(
        address=f"model/{model.name}",
        action=Action.BLOCKED,
        keyword="no-engine",
        reason=f"engine {model.profile.engine.name} is not supported yet: what runs is left alone",
        model=model.name,
        where=model.where,
    )


def _finish(round_: Round, record: Record, options: PlanOptions, drifts: tuple[Drift, ...]) -> Plan:
    if options.rotated_from and not round_.book.has_commands():
        # With whatever else is commanded the record learns it anyway.
        reason = f"takes the place of {options.rotated_from}, and nothing can be replaced for it now"
        round_.book.publish(f"secret/{options.key_id}", model=None, reason=reason)
    if round_.book.has_commands():
        held = (model.held for model in round_.record.models.values())
        drop_unwanted(round_)
        leftovers(round_, frozenset(each.replica for each in held if each is not None and each.replica))
    made = _bound(
        round_.desired,
        record,
        round_.survey,
        round_.now,
        options,
        tuple(sorted(round_.told.changes, key=_order)),
        drifts,
    )
    return replace(
        made,
        steps=round_.book.finish(),
        warnings=(
            *round_.told.warnings,
            *untrue_labels(round_),
            *lost_fabrics(round_),
            *paths_apart(round_),
            *shortcomings(round_),
        ),
        waiting=tuple(sorted(round_.told.waiting)),
        due=min(round_.told.due, default=None),
        unchanged=len(round_.told.unchanged - round_.departing),
    )


def _drift(
    settled: Record, seen: Survey, adopted: tuple[ReplicaRecord, ...], options: PlanOptions
) -> tuple[Drift, ...]:
    ids = frozenset(each.id for each in adopted)
    return drift(settled, seen, ids, pruned=options.prune_unrecorded)


def _order(change: Change) -> tuple[bool, str, int, str]:
    """Nodes first, then models by name and ordinal; what concerns a model as such before its replicas."""
    is_model = change.address.startswith("model/")
    ordinal = -1 if change.ordinal is None else change.ordinal
    return (is_model, change.model or change.address, ordinal, change.previous or "")


def _bound(
    desired: Desired,
    record: Record,
    seen: Survey,
    now: datetime,
    options: PlanOptions,
    changes: tuple[Change, ...],
    drifts: tuple[Drift, ...],
) -> Plan:
    """A plan that says what it was made from."""
    basis = Basis(
        fleet=record.fleet,
        commit=desired.commit,
        serial=record.serial,
        observed=observed_digest(seen),
        offline=options.offline,
        worktree=options.worktree or desired.commit is None,
        record_at=options.record_at,
        record_commit=options.record_commit,
        signer=desired.signer,
        diverged_from=record.commit if options.diverged else None,
    )
    return Plan(basis=basis, created=now, changes=changes, drift=drifts, extra={KEY_ID: options.key_id})
