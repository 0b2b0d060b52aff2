"""What is known of weights without loading them: what their files say, and what follows from it.

An :class:`Inspection` is told by whoever can look at the files (the agent on a node, the controller over HTTP) and interprets
nothing, so that a new architecture needs no new agent. :class:`Weights` is what the controller makes of it: exact bytes and
the shape that decides how much memory a token takes. Sizes are bytes; what is not known is None or empty, never zero.
"""

from collections.abc import Mapping
from typing import Any

from llmgw.model.struct import Struct, field

MAX_CONFIG = 256 * 1024
"""Bytes of a config.json: the largest published ones, with a list for each layer, are some 50 kB."""


class Inspection(Struct):
    """What lies at one place. ``problem`` says why nothing could be read; then the rest is empty.

    ``tensors`` counts bytes by type as the files name it, ``parts`` by part of the model (``blk.0``, ``output``; GGUF only).
    ``metadata`` holds what a GGUF header says; long lists stand there as ``{"length": n}``.
    """

    path: str
    problem: str = ""
    format: str = ""  # safetensors | gguf | other
    files: int = 0
    size: int = 0  # of all files
    config: str | None = None  # config.json's text
    tensors: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


class CacheGroup(Struct):
    """Layers that keep the same for each token. ``heads`` pairs of ``key`` and ``value`` elements; one *latent* is the same on
    every rank of a tensor-parallel group. ``window``: only so many of the newest tokens are kept."""

    layers: int
    heads: int
    key: int
    value: int
    window: int | None = None
    latent: bool = False


class Weights(Struct):
    """What plans use. ``problem``: they can't be used at all, and why. ``unknown``: their size is known, but not what a token
    takes, and why."""

    digest: str
    description: str
    problem: str = ""
    unknown: str = ""
    format: str = ""
    size: int = 0  # of the tensors, exactly
    architecture: str = ""
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    hidden: int = 0
    feed_forward: int = 0
    vocab: int = 0
    context: int | None = None  # tokens it was trained with
    dtype: str = ""
    quantization: str = ""  # the files' own: fp8, awq, gptq, mxfp4, …; empty: none
    experts: int = 0
    pictures: bool = False  # it has an encoder for something else than text
    picture_heads: int = 0  # attention heads of that encoder
    cache: tuple[CacheGroup, ...] = ()
    layer_sizes: tuple[int, ...] = ()  # bytes of each layer's tensors; GGUF only
    embedding_size: int = 0  # bytes of the table that turns tokens into numbers; GGUF only

    @property
    def usable(self) -> bool:
        return not self.problem


class Measured(Struct):
    """What an engine said of its memory as it became ready, in its own words by the names of ``LaunchSpec.measure``.

    ``key`` names the weights, the engine, the kind of GPU and the way of running that it holds for; ``about`` says so to
    people. ``given`` is what the plan knew and the engine did not say.
    """

    key: str
    about: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    replica: str = ""
    serial: int = 0  # of the record that first held it
