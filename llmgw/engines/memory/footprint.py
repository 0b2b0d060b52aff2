"""A sum of memory as lines that a person can check, and what a token takes of it."""

from collections.abc import Iterable

from llmgw.model.struct import Struct
from llmgw.model.weights import CacheGroup

GIB = 1024**3
BLOCK = 16
"""Tokens of one page of vLLM's cache."""


class Line(Struct):
    """One addend: ``kv 4.0 (32,768 tokens)``."""

    name: str
    size: int
    note: str = ""

    @property
    def text(self) -> str:
        return f"{self.name} {gib(self.size)}" + (f" ({self.note})" if self.note else "")


class Footprint(Struct):
    """What one rank takes of one GPU, or of its node's memory."""

    lines: tuple[Line, ...]

    @property
    def total(self) -> int:
        return sum(line.size for line in self.lines)

    @property
    def text(self) -> str:
        """``weights 15.0, kv 4.0 (32,768 tokens), activations 4.8, overhead 0.9``, in GiB."""
        return ", ".join(line.text for line in self.lines)


def gib(size: int) -> str:
    """``15.0``, and ``0.04`` where one place would say nothing."""
    amount = size / GIB
    return f"{amount:.1f}" if amount >= 0.1 or not size else f"{amount:.2f}"


class Split(Struct):
    """How a model is divided: each tensor into ``tensor`` parts, the layers into ``pipeline`` stages."""

    tensor: int = 1
    pipeline: int = 1

    def layers(self, count: int) -> int:
        """Layers of the largest stage."""
        return -(-count // self.pipeline)


def token_bytes(cache: Iterable[CacheGroup], split: Split, *, element: float) -> int:
    """What one token takes on one rank while no window is full. A latent is kept whole by every rank; a head can't be
    divided, so more ranks than heads each keep one."""
    return sum(_group_bytes(group, split, element=element) for group in cache)


def cache_bytes(cache: Iterable[CacheGroup], split: Split, *, element: float, tokens: int, batch: int) -> int:
    """What one request of ``tokens`` keeps on one rank. A layer with a window keeps that and the batch that is under way, in
    whole pages and one for the start in the middle of a page, as vLLM reckons it."""
    total = 0
    for group in cache:
        kept = tokens
        if group.window is not None:
            pages = -(-min(group.window - 1 + batch, tokens) // BLOCK) + 1
            kept = min(pages * BLOCK, tokens)
        total += _group_bytes(group, split, element=element) * kept
    return total


def _group_bytes(group: CacheGroup, split: Split, *, element: float) -> int:
    heads = group.heads if group.latent else max(1, -(-group.heads // split.tensor))
    return int(split.layers(group.layers) * heads * (group.key + group.value) * element)
