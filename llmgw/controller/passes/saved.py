"""Plans kept in files: written for one use, read back, and refused when the world has moved since.

A saved plan binds the commit, the record's serial and what the nodes reported of what decides. Looking at it never
needs any of that; only applying does.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.prepare import Prepared, Wish
from llmgw.core.record.recording import KEY_ID
from llmgw.model.ids import digest
from llmgw.model.plan import FORMAT, Plan
from llmgw.model.problems import LlmgwError, StaleError, StalledError
from llmgw.model.struct import Struct, replace
from llmgw.wire.codec import CodecError, from_json, to_json

LARGEST = 256 * 1024 * 1024
"""Bytes: a plan that starts 3,000 replicas is about 20 MB."""
FORMAT_KEY = "formatVersion"
PINNED, PRUNE, ROLLBACK, UNSIZED = "pinned", "allowPrune", "allowRollback", "allowUnknownSize"
UNRECORDED = "pruneUnrecorded"
"""In ``Plan.extra``: what the plan was asked with. A commit asked for by name stays good when the branch moves on."""


class SavedPlan(Struct):
    """``digest`` names the plan in the record once it is spent."""

    plan: Plan
    digest: str
    path: Path


def with_wish(plan: Plan, wish: Wish) -> Plan:
    """The plan with what it was asked with, so that applying it needs no options."""
    asked = {
        PINNED: wish.commit is not None,
        PRUNE: wish.allow_prune,
        ROLLBACK: wish.allow_rollback,
        UNSIZED: wish.allow_unknown_size,
        UNRECORDED: wish.prune_unrecorded,
    }
    return replace(plan, extra={**plan.extra, **{name: "true" for name, given in asked.items() if given}})


def wish_of(saved: SavedPlan) -> Wish:
    extra = saved.plan.extra
    return Wish(
        commit=saved.plan.basis.commit if PINNED in extra else None,
        allow_prune=PRUNE in extra,
        allow_rollback=ROLLBACK in extra,
        allow_unknown_size=UNSIZED in extra,
        prune_unrecorded=UNRECORDED in extra,
        targets=saved.plan.targets,
        replaced=tuple(saved.plan.replaced),
        override=saved.plan.override,
    )


def document(plan: Plan) -> dict[str, object]:
    """A plan as JSON types: what ``plan --json`` prints and ``plan --out`` writes."""
    return {FORMAT_KEY: FORMAT, **to_json(plan)}


def save(plan: Plan, path: Path) -> None:
    """Written whole or not at all, for its owner only: command lines may tell what others should not read."""
    text = json.dumps(document(plan), ensure_ascii=False) + "\n"
    write_private(path, text.encode())


def write_private(path: Path, data: bytes) -> None:
    """Temp file beside it, mode 0600, then renamed."""
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as failed:
        raise StalledError(f"could not write {path}: {failed.strerror or failed}") from failed


def read(path: Path) -> SavedPlan:
    """StalledError when the file is no plan, or one of another version."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as failed:
        raise StalledError(f"could not read the plan {path}: {failed.strerror or failed}") from failed
    if len(data) > LARGEST:
        raise StalledError(f"{path} is larger than {LARGEST} bytes: that is no plan of llmgw's")
    content = _content(data)
    if content is None:
        raise StalledError(
            f"{path} is no plan that `llmgw plan --out` saved: give the file that it wrote, or none to apply the newest commit"
        )
    try:
        version = content.pop(FORMAT_KEY)
        if version != FORMAT:
            raise CodecError(f"it has format version {version}, this llmgw reads {FORMAT}")
        plan = from_json(Plan, content, strict=True)
    except (ValueError, RecursionError) as wrong:
        raise StalledError(
            f"{path} is no plan that can be applied: {wrong}: make it with `llmgw plan --out`"
        ) from wrong
    return SavedPlan(plan=plan, digest=digest(to_json(plan)), path=path)


def _content(data: bytes) -> dict[str, Any] | None:
    """None: nothing that could be a plan."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and FORMAT_KEY in content else None


def only_to_read(plan: Plan) -> str | None:
    """How a plan was made that can't be applied, whatever comes; None for one that can be."""
    basis = plan.basis
    if basis.offline:
        return "offline"
    return "from a work tree" if basis.worktree or basis.commit is None else None


async def check_fresh(fleet: Fleet, saved: SavedPlan, prepared: Prepared) -> None:
    """Raises StaleError that says what has moved since the plan was made."""
    basis, now = saved.plan.basis, prepared.plan.basis
    if (how := only_to_read(saved.plan)) is not None:
        raise StalledError(
            f"{saved.path} was planned {how}: it can be read, never applied; plan again without that"
        )
    assert basis.commit is not None
    if saved.digest in prepared.record.spent_plans:
        raise StaleError(f"{saved.path} was applied already: a saved plan is used once; plan again")
    if prepared.stored.record is not None and basis.fleet != now.fleet:
        raise StaleError(
            f"{saved.path} is for fleet {basis.fleet}, and this is fleet {now.fleet}: plan again"
        )
    if basis.serial != now.serial:
        raise StaleError(
            f"{saved.path} was made at serial {basis.serial}, and the record is at {now.serial}{await _last(fleet)}: plan again"
        )
    if basis.commit != now.commit:
        raise StaleError(
            f"{saved.path} is for commit {basis.commit[:10]}, and the branch has moved to {(now.commit or '')[:10]}: plan again"
        )
    if saved.plan.extra.get(KEY_ID) != prepared.plan.extra.get(KEY_ID):
        raise StaleError(f"{saved.path} was made before the fleet secret was rotated: plan again")
    if basis.observed != now.observed:
        raise StaleError(
            f"{saved.path}: the nodes have changed since it was made{_differences(saved.plan, prepared.plan)}: plan again"
        )


async def _last(fleet: Fleet) -> str:
    """Who wrote the record last and what they did."""
    try:
        newest = await fleet.store.history(limit=1)
    except LlmgwError:
        return ""
    if not newest:
        return ""
    actor = next((value for name, value in newest[0].trailers if name == "Llmgw-Actor"), "")
    return f" ({newest[0].subject}{f', by {actor}' if actor else ''})"


def _differences(old: Plan, new: Plan) -> str:
    """What the two plans tell differently, as far as they do."""
    before = {(drift.address, drift.text) for drift in old.drift}
    told = [drift.text for drift in new.drift if (drift.address, drift.text) not in before]
    was = {change.address: change.reason for change in old.changes}
    told += [
        f"{change.address}: {change.reason}"
        for change in new.changes
        if was.get(change.address) != change.reason
    ]
    told += [
        f"{address}: nothing to do any more"
        for address in was
        if address not in {it.address for it in new.changes}
    ]
    if not told:
        return " (an agent or a machine was restarted, or what holds a GPU is another)"
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    return f" ({'; '.join(told[:3])}{more})"
