"""What is different between two records, one sentence a thing: what people are told when nobody commanded it."""

from datetime import datetime

from llmgw.core.amounts import size
from llmgw.model.record import Attempts, ModelRecord, NodeRecord, Record, ReplicaPhase, ReplicaRecord


def weighty(before: Record, after: Record) -> bool:
    """Whether somebody who reads the record would act differently: replicas, what is held, endpoints. The rest, facts of
    nodes and how far journals were read, can wait."""
    return _what_counts(before) != _what_counts(after)


def _what_counts(record: Record) -> tuple[object, ...]:
    return record.replicas, record.models, record.endpoints, record.forgotten, _silences(record)


def _silences(record: Record) -> dict[str, datetime | None]:
    """Of nodes that hold something: a clock runs from there."""
    holding = {rank.node for replica in record.replicas.values() for rank in replica.ranks}
    return {name: node.unreachable_since for name, node in record.nodes.items() if name in holding}


def any_news(before: Record, after: Record) -> bool:
    """How far the journals were read is no news by itself."""
    return weighty(before, after) or bool(_nodes(before, after) or _sizes(before, after))


def sentences(before: Record, after: Record) -> tuple[str, ...]:
    """Most important first."""
    return (
        *_replicas(before, after),
        *_models(before, after),
        *_endpoints(before, after),
        *_nodes(before, after),
        *_sizes(before, after),
    )


def _replicas(before: Record, after: Record) -> list[str]:
    told: list[str] = []
    for name, new in after.replicas.items():
        old = before.replicas.get(name)
        if old is not None and old.phase is not new.phase and new.phase is ReplicaPhase.SERVING:
            told.append(f"{new.model}/{new.ordinal} is ready on {_where(new)} and published ({name})")
    for name, old in before.replicas.items():
        if name not in after.replicas:
            told.append(f"{old.model}/{old.ordinal} has stopped on {_where(old)} ({name})")
    told += [
        f"{name}, which was forgotten, has stopped on {_where(each.replica)}"
        for name, each in before.forgotten.items()
        if not after.knows(name)
    ]
    return told


def _where(replica: ReplicaRecord) -> str:
    return " and ".join(dict.fromkeys(rank.node for rank in replica.ranks))


def _models(before: Record, after: Record) -> list[str]:
    nothing: dict[str, ModelRecord] = {}
    told: list[str] = []
    for name, new in after.models.items():
        old = (before.models or nothing).get(name)
        if new.held is not None and (old is None or old.held != new.held):
            told.append(f"{name} is held at its last good spec: {new.held.reason}")
        if new.held is None and old is not None and old.held is not None:
            told.append(f"{name} is not held any more")
        told += _failures(old, new, after)
    told += [f"{name} is gone" for name in before.models if name not in after.models]
    return told


def _failures(old: ModelRecord | None, new: ModelRecord, record: Record) -> list[str]:
    """What the reconciler counts: failures of gangs, single shards that were given up, and places that were not as planned."""
    known = {ordinal: it.replica for ordinal, it in old.attempts.items()} if old is not None else {}
    return [
        f"{new.name}/{ordinal} {_how(failed, record)} in a row: {failed.error} ({failed.replica})"
        for ordinal, failed in new.attempts.items()
        if failed.replica != known.get(ordinal)
    ]


def _how(failed: Attempts, record: Record) -> str:
    if failed.refused:
        return f"found its place not as planned, for the {failed.refused}. time"
    replica = record.replicas.get(failed.replica)
    alone = replica is not None and len(replica.ranks) == 1
    return f"{'was given up' if alone else 'failed as a whole'}, for the {failed.count}. time"


def _endpoints(before: Record, after: Record) -> list[str]:
    """Only of replicas that serve before and after: the others are told with their replica."""
    old = {it.replica: it.state for it in before.endpoints}
    new = {it.replica: it.state for it in after.endpoints}
    serving = {
        name
        for name, replica in after.replicas.items()
        if replica.phase is ReplicaPhase.SERVING
        and name in before.replicas
        and before.replicas[name].phase is ReplicaPhase.SERVING
    }
    return [
        f"{name} is {new.get(name, 'not ready')} (was {old.get(name, 'not ready')})"  # type: ignore[call-overload] # ids are text
        for name in sorted(serving)
        if old.get(name) != new.get(name)  # type: ignore[call-overload] # same
    ]


def _nodes(before: Record, after: Record) -> list[str]:
    told: list[str] = []
    for name, new in after.nodes.items():
        old = before.nodes.get(name)
        if old is None:
            told.append(f"{name} is known now")
            continue
        if new.unreachable_since and not old.unreachable_since:
            told.append(f"{name} does not answer")
        if old.unreachable_since and not new.unreachable_since:
            told.append(f"{name} answers again")
        if old.boot_id and new.boot_id != old.boot_id:
            told.append(f"{name} was rebooted")
        if new.agent_version != old.agent_version:
            told.append(f"{name} runs agent {new.agent_version} (was {old.agent_version or 'none'})")
        if old.formerly and not new.formerly:
            told.append(f"the agent of {name} knows its new name")
        if changed := _facts(old, new):
            told.append(f"{name}: {changed}")
    return told


def _facts(old: NodeRecord, new: NodeRecord) -> str:
    """What the node is, in so far as plans use it."""
    if old.facts == new.facts or new.facts is None or old.facts is None:
        return ""
    told: list[str] = []
    engines = {f"{it.name} {it.version}" for it in new.facts.engines} - {
        f"{it.name} {it.version}" for it in old.facts.engines
    }
    told += [f"{engine} is installed" for engine in sorted(engines)]
    weights = {it.digest for it in new.facts.weights} - {it.digest for it in old.facts.weights}
    if weights:
        told.append(f"{len(weights)} more weights are there")
    gone = {gpu.uuid for gpu in old.facts.gpus} - {gpu.uuid for gpu in new.facts.gpus}
    come = {gpu.uuid for gpu in new.facts.gpus} - {gpu.uuid for gpu in old.facts.gpus}
    if gone or come:
        told.append(f"its GPUs changed: {len(old.facts.gpus)} before, {len(new.facts.gpus)} now")
    return ", ".join(told) or "what the node is has changed"


def _sizes(before: Record, after: Record) -> list[str]:
    """What is known of weights, and what engines said of their memory."""
    told = [
        f"{weights.description}: {size(weights.size)} of weights"
        for digest, weights in after.weights.items()
        if before.weights.get(digest) != weights
    ]
    told += [
        f"{measured.about} has said how much memory it takes ({measured.replica})"
        for key, measured in after.measured.items()
        if before.measured.get(key) != measured
    ]
    return told
