"""Where reports differ from the record: what happened without anybody asking for it. Only told, decided elsewhere."""

from collections.abc import Iterator

from llmgw.core.amounts import at, names, plural
from llmgw.core.seen.condition import ENDED, LEAVING, Condition, Health, changed, condition
from llmgw.core.seen.strays import holds
from llmgw.core.seen.survey import NodeView, SeenShard, Survey
from llmgw.model.plan import Drift
from llmgw.model.record import NodeRecord, Record, ReplicaPhase, ReplicaRecord


def drift(
    record: Record, survey: Survey, adopted: frozenset[str], *, pruned: bool = False
) -> tuple[Drift, ...]:
    """``adopted``: replicas that nobody recorded and that this plan takes over. ``pruned``: it stops the others."""
    if survey.offline:
        return ()
    found = [
        *(each for name, node in record.nodes.items() for each in _node(node, survey.nodes.get(name))),
        *(each for replica in record.replicas.values() for each in _replica(replica, survey)),
        *_unrecorded(record, survey, adopted, pruned=pruned),
    ]
    return tuple(sorted(found, key=lambda each: (each.address, each.keyword, each.text)))


def _node(recorded: NodeRecord, view: NodeView | None) -> Iterator[Drift]:
    if view is None or view.report is None or view.intruder:
        return
    address = f"node/{recorded.name}"
    boot = view.report.agent.boot_id
    if recorded.boot_id and boot and recorded.boot_id != boot:
        text = f"the machine was restarted (its boot is {boot[:8]} now)"
        yield Drift(address=address, keyword="rebooted", text=text, node=recorded.name)
    if recorded.facts is None or view.facts is None:
        return
    before = {gpu.uuid: gpu for gpu in recorded.facts.gpus}
    now = {gpu.uuid: gpu for gpu in view.facts.gpus}
    if lost := sorted(before.keys() - now.keys()):
        text = f"{len(lost)} of {plural(len(before), 'GPU')} gone: {names(lost)}"
        yield Drift(address=address, keyword="gpus-lost", text=text, node=recorded.name)
    if came := sorted(now.keys() - before.keys()):
        text = f"{plural(len(came), 'new GPU')}: {names(came)}"
        yield Drift(address=address, keyword="gpus-found", text=text, node=recorded.name)
    for uuid, gpu in now.items():
        if uuid in before and gpu.health and gpu.health != before[uuid].health:
            text = f"GPU {gpu.index} became unhealthy: {'; '.join(gpu.health)}"
            yield Drift(address=address, keyword="gpu-unhealthy", text=text, node=recorded.name)


def _replica(replica: ReplicaRecord, survey: Survey) -> Iterator[Drift]:
    state = condition(replica, survey)
    if replica.phase is ReplicaPhase.SERVING:
        yield from _serving(replica, state)
    for seen in state.shards:
        yield from _shard(replica, seen, survey)


def _serving(replica: ReplicaRecord, state: Condition) -> Iterator[Drift]:
    leader = state.leader
    node = replica.ranks[0].node
    match state.health:
        case Health.READY | Health.UNKNOWN:
            return
        case Health.MISSING:
            nodes = tuple(dict.fromkeys(rank.node for rank in replica.ranks))
            verb = "does" if len(nodes) == 1 else "do"
            keyword, text = "vanished", f"{names(nodes)} {verb} not know {replica.id} any more"
        case Health.FAILED if len(replica.ranks) > 1:
            keyword, text = "rank-lost", f"{replica.id} is {state.text}"
        case Health.FAILED:
            keyword, text = "failed", f"{replica.id} has failed: {_error(state)}"
        case Health.STOPPED if leader is not None and leader.by_hand is not None:
            return  # told of its shard, with who did it
        case Health.STOPPED:
            keyword, text = "stopped", f"{replica.id} was stopped on {node}"
        case Health.COMING:
            keyword, text = "not-ready", f"{replica.id} is not ready any more: {state.text}"
        case Health.DRAINING | Health.STOPPING:
            keyword, text = state.health.value, f"{replica.id} is {state.text} without a command from here"
    if leader is not None and leader.last_exit is not None:
        text += f"; it last ended at {at(leader.last_exit.at)}"
    yield Drift(address=_address(replica), keyword=keyword, text=text, node=node)


def _error(state: Condition) -> str:
    failure = state.failure
    return (failure.last_error or failure.reason) if failure is not None else state.text


def _shard(replica: ReplicaRecord, seen: SeenShard, survey: Survey) -> Iterator[Drift]:
    report = seen.report
    # Started by hand, it is what the record says it should be: only what was taken away is drift.
    if report.by_hand is not None and (report.by_hand.verb != "started" or replica.phase in LEAVING):
        text = f"{report.shard} was {changed(report, seen.node)}"
        yield Drift(
            address=_address(replica), keyword="manual", text=text, node=seen.node, shard=report.shard
        )
    view = survey.nodes[seen.node]
    pretended = view.facts is None or view.facts.gpu_source == "pretended"
    on = report.computes_on
    if report.state == "ready" and report.claims.gpus and on is not None and not on.gpus and not pretended:
        text = f"{report.shard} holds {plural(len(report.claims.gpus), 'GPU')} but computes on the CPU"
        yield Drift(
            address=_address(replica), keyword="on-cpu", text=text, node=seen.node, shard=report.shard
        )


def _unrecorded(record: Record, survey: Survey, adopted: frozenset[str], *, pruned: bool) -> Iterator[Drift]:
    left = "it is stopped" if pruned else "it is left alone (--prune-unrecorded stops it)"
    for seen in survey.shards.values():
        shard = seen.report
        if shard.state in ENDED or _recorded_at(record, seen) or shard.replica in record.forgotten:
            continue
        after = "it is exactly what Git asks for and is adopted" if shard.replica in adopted else left
        text = f"{shard.shard} runs on {seen.node} and nobody recorded it; it {holds((seen,))}: {after}"
        yield Drift(
            address=f"model/{shard.model}", keyword="unrecorded", text=text, node=seen.node, shard=shard.shard
        )
    for seen in survey.doubles:
        text = f"{seen.report.shard} is also reported by {seen.node}: it is left alone there"
        yield Drift(
            address=f"model/{seen.report.model}",
            keyword="double",
            text=text,
            node=seen.node,
            shard=seen.report.shard,
        )


def _recorded_at(record: Record, seen: SeenShard) -> bool:
    replica = record.replicas.get(seen.report.replica)
    return replica is not None and any(
        rank.node == seen.node and rank.rank == seen.report.rank for rank in replica.ranks
    )


def _address(replica: ReplicaRecord) -> str:
    return f"model/{replica.model}/{replica.ordinal}"
