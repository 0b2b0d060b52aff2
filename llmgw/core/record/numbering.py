"""Placement numbers that others have given under a model's idPrefix. They only grow: a model that comes back goes on from where it
was, and one that takes the name that another has left goes on from where that one is, so that no agent that was away can take a new
copy for one that it remembers.
"""

from collections.abc import Iterable, Mapping

from llmgw.model.record import ModelRecord, Record

NAMES_KEPT = 4096
"""Models that are gone and whose numbers are kept; beyond that those with the lowest go first. Shards that agents still
report keep their numbers taken besides, whatever the record forgets."""


def remembered(numbers: Mapping[str, int], gone: Iterable[ModelRecord]) -> Mapping[str, int]:
    """``numbers`` and those of ``gone``, by idPrefix."""
    found = dict(numbers)
    for model in gone:
        highest = max(model.placements.values(), default=0)
        if highest > found.get(model.id_prefix, 0):
            found[model.id_prefix] = highest
    if found == numbers:
        return numbers
    kept = sorted(found, key=lambda prefix: (-found[prefix], prefix))[:NAMES_KEPT]
    return {prefix: found[prefix] for prefix in sorted(kept)}


def given_to_others(record: Record, prefix: str, *, name: str) -> int:
    """The highest that was given under ``prefix`` to models that are gone, and to those but ``name`` that were called so first."""
    others = (it for it in record.models.values() if it.id_prefix == prefix and it.name != name)
    return max(record.numbers.get(prefix, 0), *(n for it in others for n in it.placements.values()), 0)
