"""Which replicas can be called right now: what a gateway reads from the record."""

import json
from collections.abc import Mapping
from typing import Any

from llmgw.core.seen.condition import Condition, Health, condition
from llmgw.core.seen.survey import SeenShard, Survey
from llmgw.model.ids import ReplicaId
from llmgw.model.record import Endpoint, EndpointAdapter, Record, ReplicaPhase, ReplicaRecord
from llmgw.model.report import LoraState


def endpoints(record: Record, seen: Survey) -> tuple[Endpoint, ...]:
    """One for each replica that serves or drains, by model and ordinal. Of a node that can't be asked, what was
    published stays published, unknown is not stopped, until a successor serves."""
    before = {endpoint.replica: endpoint.state for endpoint in record.endpoints}
    published = {endpoint.replica: endpoint.adapters for endpoint in record.endpoints}
    found = []
    newest = _newest(record, seen)
    for replica in sorted(record.replicas.values(), key=lambda each: (each.model, each.ordinal, each.n)):
        state = _state(replica, condition(replica, seen), before.get(replica.id))
        overtaken = replica.n < newest.get((replica.model, replica.ordinal), 0)
        if state and not (overtaken and condition(replica, seen).health is Health.UNKNOWN):
            found.append(_endpoint(record, replica, state, _adapters(replica, seen, published)))
    return tuple(found)


def _newest(record: Record, seen: Survey) -> dict[tuple[str, int], int]:
    """The highest placement number of each ordinal that is seen to serve."""
    found: dict[tuple[str, int], int] = {}
    for replica in record.replicas.values():
        if replica.phase is ReplicaPhase.SERVING and condition(replica, seen).health is Health.READY:
            place = (replica.model, replica.ordinal)
            found[place] = max(found.get(place, 0), replica.n)
    return found


def _state(replica: ReplicaRecord, seen: Condition, before: str | None) -> str:
    match replica.phase:
        case ReplicaPhase.STARTING | ReplicaPhase.STOPPING:
            return ""
        case ReplicaPhase.SERVING:
            if seen.health is Health.UNKNOWN:
                # Of a gang some ranks may be seen: without one of them it serves nobody.
                return (before or "") if all(_is_ready(shard) for shard in seen.shards) else ""
            if seen.health is Health.DRAINING:
                return "draining"
            return "ready" if seen.health is Health.READY else ""
        case ReplicaPhase.DRAINING:
            alive = seen.health in (Health.READY, Health.DRAINING)
            return "draining" if alive or (seen.health is Health.UNKNOWN and before) else ""


def _is_ready(shard: SeenShard) -> bool:
    return shard.report.state == Health.READY.value


def _adapters(
    replica: ReplicaRecord, seen: Survey, published: Mapping[ReplicaId, tuple[EndpointAdapter, ...]]
) -> tuple[EndpointAdapter, ...]:
    """Those that requests can choose right now. While nobody can tell, those of before."""
    leader = condition(replica, seen).leader
    if leader is None:
        return published.get(replica.id, ())
    routable = (each for each in leader.adapters if each.state == LoraState.ROUTABLE.value)
    return tuple(EndpointAdapter(name=each.name, send=_fields(each.send)) for each in routable)


def _fields(send: str) -> Mapping[str, Any]:
    """An agent of another version may say something else: then nothing is known of how to ask."""
    try:
        told = json.loads(send or "{}")
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _endpoint(
    record: Record, replica: ReplicaRecord, state: str, adapters: tuple[EndpointAdapter, ...]
) -> Endpoint:
    model = record.models.get(replica.model)
    leader = replica.ranks[0]
    return Endpoint(
        model=replica.model,
        served_name=replica.spec.served_name,
        aliases=model.aliases if model is not None else (),
        replica=replica.id,
        address=leader.address,
        port=leader.ports[0],
        key_id=replica.spec.key_id,
        state=state,
        adapters=adapters,
    )
