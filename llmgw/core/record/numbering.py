"""Placement numbers of models that are gone. They only grow: a model that comes back goes on from where it was, so that
no agent that was away can take a new copy for one that it remembers.
"""

from collections.abc import Iterable, Mapping

from llmgw.model.record import ModelRecord

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
