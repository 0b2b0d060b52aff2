"""From a sum to what a rank needs: of which kind of GPU how much, or why that can't be told.

Where the sum can't be made, what the engine itself has said as it ran there counts; then what people state: ``gpus.share`` and
``memory`` are their word for it. What is neither known nor stated is a reason to refuse, never zero.
"""

from collections.abc import Callable
from typing import Protocol

from llmgw.core.adapter import GpuKind, GpuNeed, Known, Need
from llmgw.engines.checks import stated_need
from llmgw.engines.memory.footprint import GIB, Footprint, gib
from llmgw.engines.weights import weights_digest
from llmgw.model.desired import DesiredModel
from llmgw.model.struct import replace
from llmgw.model.weights import Weights


class Sums(Protocol):
    """How one engine spends memory."""

    def refuses(self, model: DesiredModel, weights: Weights) -> str:
        """Why it can't run these weights in this shape, whatever the GPU; empty when it can."""
        ...

    def unknown(self, model: DesiredModel, weights: Weights) -> str:
        """Why the sum can't be made; empty when it can."""
        ...

    def cannot(self, model: DesiredModel, weights: Weights, kind: GpuKind) -> str:
        """Why GPUs of this kind can't compute what is asked of them, whatever is free; empty when they can."""
        ...

    def on(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed:
        """What one rank takes of each of its GPUs."""
        ...

    def host(self, model: DesiredModel, weights: Weights) -> Footprint:
        """What one rank takes of its node's memory where it computes on the CPU."""
        ...

    def learnt(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed | None:
        """The same as ``on`` by the engine's own words alone, where the sum can't be made; None: it has not said enough."""
        ...

    def host_learnt(self, model: DesiredModel, known: Known, weights: Weights) -> Footprint | None:
        """The same as ``host``."""
        ...


def need(model: DesiredModel, known: Known, sums: Sums, *, ports: int, leader_ports: int = 0) -> Need:
    """What one rank of ``model`` needs, as far as it is known."""
    stated = stated_need(model, ports=ports, leader_ports=leader_ports)
    weights = known.weights
    if weights is not None and weights.usable and (why := sums.refuses(model, weights)):
        return replace(stated, refused=why)
    if weights is None or weights.problem:
        why = weights.problem if weights is not None else "the size of its weights is not known"
        unseen = Weights(digest=weights_digest(model.spec.source), description="", unknown=why)
        return _learnt(model, known, sums, stated, unseen, why)
    if why := sums.unknown(model, weights):
        return _learnt(model, known, sums, stated, weights, f"{why}; its weights are {gib(weights.size)} GiB")
    if model.profile.gpus.per_node == 0:
        return _on_host(model, stated, sums.host(model, weights))
    on = tuple(sums.on(model, known, weights, kind) for kind in _kinds(model, known))
    return replace(stated, on=on, reckoned=True)


def _kinds(model: DesiredModel, known: Known) -> list[GpuKind]:
    wanted = model.profile.gpus.gpu_class
    return [kind for kind in known.kinds if wanted in (None, kind.gpu_class)]


def _learnt(model: DesiredModel, known: Known, sums: Sums, stated: Need, weights: Weights, why: str) -> Need:
    """What the engine has said where it ran; on other kinds of GPU what is stated, or nothing."""
    if model.profile.gpus.per_node == 0:
        footprint = sums.host_learnt(model, known, weights)
        return _stated(model, stated, why) if footprint is None else _on_host(model, stated, footprint)
    kinds = _kinds(model, known)
    found = {kind: each for kind in kinds if (each := sums.learnt(model, known, weights, kind)) is not None}
    unable = {kind: each for kind in kinds if (each := _unable(model, weights, sums, kind)) is not None}
    if not found:
        return replace(_stated(model, stated, why), on=tuple(unable.values()))
    on = tuple(found.get(kind) or unable.get(kind) or _stated_on(model, kind, why) for kind in kinds)
    return replace(stated, on=on, reckoned=True)


def _unable(model: DesiredModel, weights: Weights, sums: Sums, kind: GpuKind) -> GpuNeed | None:
    """What no stated size helps against: a kind of GPU that can't compute so. None: it can, as far as anybody knows."""
    if not (why := sums.cannot(model, weights, kind)):
        return None
    return GpuNeed(kind=kind, memory=0, room=kind.memory, takes=0, refused=why)


def _stated_on(model: DesiredModel, kind: GpuKind, why: str) -> GpuNeed:
    """The same as :func:`_stated` for one kind of GPU beside others that are known."""
    share, memory = model.profile.gpus.share, model.profile.memory
    if share is not None:
        each, who = int(share), "gpus.share"
    elif memory is not None:
        each, who = -(-memory // model.profile.gpus.per_node), "memory"
    else:
        unknown = f"it has not run on {kind.gpu_class} yet, and {why}"
        return GpuNeed(kind=kind, memory=0, room=kind.memory, takes=0, unknown=unknown)
    told = f"{gib(each)} GiB on each {kind.gpu_class}, because {who} says so and {why}"
    return GpuNeed(kind=kind, memory=each, room=kind.memory, takes=each, sum=told)


def _stated(model: DesiredModel, stated: Need, why: str) -> Need:
    """What the profile says of its size counts where nothing else is known."""
    profile = model.profile
    if profile.gpus.per_node == 0:
        return stated if profile.memory is not None else replace(stated, unknown=why)
    if profile.gpus.share is not None:
        return stated
    if profile.memory is None:
        return replace(stated, unknown=why)
    each = -(-profile.memory // profile.gpus.per_node)
    told = f"{stated.sum}; {gib(each)} GiB on each GPU, because memory says so and {why}"
    return replace(stated, gpu_memory=max(stated.gpu_memory, each), sum=told)


def _on_host(model: DesiredModel, stated: Need, footprint: Footprint) -> Need:
    """A stated size is what is set aside, whatever the sum; without one the sum is."""
    if model.profile.memory is not None:
        return stated
    told = f"no GPU, {gib(footprint.total)} GiB of host memory: {footprint.text}"
    return replace(stated, memory=footprint.total, sum=told, reckoned=True)


def gpu_need(
    model: DesiredModel,
    kind: GpuKind,
    footprint: Footprint,
    *,
    takes: Callable[[int], int],
    least: int | None = None,
    refused: str = "",
    spare: str = "",
) -> GpuNeed:
    """``takes``: what the engine takes of a GPU of so many bytes, which is also all that it may use; a share is both. ``least``: what
    must be free as it starts, where that is less. ``spare`` is said behind the sum."""
    gpus = model.profile.gpus
    total = footprint.total
    room = gpus.share if gpus.share is not None else takes(kind.memory)
    several = f"each of {gpus.per_node} x {kind.gpu_class}" if gpus.per_node > 1 else f"one {kind.gpu_class}"
    told = f"{gib(total)} GiB on {several}: {footprint.text}"
    limit = f"; it may use {gib(room)} of {kind.memory / GIB:.1f}" if room < kind.memory else ""
    return GpuNeed(
        kind=kind,
        memory=total,
        room=room,
        takes=room if least is None else min(least, room),
        sum=f"{told}{limit}{f', {spare}' if spare and total <= room else ''}",
        refused=refused,
    )
