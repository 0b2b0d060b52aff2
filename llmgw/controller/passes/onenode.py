"""Plans about one node that a person asks for beside what Git asks for, and what stands against taking a node away. Pure.

Given to a pass as :attr:`PassRequest.instead`, so that they go by the same lock, lease, fence and record as every other plan.
"""

from collections.abc import Callable, Iterator

from llmgw.controller.passes.prepare import Prepared
from llmgw.core.amounts import names, plural
from llmgw.core.moves import commands
from llmgw.core.seen.condition import ENDED, Health, condition
from llmgw.core.seen.survey import survey
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.ids import ShardId, shard_id
from llmgw.model.plan import Action, Change, Plan, Step
from llmgw.model.problems import StalledError
from llmgw.model.record import Record, ReplicaPhase, ReplicaRecord
from llmgw.model.report import NodeObservation, Observed, Report, ShardReport
from llmgw.model.struct import replace

MakePlan = Callable[[Prepared], Plan]


# ---- plans -------------------------------------------------------------------------------------------


def bootstrapping(node: str, *, reason: str) -> MakePlan:
    """Installs, mends, upgrades or starts the agent of one node, whether or not a plan would."""

    def make(prepared: Prepared) -> Plan:
        if node not in prepared.desired.nodes:
            raise StalledError(f"node {node} is not in the manifests any more: put it back to set it up")
        step = commands.bootstrap(node, reason)
        change = Change(
            address=f"node/{node}",
            action=Action.UPDATE,
            keyword="asked-for",
            reason=reason,
            where=prepared.desired.nodes[node].where,
        )
        return instead(prepared, changes=(change,), steps=(step,))

    return make


def evicting(node: str) -> MakePlan:
    """Stops every replica that has a rank on one node, and what no record knows there, without a drain and without a
    successor. A gang goes as a whole."""

    def make(prepared: Prepared) -> Plan:
        going = [
            each for each in replicas_on(prepared.record, node) if each.phase is not ReplicaPhase.STOPPING
        ]
        why = f"{node} is being removed"
        alone = strays(prepared.observed.nodes[node], prepared.record)
        return instead(
            prepared,
            changes=(
                *(_stopped(replica, prepared.desired, why) for replica in going),
                *(_stray_stopped(shard, why) for shard in alone),
            ),
            steps=(
                *(step for replica in going for step in _stops(replica, why)),
                *(commands.stop(shard.shard, node, why, model=shard.model) for shard in alone),
            ),
        )

    return make


def forgetting(node: str) -> MakePlan:
    """Drops the orders of what has ended on one node and nobody records, so that nothing on it is still to be kept."""

    def make(prepared: Prepared) -> Plan:
        ended = forgettable(prepared.observed.nodes[node].report, prepared.record)
        reason = f"{node} is being removed"
        return instead(
            prepared, changes=(), steps=tuple(commands.forget(shard, node, reason) for shard in ended)
        )

    return make


def forgettable(report: Report | None, record: Record) -> tuple[ShardId, ...]:
    """Shards that have ended and that nobody records."""
    shards = report.shards if report is not None else ()
    return tuple(it.shard for it in shards if it.state in ENDED and it.replica not in record.replicas)


def _stopped(replica: ReplicaRecord, desired: Desired, why: str) -> Change:
    model = desired.models.get(replica.model)
    asked = model is not None and replica.ordinal < model.spec.replicas
    then = "it comes back elsewhere if there is room" if asked else "Git does not ask for it any more"
    return Change(
        address=f"model/{replica.model}/{replica.ordinal}",
        action=Action.REMOVE,
        keyword="evicted",
        reason=f"{why}: {replica.id} is stopped at once",
        model=replica.model,
        ordinal=replica.ordinal,
        previous=replica.id,
        outage=f"requests in flight fail; {then}",
    )


def _stray_stopped(shard: ShardReport, why: str) -> Change:
    return Change(
        address=f"model/{shard.model}",
        action=Action.REMOVE,
        keyword="evicted",
        reason=f"{why}: {shard.shard}, which nobody recorded, is stopped at once",
        model=shard.model,
    )


def _stops(replica: ReplicaRecord, why: str) -> Iterator[Step]:
    for rank in replica.ranks:
        shard = shard_id(replica.id, rank.rank)
        yield commands.stop(shard, rank.node, why, model=replica.model, replica=replica.id)


def instead(prepared: Prepared, *, changes: tuple[Change, ...], steps: tuple[Step, ...]) -> Plan:
    """A plan of these alone."""
    return replace(
        prepared.plan, changes=changes, steps=steps, drift=(), warnings=(), waiting=(), unchanged=0
    )


# ---- what stands against taking a node away ----------------------------------------------------------


def replicas_on(record: Record, node: str) -> tuple[ReplicaRecord, ...]:
    """Recorded replicas with a rank there, in order of id."""
    found = (it for it in record.replicas.values() if any(rank.node == node for rank in it.ranks))
    return tuple(sorted(found, key=lambda replica: replica.id))


def strays(seen: NodeObservation, record: Record) -> tuple[ShardReport, ...]:
    """Shards that live there and that no record knows: nobody could command them once the agent is gone."""
    return tuple(
        shard
        for shard in (seen.report.shards if seen.report is not None else ())
        if shard.state not in ENDED and shard.replica not in record.replicas
    )


def demands(desired: Desired, node: str) -> tuple[str, ...]:
    """Why manifests can't do without a node, one sentence for each model; each says what to change."""
    found = []
    leaving = desired.nodes.get(node)
    for name, model in sorted(desired.models.items()):
        rules = model.spec.placement
        others = [one for one in desired.nodes.values() if one.name != node and _may_run(model, one)]
        if node in rules.nodes:
            found.append(
                f"model {name} ({model.where}) names {node} in spec.placement.nodes: name other nodes, or none"
            )
        elif leaving is not None and model.spec.replicas and _may_run(model, leaving) and not others:
            labels = f" with labels {dict(rules.labels)}" if rules.labels else ""
            found.append(
                f"model {name} ({model.where}) may run on no other node: {node} is the last of pool {rules.pool}{labels}: change"
                " its spec.placement, or set replicas: 0, or remove it"
            )
    return tuple(found)


def _may_run(model: DesiredModel, node: DesiredNode) -> bool:
    rules = model.spec.placement
    labelled = all(node.labels.get(key) == value for key, value in rules.labels.items())
    return node.spec.pool == rules.pool and labelled and (not rules.nodes or node.name in rules.nodes)


def last_of_protected(record: Record, desired: Desired, observed: Observed, node: str) -> tuple[str, ...]:
    """Protected models whose last ready replicas are on the node: what stopping it at once would end."""
    seen = survey(desired, record, observed.nodes, offline=False)
    found = []
    for name in sorted({replica.model for replica in replicas_on(record, node)}):
        known, model = record.models.get(name), desired.models.get(name)
        protected = (known is not None and known.protect) or (model is not None and model.spec.protect)
        elsewhere = [
            replica.id
            for replica in record.replicas.values()
            if replica.model == name
            and all(rank.node != node for rank in replica.ranks)
            and condition(replica, seen).health is Health.READY
        ]
        if protected and not elsewhere:
            found.append(name)
    return tuple(found)


def in_the_way(plan: Plan, record: Record, node: str) -> tuple[str, ...]:
    """What of a draining plan keeps replicas on the node: one line for each."""
    here = {replica.id for replica in replicas_on(record, node)}
    ordinals = {(replica.model, replica.ordinal) for replica in replicas_on(record, node)}
    return tuple(
        f"{change.address}: {change.reason}"
        for change in plan.blocked
        if {change.replica, change.previous} & here or (change.model, change.ordinal) in ordinals
    )


def what_runs(record: Record, node: str) -> str:
    """``2 replicas: chat-… and code-…``, for messages."""
    here = replicas_on(record, node)
    return f"{plural(len(here), 'replica')}: {names(replica.id for replica in here)}" if here else "nothing"
