"""LoRA adapters as engines take them: all at the start (static), or by their API while they run, up to so many at a
time (on demand). Where each lies only the node knows: ``${adapter:NAME}``.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from llmgw.model.desired import DesiredModel
from llmgw.model.launch import ADAPTER
from llmgw.model.problems import Problem

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
DEFAULT_RANK = 16
"""What engines take for the highest rank when nobody says; adapters are seldom larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """``static`` are (name, path) of adapters loaded at the start, ``slots`` how many a batch may use, ``rank`` the highest
    rank among all that are listed."""

    slots: int
    rank: int
    static: tuple[tuple[str, str], ...] = ()

    @property
    def on_demand(self) -> bool:
        return not self.static


def lora(model: DesiredModel) -> Lora | None:
    """None: the engine runs without LoRA. ``maxLoadedAdapters`` makes adapters loadable, also where none is listed yet."""
    adapters, most = model.spec.adapters, model.spec.max_loaded_adapters
    if not adapters and not most:
        return None
    rank = max((adapter.rank for adapter in adapters), default=DEFAULT_RANK)
    if most:
        return Lora(slots=most, rank=rank)
    paths = tuple((adapter.name, f"${{{ADAPTER}{adapter.name}}}") for adapter in adapters)
    return Lora(slots=len(adapters), rank=rank, static=paths)


def rounded(rank: int, allowed: tuple[int, ...]) -> int:
    """The smallest allowed rank that is not below; the largest where there is none."""
    return allowed[min(bisect_left(allowed, rank), len(allowed) - 1)]


def problems(model: DesiredModel, *, highest: int, engine: str) -> Iterator[Problem]:
    taken = {model.served_name: "the model's own name"}
    taken |= dict.fromkeys(model.spec.aliases, "an alias of the model")
    for index, adapter in enumerate(model.spec.adapters):
        place = f"spec.adapters[{index}]"
        if not NAME.fullmatch(adapter.name):
            yield Problem(
                what=f"{place}.name: {adapter.name!r} can't be a name in requests and on command lines",
                instead="use letters, digits, and . _ - / :, beginning with a letter or digit",
            )
        if adapter.name in taken:
            yield Problem(
                what=f"{place}.name: {adapter.name} is {taken[adapter.name]}",
                instead="give each adapter a name of its own: requests choose it by that",
            )
        taken[adapter.name] = "the name of another adapter"
        if adapter.rank > highest:
            yield Problem(
                what=f"{place}.rank: {engine} takes ranks up to {highest}, not {adapter.rank}",
                instead="use an adapter of a lower rank",
            )
