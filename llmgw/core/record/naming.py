"""Renames: a model keeps its replicas, their ids and its history when only its name in Git changes."""

from dataclasses import replace

from llmgw.model.desired import Desired
from llmgw.model.record import Record


def renames(record: Record, desired: Desired) -> dict[str, str]:
    """Old name to new, for models whose old name is recorded and whose new one is not."""
    return {
        model.renamed_from: name
        for name, model in desired.models.items()
        if model.renamed_from is not None
        and model.renamed_from in record.models
        and model.renamed_from not in desired.models
        and name not in record.models
    }


def renamed(record: Record, desired: Desired) -> Record:
    """The record as if the models had always been called what Git calls them now; nothing restarts."""
    names = renames(record, desired)
    if not names:
        return record
    models = {
        names.get(name, name): replace(model, name=names[name]) if name in names else model
        for name, model in record.models.items()
    }
    replicas = {
        key: replace(replica, model=names[replica.model]) if replica.model in names else replica
        for key, replica in record.replicas.items()
    }
    forgotten = {
        key: replace(each, replica=replace(each.replica, model=names[each.replica.model]))
        if each.replica.model in names
        else each
        for key, each in record.forgotten.items()
    }
    models = dict(sorted(models.items()))
    return replace(record, models=models, replicas=replicas, forgotten=forgotten)
