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
from llmgw.model.record import RankPlacement
from llmgw.model.struct import replace


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
    need = _need(round_, model)
    if not _let_through(round_):
        return need
    return replace(need, on=tuple(each for each in need.on if not each.unknown))


def _let_through(round_: Round) -> bool:
    """Whether what nobody knows the size of is placed all the same."""
    return round_.allow_unknown_size or round_.survey.offline


def _need(round_: Round, model: DesiredModel) -> Need:
    adapter = round_.adapters[model.profile.engine.name]
    digest = adapter.weights(model)
    known = Known(
        weights=round_.weights.get(digest) if digest is not None else None,
        kinds=round_.kinds,
        measured=round_.record.measured,
    )
    return adapter.need(model, known)


def tell_untold(round_: Round, model: DesiredModel, need: Need, ranks: Iterable[RankPlacement]) -> bool:
    """Whether the model is placed although nobody knows its size on the GPUs of ``ranks``, because somebody allows it or because no
    node could be asked; the plan warns."""
    unknown = need.unknown or _unknown_there(round_, model, need, ranks)
    if not unknown:
        return True
    if not _let_through(round_):
        return False
    why = "allowed by --allow-unknown-size" if round_.allow_unknown_size else "offline, nobody could look"
    notice = Notice(
        text=f"model/{model.name}: whether it fits is not known ({unknown}): {why}", where=model.where
    )
    if notice not in round_.told.warnings:
        round_.told.warnings.append(notice)
    return True


def _unknown_there(round_: Round, model: DesiredModel, need: Need, ranks: Iterable[RankPlacement]) -> str:
    """Why the size is not known on the kind of GPU that was chosen; empty where it is, or where no kind is told apart."""
    if not need.on:
        return ""
    unknown = {each.kind: each.unknown for each in _need(round_, model).on if each.unknown}
    for rank in ranks if unknown else ():
        facts = round_.survey.nodes[rank.node].facts
        claimed = {claim.uuid for claim in rank.gpus}
        for gpu in facts.gpus if facts is not None else ():
            if gpu.uuid in claimed and (why := unknown.get(GpuKind.of(gpu))):
                return why
    return ""


def tell_unseen(round_: Round, model: DesiredModel) -> None:
    """Warns of weights that were looked at in vain, where a fetch is to tell about them: what is wrong may be wrong there too."""
    digest = round_.adapters[model.profile.engine.name].weights(model)
    known = round_.weights.get(digest) if digest is not None else None
    if known is None or known.usable:
        return
    notice = Notice(
        text=f"model/{model.name}: its size will be known when it is fetched: {known.problem}",
        where=model.where,
    )
    if notice not in round_.told.warnings:
        round_.told.warnings.append(notice)


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
