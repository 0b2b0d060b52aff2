"""What somebody took out of management, and put back: a replica that runs on while no plan touches it."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from llmgw.core.seen.condition import Health, condition
from llmgw.core.seen.survey import Survey
from llmgw.model.record import Forgotten, Record, ReplicaRecord
from llmgw.model.struct import replace

_ENDED = frozenset({Health.MISSING, Health.STOPPED})


def forgotten(record: Record, replicas: Iterable[str], *, by: str, at: datetime, why: str) -> Record:
    """The record that leaves these alone from now on. They are no endpoints any more: nobody vouches for them."""
    going = {name: record.replicas[name] for name in replicas}
    left = {
        name: Forgotten(replica=each, by=by, at=at, serial=record.serial, why=why)
        for name, each in going.items()
    }
    return replace(
        record,
        replicas={name: each for name, each in record.replicas.items() if name not in going},
        endpoints=tuple(each for each in record.endpoints if each.replica not in going),
        forgotten=dict(sorted({**record.forgotten, **left}.items())),
    )


def managed(record: Record, replicas: Iterable[ReplicaRecord]) -> Record:
    """The record that has these again, whether they were forgotten or never recorded."""
    coming: dict[str, ReplicaRecord] = {each.id: each for each in replicas}
    return replace(
        record,
        replicas=dict(sorted([*record.replicas.items(), *coming.items()])),
        forgotten={name: each for name, each in record.forgotten.items() if name not in coming},
    )


def forgotten_on(record: Record, node: str) -> tuple[str, ...]:
    """Those with a rank there."""
    return tuple(
        name
        for name, each in sorted(record.forgotten.items())
        if any(rank.node == node for rank in each.replica.ranks)
    )


def still_forgotten(record: Record, seen: Survey) -> Mapping[str, Forgotten]:
    """Without those that have ended: nothing is left of them that a plan would have to leave alone."""
    return {
        name: each
        for name, each in record.forgotten.items()
        if condition(each.replica, seen).health not in _ENDED
    }
