"""From a sum to what a rank needs: of which kind of GPU how much, or why that can't be told.

What people state wins where the sum is not known: ``gpus.share`` and ``memory`` are their word for it. What is neither known nor
stated is a reason to refuse, never zero.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from llmgw.core.adapter import GpuKind, GpuNeed, Known, Need
from llmgw.engines.checks import stated_need
from llmgw.engines.memory.footprint import GIB, Footprint, gib
from llmgw.model.desired import DesiredModel
from llmgw.model.weights import Weights

STATE_IT = "write memory: in the profile with what one shard takes, or allow it with --allow-unknown-size"


class Sums(Protocol):
    """How one engine spends memory."""

    def refuses(self, model: DesiredModel, weights: Weights) -> str:
        """Why it can't run these weights in this shape, whatever the GPU; empty when it can."""
        ...

    def unknown(self, model: DesiredModel, weights: Weights) -> str:
        """Why the sum can't be made; empty when it can."""
        ...

    def on(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed:
        """What one rank takes of each of its GPUs."""
        ...

    def host(self, model: DesiredModel, weights: Weights) -> Footprint:
        """What one rank takes of its node's memory where it computes on the CPU."""
        ...


def need(model: DesiredModel, known: Known, sums: Sums, *, ports: int, leader_ports: int = 0) -> Need:
    """What one rank of ``model`` needs, as far as it is known."""
    stated = stated_need(model, ports=ports, leader_ports=leader_ports)
    weights = known.weights
    if weights is not None and weights.usable and (why := sums.refuses(model, weights)):
        return replace(stated, refused=why)
    if weights is None:
        return _stated(model, stated, "the size of its weights is not known")
    if weights.problem:
        return _stated(model, stated, weights.problem)
    if why := sums.unknown(model, weights):
        return _stated(model, stated, why)
    if model.profile.gpus.per_node == 0:
        return _on_host(model, stated, sums.host(model, weights))
    wanted = model.profile.gpus.gpu_class
    kinds = [kind for kind in known.kinds if wanted in (None, kind.gpu_class)]
    return replace(stated, on=tuple(sums.on(model, known, weights, kind) for kind in kinds), reckoned=True)


def _stated(model: DesiredModel, stated: Need, why: str) -> Need:
    """What the profile says of its size counts where nothing else is known."""
    profile = model.profile
    if profile.gpus.per_node == 0:
        return stated if profile.memory is not None else replace(stated, unknown=f"{why}: {STATE_IT}")
    if profile.gpus.share is not None:
        return stated
    if profile.memory is None:
        return replace(stated, unknown=f"{why}: {STATE_IT}")
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
