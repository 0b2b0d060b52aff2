"""How a rotation of the fleet secret begins: whether it can now, and with what the next pass goes on.

That pass, and if need be later ones, gives every replica a key from the new secret; see keyring.py.
"""

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.keyring import unfinished
from llmgw.controller.passes.lease import crashed_pass
from llmgw.core.amounts import names
from llmgw.model.ids import Commit
from llmgw.model.problems import StalledError
from llmgw.model.record import Record
from llmgw.model.struct import Struct


class Rotation(Struct):
    """Key ids of the earlier secret and of the new one. ``commit``: what the first pass is about; None: the newest."""

    before: str
    fresh: str
    commit: Commit | None


async def rotatable(fleet: Fleet) -> Record:
    """The record of a fleet whose secret can be rotated now. StalledError and HeldError where it can't."""
    record = (await fleet.store.read()).record
    if record is None or record.commit is None:
        raise StalledError(
            "nothing was applied yet, so no key is made from the secret: there is nothing to rotate"
        )
    crashed_pass(record, holder=fleet.holder, now=fleet.clock.now(), instance=fleet.instance)
    if older := unfinished(fleet, record):
        raise StalledError(
            f"a rotation is under way: {names(sorted(older))} is still needed. `llmgw apply` finishes it; "
            "`llmgw secret status` shows how far it is"
        )
    return record


async def begin_rotation(fleet: Fleet, *, patience: float) -> Rotation:
    """Makes the new secret, while no other pass of this machine is at work. ``patience``: seconds to wait for that."""
    async with fleet.lock(patience):
        record = await rotatable(fleet)
        fresh = fleet.secret.rotate()
    # What was applied last and nothing else; where it was followed by a part of a newer one, that is the newest.
    commit = record.commit if record.partial is None else None
    return Rotation(before=record.key_id, fresh=fresh, commit=commit)
