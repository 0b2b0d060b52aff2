"""What the record expects to turn up though it holds it no more: it is told to stop when it does."""

from collections.abc import Iterable
from datetime import datetime

from llmgw.model.record import GivenUp, Record
from llmgw.model.struct import replace

GIVEN_UP_KEPT = 256
"""Replicas of which the record remembers that they are to stop: a machine full of shares, several times over."""


def given_up(record: Record, more: Iterable[GivenUp]) -> Record:
    return replace(record, given_up=(*record.given_up, *more)[-GIVEN_UP_KEPT:])


def expecting(record: Record, *, before: Record, by: str, at: datetime) -> Record:
    """The record of a pass that was taken over, with every start that left no trace when ``by`` asked. ``before`` is its intent.

    The order may still come: it may be on its way from a controller that has just died, or that works on because its clock is
    behind. Agents take it as long as nobody has commanded them since.
    """
    return given_up(
        record,
        (
            GivenUp(replica=replica.id, node=replica.ranks[0].node, by=by, at=at, serial=before.serial)
            for replica in before.replicas.values()
            if not record.knows(replica.id) and replica.origin.serial == before.serial
        ),
    )
