"""The record as if a commit had been applied and all of it had gone well: what a change of manifests is measured against when
nobody wants to know how the fleet really is."""

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.keyring import planning_key
from llmgw.controller.passes.observe import unasked
from llmgw.core.planner import PlanOptions, plan
from llmgw.core.record.leaving import with_leaving
from llmgw.core.record.recording import begin
from llmgw.core.seen.condition import LEAVING
from llmgw.model.ids import Commit
from llmgw.model.record import Outcome, PassRecord, Record, ReplicaPhase
from llmgw.model.struct import replace

MOST_PASSES = 100
"""Passes that a change may take: models roll one replica at a time. What has not come to rest then is as far as it has come."""


async def supposed(fleet: Fleet, commit: Commit, record: Record) -> Record:
    """``record`` gives the nodes' facts and where replicas are by now. Raises InvalidError for a commit that can't be read."""
    if record.commit == commit and record.partial is None:
        return record
    serial, key = record.serial, planning_key(fleet, record)
    options = PlanOptions(
        offline=True, allow_prune=True, allow_rollback=True, allow_unknown_size=True, key_id=key
    )
    asked = await fleet.source.desired(commit, key_id=key)
    now = fleet.clock.now()
    for _ in range(MOST_PASSES):
        desired = with_leaving(asked, record)
        observed = unasked(desired.nodes, record)
        made = plan(desired, record, observed, fleet.adapters, now=now, options=options)
        if not made.commands:
            break
        passed = PassRecord(
            serial=record.serial + 1,
            holder=fleet.holder,
            trigger="manual",
            actor=fleet.actor,
            commit=commit,
            plan_digest="",
            started=now,
            lease_until=now,
            outcome=Outcome.DONE,
        )
        record = _gone_well(begin(record, desired, made, observed, pass_record=passed))
    return replace(record, serial=serial, commit=commit, partial=None)


def _gone_well(record: Record) -> Record:
    replicas = {
        name: replace(replica, phase=ReplicaPhase.SERVING)
        for name, replica in record.replicas.items()
        if replica.phase not in LEAVING
    }
    return replace(record, replicas=replicas)
