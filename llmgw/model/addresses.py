"""Addresses: what plans call things by, and people after them. ``model/chat``, ``model/chat/0`` (a replica by its ordinal),
``node/gpu01``."""

import re

from llmgw.model.ids import parse_replica_id

_ADDRESS = re.compile(
    r"^(?:(?P<kind>model|node)s?/)?(?P<name>[a-z0-9][a-z0-9.-]*)(?:/(?P<ordinal>\d{1,9}))?$"
)
_MODELS = re.compile(r"^models?/")


def parse_address(text: str) -> str:
    """The address as plans print it; ``models/chat`` is taken for ``model/chat``, and so is what only a model can be:
    ``chat/0``. ValueError says what to write."""
    found = _ADDRESS.match(text)
    if (
        found is None
        or (found["kind"] == "node" and found["ordinal"])
        or not (found["kind"] or found["ordinal"])
    ):
        raise ValueError(f"{text!r:.120} is no address: write model/NAME, model/NAME/ORDINAL or node/NAME")
    ordinal = f"/{int(found['ordinal'])}" if found["ordinal"] else ""
    return f"{found['kind'] or 'model'}/{found['name']}{ordinal}"


def bare_model(name: str) -> str:
    """Without the kind before it, which only tells a model from a node."""
    return _MODELS.sub("", name)


def is_called(name: str, *, model: str, replica: str) -> bool:
    """Whether a person means that replica, or its model, by ``name``: as tables call it (its id), as plans (``model/chat/0``), or as
    progress does (``chat/0.3``, the third copy of that ordinal)."""
    parts = parse_replica_id(replica)
    copies = (f"{model}/{parts.ordinal}", f"{model}/{parts.ordinal}.{parts.n}") if parts is not None else ()
    return bare_model(name) in (replica, model, *copies)


def covers(address: str, other: str) -> bool:
    """Whether ``other`` is the same, or a part of it: ``model/chat`` covers ``model/chat/0``."""
    return other == address or other.startswith(f"{address}/")


def replica_address(model: str, replica: str) -> str:
    """``model/chat/0`` for one of its replica ids; the model's own where it is none."""
    name = parse_replica_id(replica)
    return f"model/{model}/{name.ordinal}" if name is not None else f"model/{model}"
