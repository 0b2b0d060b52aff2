"""Everything a pass must know before it decides, and the plan that follows: record, commit, nodes, plan.

Reads only; whoever asks for a plan and whoever carries one out come through here, so that both see the same.
"""

from collections.abc import Callable

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.builds import leads
from llmgw.controller.passes.helps import have_read
from llmgw.controller.passes.keyring import planning_key
from llmgw.controller.passes.lease import open_pass
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.lostrecord import refuse_lost_record
from llmgw.controller.passes.observe import observe, unasked
from llmgw.controller.passes.supposed import supposed
from llmgw.controller.passes.weigh import weigh
from llmgw.controller.repo.records import Stored
from llmgw.controller.together import both
from llmgw.core.planner import PlanOptions, plan
from llmgw.core.record.leaving import with_leaving
from llmgw.core.record.naming import node_renames, nodes_as_recorded, nodes_renamed
from llmgw.core.record.rebuilding import serials
from llmgw.core.show.newest import asks_alike
from llmgw.core.windows import gate as gate_of
from llmgw.model.desired import Desired, DesiredNode
from llmgw.model.ids import Commit, key_id
from llmgw.model.plan import Gate, Notice, Plan
from llmgw.model.problems import InvalidError, LlmgwError, RetryError
from llmgw.model.record import Record
from llmgw.model.report import Observed
from llmgw.model.struct import Struct, replace


class Wish(Struct):
    """What is to be planned. ``commit`` None: the newest of the branch. ``worktree``: what lies in a work tree
    instead, given the key id; it can be planned, never applied. ``drained``: a node that is to be taken for one whose
    manifest says ``drain: true``, because somebody is taking it away. ``take_over``: a node of another fleet is about to become
    this one's. ``targets``: the only addresses to plan. ``replaced``:
    addresses that get new copies though nothing changed. ``override``: why changes are made although they are frozen.
    ``since``: the commit that is taken for applied, whatever the record says; only to look."""

    commit: Commit | None = None
    since: Commit | None = None
    worktree: Callable[[str], Desired] | None = None
    offline: bool = False
    allow_prune: bool = False
    allow_rollback: bool = False
    allow_unknown_size: bool = False
    prune_unrecorded: bool = False
    drained: str | None = None
    take_over: bool = False
    targets: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    override: str = ""


class Prepared(Struct):
    """``record`` is the stored one, or the empty one of a fleet that has none yet; its nodes have the names of ``desired``."""

    stored: Stored
    record: Record
    desired: Desired
    observed: Observed
    plan: Plan

    @property
    def grace(self) -> float:
        """Seconds that a node may be silent."""
        return self.desired.fleet.unreachable.grace


READ_AGAIN = 2
"""Times that the record is read again because somebody wrote it meanwhile: a pass of theirs writes an intent and an outcome."""


async def prepare(
    fleet: Fleet,
    wish: Wish,
    links: Links,
    *,
    check: Callable[[Stored, Commit | None], None] | None = None,
    read: Stored | None = None,
) -> Prepared:
    """Read, observe, plan. The commit is resolved once and carried through, unless the agents obey a newer record than the one
    that was read: then both are looked up again. ``check`` is given what was read, before anything is made of it, and may raise. ``read``: the record as it was read a
    moment ago."""
    known, commit = await _read(fleet, wish, read)
    prepared = await _prepared(fleet, wish, links, commit, known, check)
    for _ in range(READ_AGAIN):
        if not _overtaken(prepared):
            break
        known, commit = await _read(fleet, wish)
        if known.stored.version == prepared.stored.version:
            break
        prepared = await _prepared(fleet, wish, links, commit, known, check)
    return prepared


def _overtaken(prepared: Prepared) -> bool:
    """Whether agents obey a newer record than the one that was read: somebody applies right now, or it was set back."""
    obeyed = serials(prepared.observed, prepared.record.fleet).values()
    return max(obeyed, default=0) > prepared.record.serial


class _Read(Struct):
    """``doubt``: why it may not be the newest."""

    stored: Stored
    doubt: tuple[str, ...] = ()


async def _prepared(
    fleet: Fleet,
    wish: Wish,
    links: Links,
    commit: Commit | None,
    known: _Read,
    check: Callable[[Stored, Commit | None], None] | None,
) -> Prepared:
    stored, doubt = known.stored, known.doubt
    if check is not None:
        check(stored, commit)
    record = stored.record or _first_record(fleet, wish)
    if wish.since is not None:
        record = await supposed(fleet, wish.since, record)
        doubt = (*doubt, f"this is against commit {wish.since[:10]}, as if all of it were applied")
    desired = await _desired(fleet, wish, commit, record)
    called = nodes_renamed(record, desired)
    links.fleet = record.fleet if stored.record else None
    if wish.offline:
        observed = unasked(desired.nodes, called)
    else:
        observed = await observe(desired.nodes, called, links, clock=fleet.clock)
        if stored.record is None and not wish.take_over:
            await refuse_lost_record(desired, observed, links, clock=fleet.clock)
        observed = await weigh(fleet, desired, called, observed, links)
        await have_read(fleet, desired, observed, links)
    made = await plan_again(fleet, wish, stored=stored, record=record, desired=desired, observed=observed)
    made = replace(made, warnings=(*(Notice(text=it) for it in doubt), *made.warnings))
    return Prepared(stored=stored, record=called, desired=desired, observed=observed, plan=made)


async def _read(fleet: Fleet, wish: Wish, read: Stored | None = None) -> tuple[_Read, Commit | None]:
    """The record and the commit, asked for at once."""
    return await both(_record(fleet, wish, read), _commit(fleet, wish))


async def _record(fleet: Fleet, wish: Wish, read: Stored | None) -> _Read:
    """``read`` will do unless somebody was at work then: whether they still are is known now. Where nobody answers,
    a plan of a commit that was named makes do with what was read last: whoever applies has to read it anew and write it."""
    if read is not None and open_pass(read.record) is None:
        return _Read(stored=read)
    return await _newest(fleet, remembered=wish.commit is not None)


async def _newest(fleet: Fleet, *, remembered: bool) -> _Read:
    """``remembered``: where nobody answers, the one that was read last will do."""
    try:
        return _Read(stored=await fleet.store.read())
    except RetryError as away:
        if not remembered or fleet.remembered is None:
            raise
        stored = await fleet.remembered()
        if stored.record is None:
            raise
        serial = stored.record.serial
        text = (
            f"the record is that of serial {serial}, as it was read last, and may not be the newest: {away}"
        )
        return _Read(stored=stored, doubt=(text,))


async def plan_again(
    fleet: Fleet, wish: Wish, *, stored: Stored, record: Record, desired: Desired, observed: Observed
) -> Plan:
    """The plan alone, from what is known already."""
    ended = record.last_pass.ended if record.last_pass else None
    goes_back, diverged = await _against_record(fleet, desired.commit, record)
    key = planning_key(fleet, record)
    options = PlanOptions(
        allow_prune=wish.allow_prune,
        allow_rollback=wish.allow_rollback or wish.since is not None,
        allow_unknown_size=wish.allow_unknown_size,
        prune_unrecorded=wish.prune_unrecorded,
        strict_ancestor=goes_back,
        diverged=diverged,
        offline=wish.offline,
        worktree=wish.worktree is not None,
        key_id=key,
        rotated_from=record.key_id if key != record.key_id else "",
        agent_build="" if wish.offline else _build(fleet, record),
        suspended_by=await _suspended_by(fleet, desired),
        override=wish.override,
        targets=wish.targets,
        replaced=dict.fromkeys(wish.replaced, fleet.actor),
        record_commit=stored.version,
        record_at=ended or (record.last_pass.started if record.last_pass else None),
    )
    return plan(desired, record, observed, fleet.adapters, now=fleet.clock.now(), options=options)


def _build(fleet: Fleet, record: Record) -> str:
    """That agents are brought to; empty: they are left as another controller made them."""
    build = fleet.agent_build()
    return build if leads(record, build, fleet.instance) else ""


async def _suspended_by(fleet: Fleet, desired: Desired) -> str:
    where = desired.suspended_at
    if not desired.fleet.suspend or desired.commit is None or where is None:
        return ""
    wrote = await fleet.source.who_wrote(desired.commit, where)
    return f"{wrote} ({where})" if wrote else str(where)


async def _commit(fleet: Fleet, wish: Wish) -> Commit | None:
    if wish.worktree is not None:
        return None
    return wish.commit or await fleet.source.newest()


async def _desired(fleet: Fleet, wish: Wish, commit: Commit | None, record: Record) -> Desired:
    if wish.worktree is not None:
        return with_leaving(wish.worktree(planning_key(fleet, record)), record)
    assert commit is not None
    key = planning_key(fleet, record)
    desired = await fleet.source.desired(commit, key_id=key)
    if wish.commit is not None and record.commit is not None and record.nodes.keys() - desired.nodes.keys():
        desired = nodes_as_recorded(desired, await _now(fleet, record), record)
    desired = with_leaving(desired, record)
    return draining(desired, wish.drained) if wish.drained is not None else desired


def draining(desired: Desired, name: str) -> Desired:
    """The same fleet with one node that is to be emptied."""
    node = desired.nodes[name]
    return replace(desired, nodes={**desired.nodes, name: replace(node, spec=replace(node.spec, drain=True))})


async def _against_record(fleet: Fleet, commit: Commit | None, record: Record) -> tuple[bool, bool]:
    """Whether the commit is a strict ancestor of the one that was applied last, and whether the two have diverged."""
    applied = record.commit
    if commit is None or applied is None:
        return False, False
    if record.partial not in (None, commit) and await fleet.source.is_ancestor(commit, record.partial):
        return True, False
    if commit == applied:
        return False, False
    if await fleet.source.is_ancestor(applied, commit):
        return False, False
    goes_back = await fleet.source.is_ancestor(commit, applied)
    return goes_back, not goes_back


def _first_record(fleet: Fleet, wish: Wish) -> Record:
    """An empty record. Its key id is that of the secret, which an offline plan does not make."""
    secret = fleet.secret.load() if wish.offline else fleet.secret.make()
    return Record(fleet=fleet.first_id, key_id=key_id(secret) if secret else "")


class Applied(Struct):
    """What was applied last, for those who only look: the record, and the manifests that it came from."""

    stored: Stored
    record: Record
    desired: Desired
    newest: Commit | None = None  # of the branch, where it asks for something else than what was applied
    refused: tuple[str, ...] = ()  # why that one can't be used
    gate: Gate | None = (
        None  # by the newest commit that can be read: who suspends a fleet leaves nothing to apply
    )
    doubt: tuple[str, ...] = ()
    """Why this may not be the newest: the repository is away, and this is what was read of it last."""


async def applied(fleet: Fleet, *, remembered: bool = False) -> Applied:
    """The last applied commit, which was valid, and not the newest, which may not be. Before the first apply: the
    newest. How nodes are reached is what the newest says, if it can be read: a key or an address that was corrected helps at
    once, also where nothing was left to apply. ``remembered``: see Applied.doubt."""
    known = await _newest(fleet, remembered=remembered)
    stored, doubt = known.stored, known.doubt
    record = stored.record or Record(fleet=fleet.first_id)
    head = await _head(fleet, record, remembered=remembered)
    now = head.desired
    if now is not None and record.commit in (None, now.commit):
        return Applied(
            stored=stored,
            record=record,
            desired=with_leaving(now, record),
            gate=await _gate(fleet, now),
            doubt=doubt,
        )
    assert record.commit is not None
    asked = await fleet.source.desired(record.commit, key_id=record.key_id)
    desired = nodes_as_recorded(asked, now, record)
    if now is not None:
        desired = replace(
            desired, nodes={name: _reached(it, now, record) for name, it in desired.nodes.items()}
        )
    gate = await _gate(fleet, now or desired)
    alike = head.commit == record.commit or (now is not None and asks_alike(now, asked))
    return Applied(
        stored=stored,
        record=record,
        desired=with_leaving(desired, record),
        newest=None if alike else head.commit,
        refused=head.refused,
        gate=gate,
        doubt=doubt,
    )


class _Head(Struct):
    """The newest commit and what it says; neither where nobody tells which it is."""

    commit: Commit | None = None
    desired: Desired | None = None
    refused: tuple[str, ...] = ()


async def _now(fleet: Fleet, record: Record) -> Desired | None:
    """What the newest commit says. None where it can't be read and another was applied, which can."""
    return (await _head(fleet, record, remembered=False)).desired


async def _head(fleet: Fleet, record: Record, *, remembered: bool) -> _Head:
    """``remembered``: where nobody answers, the commit that was read last will do."""
    commit: Commit | None = None
    try:
        commit = await _tip(fleet, remembered=remembered and record.commit is not None)
        if commit is None:
            return _Head()
        return _Head(commit=commit, desired=await fleet.source.desired(commit, key_id=record.key_id))
    except LlmgwError as wrong:
        if record.commit is None:
            raise
        return _Head(commit=commit, refused=_problems(wrong))


def _problems(wrong: LlmgwError) -> tuple[str, ...]:
    """What is wrong with the commit itself: none of it may be, where a host did not answer."""
    match wrong:
        case InvalidError():
            return tuple(map(str, wrong.problems))
        case RetryError():
            return ()
        case _:
            return (str(wrong),)


async def _tip(fleet: Fleet, *, remembered: bool) -> Commit | None:
    try:
        return await fleet.source.newest()
    except RetryError:
        if not remembered or fleet.last_known is None:
            raise
        return await fleet.last_known()


async def _gate(fleet: Fleet, desired: Desired) -> Gate | None:
    return gate_of(desired.fleet, fleet.clock.now(), suspended=await _suspended_by(fleet, desired))


def _reached(node: DesiredNode, now: Desired, record: Record) -> DesiredNode:
    """As it was applied, by the way that is written now; leaving, where it is written no more."""
    newer = now.nodes.get(node.name)
    if newer is None and node.name not in node_renames(record, now):
        return replace(node, leaving=True)
    if newer is None or newer.spec.transport != node.spec.transport or newer.spec.ssh == node.spec.ssh:
        return node
    return replace(node, spec=replace(node.spec, ssh=newer.spec.ssh), where=newer.where)
