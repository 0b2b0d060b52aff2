"""``llmgw recover``: write a record that was lost or set back anew, one serial above everything that any agent obeys.

The agents know which shards run, where and for which fleet; the manifests know what a model's spec is.
"""

from collections.abc import Callable, Mapping, Sequence

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe
from llmgw.controller.passes.story import recover_message
from llmgw.core.moves.custody import to_forget
from llmgw.core.record import custody
from llmgw.core.record.leaving import with_leaving
from llmgw.core.record.naming import nodes_renamed
from llmgw.core.record.rebuilding import rebuilt, serials
from llmgw.model.ids import Commit, FleetId, key_id
from llmgw.model.problems import StalledError
from llmgw.model.record import Outcome, PassRecord, Record
from llmgw.model.report import Observed, Reach
from llmgw.model.struct import Struct, field, replace


class Recovered(Struct):
    """What is written."""

    record: Record
    left_alone: tuple[str, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)


class Before(Struct):
    """``version`` is what the new record replaces: None where the state branch is gone, its tip where it can't be read or was set
    back. ``record`` is what that holds, where it can be read, or what the branch held when it was last read here."""

    version: Commit | None = None
    record: Record | None = None


def _agreed(_: Recovered) -> None:
    """For those whom nobody asks."""


async def recover(
    fleet: Fleet,
    links: Links,
    *,
    commit: Commit | None,
    before: Before,
    forget: Sequence[str] = (),
    approve: Callable[[Recovered], None] = _agreed,
) -> Recovered:
    """``forget``: addresses of what is not to be managed. ``approve`` is given what is about to be written, and raises to refuse it.
    Raises StalledError when there is nothing to be recovered, or the agents don't agree whose they are."""
    secret = fleet.secret.load()
    if secret is None:
        raise StalledError(
            f"the fleet's secret is not on this machine, and the running replicas' keys are made from it: put it in "
            f"{fleet.secret.place} (mode 0600) first"
        )
    commit = commit or await fleet.source.newest()
    desired = await fleet.source.desired(commit, key_id=key_id(secret))
    old = before.record
    if old is not None:
        old = nodes_renamed(old, desired)
        desired = with_leaving(desired, old)
    links.whoever = True
    observed = await observe(desired.nodes, old, links, clock=fleet.clock)
    owner = _owner(observed, fleet.first_id if old is None else old.fleet)
    if old is not None:
        _require_same_fleet(old, owner)
        if before.version is not None:
            _require_set_back(old, observed)
    record, left = rebuilt(desired, observed, key_id=key_id(secret), fleet=owner, before=old)
    record = _without(replace(record, last_pass=_pass(fleet, record, commit)), forget, by=fleet.actor)
    silent = {name: node.error for name, node in observed.nodes.items() if node.reach is Reach.UNREACHABLE}
    found = Recovered(record=record, left_alone=left, unreachable=silent)
    approve(found)
    message = recover_message(record, left_alone=left, unreachable=silent)
    await fleet.store.write(record, after=before.version, message=message)
    return found


def _without(record: Record, addresses: Sequence[str], *, by: str) -> Record:
    assert record.last_pass is not None
    for address in addresses:
        going = [each.id for each in to_forget(address, record)]
        at = record.last_pass.started
        record = custody.forgotten(record, going, by=by, at=at, why="when the record was rebuilt")
    return record


def _require_same_fleet(before: Record, owner: FleetId) -> None:
    if owner != before.fleet:
        raise StalledError(
            f"the record is fleet {before.fleet}'s, and the agents are fleet {owner}'s: look at stateRepo and stateRef, or take"
            " the nodes over one by one (llmgw node adopt)"
        )


def _require_set_back(before: Record, observed: Observed) -> None:
    """A record that can be read is only written anew where agents obey a newer one."""
    obeyed = serials(observed, before.fleet).values()
    if max(obeyed, default=0) <= before.serial:
        raise StalledError(
            f"the record is there and can be read (serial {before.serial}), and no agent obeys a newer one: nothing is to be"
            " recovered"
        )


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
        lease_until=now + fleet.lease,
        outcome=Outcome.RECOVERED,
        ended=now,
    )
