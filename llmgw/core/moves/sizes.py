"""How much memory models need: what is known of their weights put before their engines, and what is to be done while it is not.

Unknown is never zero. Weights that a job will bring are fetched first, and the plan that follows knows; weights that nobody can
tell the size of are refused, unless somebody states it or allows it.
"""

from collections.abc import Iterable

from llmgw.core.adapter import GpuKind, Known, Need
from llmgw.core.moves.round import Round
from llmgw.core.moves.steps import Job, lacking
from llmgw.core.seen.survey import NodeView
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import FetchSpec
from llmgw.model.plan import Notice


def kinds_of(views: Iterable[NodeView]) -> tuple[GpuKind, ...]:
    """Every kind of GPU that there is, in order of class."""
    found = {
        GpuKind.of(gpu)
        for view in views
        for gpu in (view.facts.gpus if view.facts is not None else ())
        if gpu.memory_total
    }
    return tuple(sorted(found, key=lambda kind: (kind.gpu_class, kind.memory, kind.capability)))


def need_of(round_: Round, model: DesiredModel) -> Need:
    """What one rank of the model needs, as far as it is known."""
    adapter = round_.adapters[model.profile.engine.name]
    digest = adapter.weights(model)
    known = Known(
        weights=round_.weights.get(digest) if digest is not None else None,
        kinds=round_.kinds,
        measured=round_.record.measured,
    )
    return adapter.need(model, known)


def tell_untold(round_: Round, model: DesiredModel, need: Need) -> bool:
    """Whether the model is placed although nobody knows its size, because somebody allows it or because no node could be asked;
    the plan warns."""
    if not need.unknown:
        return True
    if not (round_.allow_unknown_size or round_.survey.offline):
        return False
    why = "allowed by --allow-unknown-size" if round_.allow_unknown_size else "offline, nobody could look"
    reason = need.unknown.partition(":")[0]
    notice = Notice(
        text=f"model/{model.name}: whether it fits is not known ({reason}): {why}", where=model.where
    )
    if notice not in round_.told.warnings:
        round_.told.warnings.append(notice)
    return True


def learns_later(round_: Round, model: DesiredModel, nodes: Iterable[str], jobs: Iterable[Job]) -> str:
    """What the size will be known after, in words; empty when nothing that is under way will tell it."""
    digest = round_.adapters[model.profile.engine.name].weights(model)
    known = round_.weights.get(digest) if digest is not None else None
    if digest is None or (known is not None and known.usable):
        return ""
    if todo := lacking(job for job in jobs if isinstance(job.spec, FetchSpec)):
        return todo
    bare = [node for node in dict.fromkeys(nodes) if round_.survey.nodes[node].bare]
    return f"the agent of {bare[0]}" if bare else ""
