"""New copies that somebody asked for though nothing changed: marked in the record, so that they come once.

A marked copy is replaced by the rules of its model's rollout, by whichever pass comes; its successor has no mark. So a
replacement that was interrupted is finished, and one that is finished is not made again. Asking also forgets why the
model was held or had given up: somebody wants it tried once more.
"""

from collections.abc import Mapping

from llmgw.core.amounts import names
from llmgw.model.addresses import covers
from llmgw.model.problems import StalledError
from llmgw.model.record import ModelRecord, Record, ReplicaPhase, ReplicaRecord
from llmgw.model.struct import replace


def asked_anew(record: Record, asked: Mapping[str, str]) -> Record:
    """``asked``: addresses, and who wants new copies there. Of an ordinal's copies the newest is marked, unless one is
    already: then its replacement is under way. StalledError for an address under which nothing is recorded."""
    for address, by in asked.items():
        marked = _marked(record, address, by)
        if marked is None:
            there = sorted(f"model/{name}" for name in record.models)
            raise StalledError(
                f"nothing of {address} is recorded, so nothing can be replaced; there is {names(there) or 'no model yet'}"
            )
        record = marked
    return record


def _marked(record: Record, address: str, by: str) -> Record | None:
    ordinals: dict[tuple[str, int], list[ReplicaRecord]] = {}
    for replica in record.replicas.values():
        if covers(address, f"model/{replica.model}/{replica.ordinal}"):
            ordinals.setdefault((replica.model, replica.ordinal), []).append(replica)
    replicas = dict(record.replicas)
    for copies in ordinals.values():
        staying = [each for each in copies if each.phase in (ReplicaPhase.STARTING, ReplicaPhase.SERVING)]
        if staying and not any(each.replaced_by for each in copies):
            newest = max(staying, key=lambda each: each.n)
            replicas[newest.id] = replace(newest, replaced_by=by)
    forgiven = {name: _forgiven(model, address) for name, model in record.models.items()}
    found = bool(ordinals) or any(forgiven[name] != model for name, model in record.models.items())
    if not found and not any(covers(address, f"model/{name}") for name in record.models):
        return None
    return replace(record, replicas=replicas, models=forgiven)


def _forgiven(model: ModelRecord, address: str) -> ModelRecord:
    if covers(address, f"model/{model.name}"):
        return replace(model, held=None, attempts={})
    kept = {
        ordinal: failed
        for ordinal, failed in model.attempts.items()
        if not covers(address, f"model/{model.name}/{ordinal}")
    }
    return model if kept == model.attempts else replace(model, held=None, attempts=kept)
