"""Everything a pass must know before it decides, and the plan that follows: record, commit, nodes, plan.

Reads only; whoever asks for a plan and whoever carries one out come through here, so that both see the same.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.helps import have_read
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe, unasked
from llmgw.controller.passes.weigh import weigh
from llmgw.controller.repo.records import Stored
from llmgw.controller.secrets import require_key
from llmgw.core.planner import PlanOptions, plan
from llmgw.model.desired import Desired, DesiredNode
from llmgw.model.ids import Commit, key_id
from llmgw.model.plan import Plan
from llmgw.model.problems import LlmgwError, StalledError
from llmgw.model.record import Record
from llmgw.model.report import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be planned. ``commit`` None: the newest of the branch. ``worktree``: what lies in a work tree
    instead, given the key id; it can be planned, never applied. ``drained``: a node that is to be taken for one whose
    manifest says ``drain: true``, because somebody is taking it away."""

    commit: Commit | None = None
    worktree: Callable[[str], Desired] | None = None
    offline: bool = False
    allow_prune: bool = False
    allow_rollback: bool = False
    allow_unknown_size: bool = False
    drained: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """``record`` is the stored one, or the empty one of a fleet that has none yet."""

    stored: Stored
    record: Record
    desired: Desired
    observed: Observed
    plan: Plan


async def prepare(
    fleet: Fleet, wish: Wish, links: Links, *, check: Callable[[Stored, Commit | None], None] | None = None
) -> Prepared:
    """Read, observe, plan. The commit is resolved once and carried through. ``check`` is given what was read, before
    anything is made of it, and may raise."""
    stored, commit = await asyncio.gather(fleet.store.read(), _commit(fleet, wish))
    if check is not None:
        check(stored, commit)
    record = stored.record or _first_record(fleet, wish)
    desired = await _desired(fleet, wish, commit, record)
    links.fleet = record.fleet if stored.record else None
    if wish.offline:
        observed = unasked(desired.nodes, stored.record)
    else:
        observed = await observe(desired.nodes, stored.record, links, clock=fleet.clock)
        observed = await weigh(fleet, desired, record, observed, links)
        await have_read(fleet, desired, observed, links)
    made = await plan_again(fleet, wish, stored=stored, record=record, desired=desired, observed=observed)
    return Prepared(stored=stored, record=record, desired=desired, observed=observed, plan=made)


async def plan_again(
    fleet: Fleet, wish: Wish, *, stored: Stored, record: Record, desired: Desired, observed: Observed
) -> Plan:
    """The plan alone, from what is known already."""
    ended = record.last_pass.ended if record.last_pass else None
    goes_back, diverged = await _against_record(fleet, desired.commit, record)
    options = PlanOptions(
        allow_prune=wish.allow_prune,
        allow_rollback=wish.allow_rollback,
        allow_unknown_size=wish.allow_unknown_size,
        strict_ancestor=goes_back,
        diverged=diverged,
        offline=wish.offline,
        worktree=wish.worktree is not None,
        key_id=record.key_id,
        record_commit=stored.version,
        record_at=ended or (record.last_pass.started if record.last_pass else None),
    )
    return plan(desired, record, observed, fleet.adapters, now=fleet.clock.now(), options=options)


async def _commit(fleet: Fleet, wish: Wish) -> Commit | None:
    if wish.worktree is not None:
        return None
    return wish.commit or await fleet.source.newest()


async def _desired(fleet: Fleet, wish: Wish, commit: Commit | None, record: Record) -> Desired:
    if wish.worktree is not None:
        return wish.worktree(record.key_id)
    assert commit is not None
    desired = await fleet.source.desired(commit, key_id=record.key_id)
    return draining(desired, wish.drained) if wish.drained is not None else desired


def draining(desired: Desired, name: str) -> Desired:
    """The same fleet with one node that is to be emptied."""
    node = desired.nodes[name]
    return replace(desired, nodes={**desired.nodes, name: replace(node, spec=replace(node.spec, drain=True))})


async def _against_record(fleet: Fleet, commit: Commit | None, record: Record) -> tuple[bool, bool]:
    """Whether the commit is a strict ancestor of the one that was applied last, and whether the two have diverged."""
    applied = record.commit
    if commit is None or applied is None or commit == applied:
        return False, False
    goes_back = await fleet.source.is_ancestor(commit, applied)
    return goes_back, not goes_back and not await fleet.source.is_ancestor(applied, commit)


def _first_record(fleet: Fleet, wish: Wish) -> Record:
    """An empty record. Its key id is that of the secret, which an offline plan does not make."""
    secret = fleet.secret.load() if wish.offline else fleet.secret.make()
    return Record(fleet=fleet.first_id, key_id=key_id(secret) if secret else "")


def own_secret(fleet: Fleet, record: Record) -> bytes:
    """The secret that the record's keys are made from. StalledError when this machine has none, or another one."""
    secret = fleet.secret.load()
    if secret is None:
        raise StalledError(
            f"fleet secret {record.key_id} is not on this machine: copy it from where the fleet was applied before to "
            f"{fleet.secret.place} (mode 0600), or give it in LLMGW_SECRET"
        )
    require_key(secret, recorded=record.key_id, place=fleet.secret.place)
    return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was applied last, for those who only look: the record, and the manifests that it came from."""

    stored: Stored
    record: Record
    desired: Desired


async def applied(fleet: Fleet) -> Applied:
    """The last applied commit, which was valid, and not the newest, which may not be. Before the first apply: the
    newest. How nodes are reached is what the newest says, if it can be read: a key or an address that was corrected helps at
    once, also where nothing was left to apply."""
    stored = await fleet.store.read()
    record = stored.record or Record(fleet=fleet.first_id)
    try:
        newest = await fleet.source.newest()
        now = await fleet.source.desired(newest, key_id=record.key_id)
    except LlmgwError:
        if record.commit is None:
            raise
        now = None
    if now is not None and record.commit in (None, now.commit):
        return Applied(stored=stored, record=record, desired=now)
    assert record.commit is not None
    desired = await fleet.source.desired(record.commit, key_id=record.key_id)
    if now is not None:
        desired = replace(desired, nodes={name: _reached(it, now) for name, it in desired.nodes.items()})
    return Applied(stored=stored, record=record, desired=desired)


def _reached(node: DesiredNode, now: Desired) -> DesiredNode:
    """As it was applied, by the way that is written now."""
    newer = now.nodes.get(node.name)
    if newer is None or newer.spec.transport != node.spec.transport or newer.spec.ssh == node.spec.ssh:
        return node
    return replace(node, spec=replace(node.spec, ssh=newer.spec.ssh), where=newer.where)
