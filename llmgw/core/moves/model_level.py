"""What changes about a model as such, without touching a shard: its count, priority, aliases, labels, name; and why it
may be held at another spec than Git's."""

from llmgw.core.amounts import at
from llmgw.core.moves.diff import change as field_change
from llmgw.core.moves.diff import spec_changes
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing
from llmgw.core.record.recording import desired_spec
from llmgw.core.seen.condition import brought_by
from llmgw.model.plan import Action, Change, FieldChange

TOLD_OF_THE_MODEL = frozenset({"spec.aliases", "spec.priority", "spec.protect", "spec.replicas"})
"""Fields that are told once, of the model, and not again of each replica."""


def tell_in_place(round_: Round, stand: Standing) -> None:
    """What changes in place: no shard is touched, the record makes it true."""
    model, known = stand.model, stand.known
    address = f"model/{model.name}"
    if known is None:
        if model.spec.replicas == 0:
            _publish_change(
                round_, stand, address, Action.CREATE, "new-model", "new in Git, with no replicas", ()
            )
        return
    fields = _model_fields(round_, stand)
    if not fields:
        return
    renamed = next((each for each in fields if each.path == "metadata.name"), None)
    scaled = model.spec.replicas - known.replicas
    if renamed is not None:
        keyword, reason = "renamed", f"renamed from {round_.renamed[model.name]}: nothing restarts"
    elif known.removed:
        keyword, reason = "returned", "in Git again before its last replica had stopped"
    elif scaled:
        keyword = "scaled-up" if scaled > 0 else "scaled-down"
        reason = f"replicas {known.replicas} -> {model.spec.replicas}"
    else:
        keyword, reason = "updated", "changes in place: nothing restarts"
    _publish_change(round_, stand, address, Action.UPDATE, keyword, reason, fields)


def _model_fields(round_: Round, stand: Standing) -> tuple[FieldChange, ...]:
    model, known = stand.model, stand.known
    if known is None:
        return ()
    pairs = (
        ("metadata.name", round_.renamed.get(model.name, known.name), model.name),
        ("metadata.labels", dict(known.labels), dict(model.labels)),
        ("spec.aliases", known.aliases, model.spec.aliases),
        ("spec.priority", known.priority, model.spec.priority),
        ("spec.protect", known.protect, model.spec.protect),
        ("spec.replicas", known.replicas, model.spec.replicas),
        ("removed", known.removed, False),
    )
    fields = [field_change(path, old, new) for path, old, new in pairs if old != new]
    told = {each.path for each in fields}
    wanted = desired_spec(model, round_.key_id)
    for copies in stand.copies.values():
        for copy in copies:
            if model.runs_as(copy.replica.spec_digest) and copy.replica.spec != wanted:
                new = spec_changes(copy.replica.spec, wanted, replaces=False)
                fields += [each for each in new if not any(_covers(path, each.path) for path in told)]
                return tuple(fields)
    return tuple(fields)


def _covers(path: str, other: str) -> bool:
    return other == path or other.startswith(f"{path}.")


def _publish_change(
    round_: Round,
    stand: Standing,
    address: str,
    action: Action,
    keyword: str,
    reason: str,
    fields: tuple[FieldChange, ...],
) -> None:
    name = stand.model.name
    round_.book.publish(name, model=name, reason=reason)
    round_.told.changes.append(
        Change(
            address=address,
            action=action,
            keyword=keyword,
            reason=reason,
            model=name,
            fields=fields,
            where=stand.model.where,
        )
    )


def tell_held(round_: Round, stand: Standing) -> None:
    held = stand.held
    if held is None:
        return
    if not stand.model.spec.rollout.auto_revert:
        instead = "rollout.autoRevert is false, so nothing is started in its place"
    elif stand.goal is not None:
        instead = f"it stays at its last good spec {stand.goal.spec_digest[:8]}"
    elif stand.serving:
        instead = "what serves is left alone"
    else:
        instead = "it was never ready with any other spec"
    brought = brought_by(held)
    whose = f"this spec, of {brought}" if brought else "this spec"
    lines = "".join(f"\n{line}" for line in held.last_lines)
    round_.told.changes.append(
        Change(
            address=f"model/{stand.model.name}",
            action=Action.BLOCKED,
            keyword="held",
            reason=f"held since {at(held.at)}: {held.replica or 'a new replica'} failed with {whose}: {held.reason}; "
            f"{instead}, and this one is not tried again until it changes{lines and ':'}{lines}",
            model=stand.model.name,
            replica=None,
            previous=held.replica,
            fields=_held_fields(round_, stand),
            where=stand.model.where,
        )
    )


def _held_fields(round_: Round, stand: Standing) -> tuple[FieldChange, ...]:
    if stand.known is None or stand.known.last_good_spec is None:
        return ()
    wanted = desired_spec(stand.model, round_.key_id)
    return spec_changes(stand.known.last_good_spec, wanted, replaces=True)
