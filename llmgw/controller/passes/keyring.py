"""Which fleet secrets a pass needs, and the keys that are made from them. While a secret is rotated there are two.

The record names a secret by its key id, and each replica the one that its key was made from. The newest secret is the one
to plan with: a record that still names one which is kept beside it is rotated by the next pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.controller.fleet import Fleet
from llmgw.controller.secrets import replica_key, require_key
from llmgw.model.ids import ReplicaId, key_id
from llmgw.model.problems import StalledError
from llmgw.model.record import Record
from llmgw.redaction import Masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """``secrets`` by key id."""

    secrets: Mapping[str, bytes] = field(repr=False)

    def key(self, replica: ReplicaId, key: str) -> Masked:
        """The API key of a replica whose key is made from the secret ``key``."""
        secret = self.secrets.get(key)
        if secret is None:
            raise StalledError(
                f"making the key of {replica}: fleet secret {key} is not on this machine: copy it from where it was made"
            )
        return replica_key(secret, replica)


def keyring(fleet: Fleet, record: Record) -> Keyring:
    """Every secret that the record's keys are made from, and the newest. StalledError when one is not on this machine, with
    what to copy where."""
    newest = fleet.secret.load()
    if newest is None:
        raise StalledError(
            f"fleet secret {record.key_id} is not on this machine: copy it from where the fleet was applied before to "
            f"{fleet.secret.place} (mode 0600), or give it in LLMGW_SECRET"
        )
    secrets = {**fleet.secret.kept(), key_id(newest): newest}
    if record.key_id not in secrets:
        require_key(newest, recorded=record.key_id, place=fleet.secret.place)
    for missing in sorted(needed(record) - secrets.keys()):
        raise StalledError(
            f"fleet secret {missing} is not on this machine, and until its rotation is over some replicas have their keys from "
            f"it: copy it from the machine that rotated it to {fleet.secret.place_of(missing)} (mode 0600)"
        )
    return Keyring(secrets=secrets)


def needed(record: Record) -> frozenset[str]:
    """Key ids of the secrets that something recorded depends on: what runs, and what a held model may go back to."""
    forgotten = (each.replica.spec.key_id for each in record.forgotten.values())
    return (_managed(record) | frozenset(forgotten)) - {""}


def unfinished(fleet: Fleet, record: Record) -> frozenset[str]:
    """Key ids of the secrets that a rotation has still to replace. What was forgotten is replaced by nobody, and keeps its key."""
    newest = fleet.secret.load()
    return _managed(record) - ({key_id(newest)} if newest is not None else set()) - {""}


def _managed(record: Record) -> frozenset[str]:
    runs = (replica.spec.key_id for replica in record.replicas.values())
    back = (
        model.last_good_spec.key_id
        for model in record.models.values()
        if model.held is not None and model.last_good_spec is not None
    )
    return frozenset({record.key_id, *runs, *back})


def planning_key(fleet: Fleet, record: Record) -> str:
    """The key id to plan with: the newest secret's where the recorded one is kept beside it, else the recorded one."""
    newest = fleet.secret.load()
    if newest is None or key_id(newest) == record.key_id or record.key_id not in fleet.secret.kept():
        return record.key_id
    return key_id(newest)


def drop_unneeded(fleet: Fleet, record: Record) -> tuple[str, ...]:
    """Removes the secrets whose rotation is over. Their key ids."""
    newest = fleet.secret.load()
    if newest is None or key_id(newest) != record.key_id:
        return ()
    over = tuple(sorted(fleet.secret.kept().keys() - needed(record)))
    for each in over:
        fleet.secret.drop(each)
    return over
