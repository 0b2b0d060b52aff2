"""``llmgw recover``: write a record that was lost or set back anew, one serial above everything that any agent obeys.

The agents know which shards run, where and for which fleet; the manifests know what a model's spec is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe
from llmgw.controller.passes.story import recover_message
from llmgw.core.record.leaving import with_leaving
from llmgw.core.record.naming import nodes_renamed
from llmgw.core.record.rebuilding import rebuilt, serials
from llmgw.model.ids import Commit, FleetId, key_id
from llmgw.model.problems import StalledError
from llmgw.model.record import Outcome, PassRecord, Record
from llmgw.model.report import Observed, Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    record: Record
    version: Commit
    left_alone: tuple[str, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)


async def recover(
    fleet: Fleet,
    links: Links,
    *,
    commit: Commit | None,
    after: Commit | None,
    before: Record | None = None,
) -> Recovered:
    """``after`` is the version that the new record replaces: None where the state branch is gone, its tip where it can't
    be read or was set back. ``before`` is what it holds, where it can be read. Raises StalledError when there is nothing to be
    recovered, or the agents don't agree whose they are."""
    secret = fleet.secret.load()
    if secret is None:
        raise StalledError(
            f"the fleet's secret is not on this machine, and the running replicas' keys are made from it: put it in "
            f"{fleet.secret.place} (mode 0600) first"
        )
    commit = commit or await fleet.source.newest()
    desired = await fleet.source.desired(commit, key_id=key_id(secret))
    if before is not None:
        before = nodes_renamed(before, desired)
        desired = with_leaving(desired, before)
    links.whoever = True
    observed = await observe(desired.nodes, before, links, clock=fleet.clock)
    owner = _owner(observed, fleet.first_id if before is None else before.fleet)
    if before is not None:
        _require_set_back(before, observed, owner)
    record, left = rebuilt(desired, observed, key_id=key_id(secret), fleet=owner, before=before)
    record = replace(record, last_pass=_pass(fleet, record, commit))
    silent = {name: node.error for name, node in observed.nodes.items() if node.reach is Reach.UNREACHABLE}
    message = recover_message(record, left_alone=left, unreachable=silent)
    version = await fleet.store.write(record, after=after, message=message)
    return Recovered(record=record, version=version, left_alone=left, unreachable=silent)


def _require_set_back(before: Record, observed: Observed, owner: FleetId) -> None:
    """A record that can be read is only written anew where agents obey a newer one."""
    if owner != before.fleet:
        raise StalledError(
            f"the record is fleet {before.fleet}'s, and the agents are fleet {owner}'s: look at stateRepo and stateRef, or take"
            " the nodes over one by one (llmgw node adopt)"
        )
    ahead = {name: serial for name, serial in serials(observed, owner).items() if serial > before.serial}
    if not ahead:
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
