"""What must never happen: refusals of a whole plan, and removals that nobody meant."""

from collections.abc import Iterable, Mapping

from llmgw.core.amounts import plural
from llmgw.core.moves.membership import is_older
from llmgw.core.seen.survey import Survey
from llmgw.model.desired import Desired
from llmgw.model.manifest import Local, NodeSpec
from llmgw.model.plan import PRUNE_DISABLED, Action, Change, Notice
from llmgw.model.problems import StalledError
from llmgw.model.record import ModelRecord, Record, ReplicaPhase, ReplicaRecord


def refuse_other_secret(record: Record, key_id: str, *, rotated_from: str = "") -> None:
    """``rotated_from``: the secret that the one of ``key_id`` takes the place of, because somebody has asked for that."""
    if record.key_id and key_id and record.key_id not in (key_id, rotated_from):
        raise StalledError(
            f"planning with fleet secret {key_id}, but the record was made with {record.key_id}: every replica's key "
            "would change. Copy the secret file from the machine that applied before, or set LLMGW_SECRET to its content"
        )


def refuse_newer_agents(desired: Desired, version: str) -> None:
    """``version`` is the only one that this llmgw has to install."""
    asked = desired.fleet.agent.version
    if asked is not None and is_older(version, asked):
        raise StalledError(
            f"the Fleet asks for agents of version {asked} or newer (spec.agent.version), and this llmgw is {version}, which "
            f"has no other agent to install: upgrade llmgw here, or ask for {version}"
        )


def refuse_going_back(record: Record, desired: Desired, *, strict_ancestor: bool, allowed: bool) -> None:
    if strict_ancestor and not allowed:
        raise StalledError(
            f"commit {(desired.commit or '')[:12]} is older than {(record.partial or record.commit or '')[:12]}, which was "
            f"applied last{' in part' if record.partial else ''} "
            f"(serial {record.serial}): applying it would undo what came between. Use --allow-rollback if that is meant, "
            "or `llmgw rollback`, which makes a new commit"
        )


def refuse_second_agents(record: Record, desired: Desired, seen: Survey) -> None:
    """A renamed node whose agent does not answer where its manifest puts it by now: it may run on elsewhere under the old name,
    and another one would start beside it. ``record`` has the new names."""
    for name, node in desired.nodes.items():
        known = record.nodes.get(name)
        if known is None or not known.formerly or known.spec is None or seen.nodes[name].report is not None:
            continue
        before, now = _work_directory(known.spec), _work_directory(node.spec)
        if before != now:
            field = "spec.local.workDir" if node.spec.transport == "local" else "spec.dirs.work"
            raise StalledError(
                f"node {name}, renamed from {known.formerly[-1]}, is to have its agent in {now}, while its agent may still run in {before}"
                f" under the old name: write {field}: {before} ({node.where}), and change it once the rename has been applied"
            )


def _work_directory(spec: NodeSpec) -> str:
    return (spec.local or Local()).work_dir if spec.transport == "local" else spec.dirs.work


def diverged_history(record: Record, desired: Desired) -> Notice:
    """Applied all the same: people rewrite history and change branches on purpose. But never without being told."""
    return Notice(
        text=f"commit {(desired.commit or '')[:12]} does not come after {(record.commit or '')[:12]}, which was applied last "
        f"(serial {record.serial}): history was rewritten, or this is another branch"
    )


def removed_models(record: Record, desired: Desired) -> tuple[str, ...]:
    """Recorded models that Git no longer names and that are not on their way out already."""
    return tuple(
        sorted(
            name for name, model in record.models.items() if name not in desired.models and not model.removed
        )
    )


def blocked_removals(
    record: Record, desired: Desired, replicas: Mapping[str, list[ReplicaRecord]], *, allow_prune: bool
) -> dict[str, tuple[str, str]]:
    """Keyword and reason for each model that Git no longer names and that must stay."""
    removed = removed_models(record, desired)
    running = [name for name in removed if stays(replicas.get(name))]
    blocked: dict[str, tuple[str, str]] = {}
    whole = _whole(record, desired, running, replicas, allow_prune=allow_prune)
    for name in removed:
        if whole is not None and name in running:
            blocked[name] = whole
        if record.models[name].protect and stays(replicas.get(name)):
            blocked[name] = (
                "protected",
                f"{name} is not in Git any more, but the record says it is protected: set protect: false first, then remove it",
            )
    return blocked


def _whole(
    record: Record,
    desired: Desired,
    running: list[str],
    replicas: Mapping[str, list[ReplicaRecord]],
    *,
    allow_prune: bool,
) -> tuple[str, str] | None:
    """What holds for all removals of this plan together."""
    prune = desired.fleet.prune
    if not running:
        return None
    if forbidden := _forbidden(record, desired, allow_prune=allow_prune):
        return PRUNE_DISABLED, forbidden
    if allow_prune:
        return None
    if emptied(record, desired, replicas):
        return (
            "emptied-fleet",
            "Git asks for no model at all: a fleet is only emptied with --allow-prune",
        )
    counted = sum(1 for name, model in record.models.items() if _counts(model, replicas.get(name)))
    limit = max(1, int(counted * prune.max_fraction))
    if len(running) <= limit:
        return None
    told = (
        f"{plural(len(running), 'model')} of {counted} would be removed at once, more than {limit} "
        f"(prune.maxFraction {prune.max_fraction:g}): use --allow-prune if that is meant"
    )
    return (
        "prune-limit",
        told,
    )


def _forbidden(record: Record, desired: Desired, *, allow_prune: bool) -> str:
    """By the Fleet, or by the Fleet of the commit applied last: who deletes a folder deletes both."""
    if not desired.fleet.prune.enabled:
        return "not in Git any more, and the fleet's prune.enabled is false: nothing is removed"
    if record.keeps_removed and not allow_prune:
        return (
            "not in Git any more, and the fleet's prune.enabled was false until now, which deleting the Fleet's manifest does not change:"
            " use --allow-prune if that is meant"
        )
    return ""


def stays(replicas: Iterable[ReplicaRecord] | None) -> bool:
    """Whether something of it runs that nobody has told to stop: what was told to stop needs no second leave to end."""
    return any(replica.phase is not ReplicaPhase.STOPPING for replica in replicas or ())


def _counts(model: ModelRecord, replicas: Iterable[ReplicaRecord] | None) -> bool:
    return stays(replicas) and not model.removed


def emptied(record: Record, desired: Desired, replicas: Mapping[str, list[ReplicaRecord]]) -> bool:
    """Whether something runs and Git asks for nothing any more."""
    return not desired.models and any(
        _counts(model, replicas.get(name)) for name, model in record.models.items()
    )


def blocked_change(name: str, why: tuple[str, str]) -> Change:
    keyword, reason = why
    return Change(address=f"model/{name}", action=Action.BLOCKED, keyword=keyword, reason=reason, model=name)
