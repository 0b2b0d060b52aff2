"""The settings of a GGUF header, understood: the same facts as a config.json's, by llama.cpp's names."""

from collections.abc import Mapping
from typing import Any

from llmgw.model.weights import CacheGroup, Inspection, Weights

EMBEDDING = "token_embd"
MOST_LAYERS = 10_000
"""The deepest models have some 130."""
_STATE = ("ssm.state_size", "ssm.inner_size", "wkv.head_size", "shortconv.l_cache")
"""Settings of layers that carry a state along."""
_SLIDES: Mapping[str, int] = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2}
"""Every so manieth layer keeps all, the others a window. Others with a window: taken to keep all, which is never too little."""


def read(digest: str, description: str, seen: Inspection) -> Weights:
    """What a GGUF file is; ``problem`` where its header does not tell."""
    settings = _Settings(seen.metadata)
    layers = settings.count("block_count")
    if problem := _problem(settings, seen, layers):
        return Weights(digest=digest, description=description, format=seen.format, problem=problem)
    cache, unknown = _cache(settings, layers)
    return Weights(
        digest=digest,
        description=description,
        format=seen.format,
        size=sum(seen.parts.values()),
        unknown=unknown,
        architecture=settings.architecture,
        layers=layers,
        heads=max(settings.each("attention.head_count", layers)),
        kv_heads=max(settings.each("attention.head_count_kv", layers)),
        hidden=settings.count("embedding_length"),
        feed_forward=max(settings.each("feed_forward_length", layers)),
        vocab=settings.count("vocab_size") or settings.length("tokenizer.ggml.tokens"),
        context=settings.count("context_length") or None,
        quantization=_most(seen.tensors),
        experts=settings.count("expert_count"),
        cache=cache,
        layer_sizes=tuple(seen.parts.get(f"blk.{index}", 0) for index in range(layers)),
        embedding_size=seen.parts.get(EMBEDDING, 0),
    )


def _problem(settings: "_Settings", seen: Inspection, layers: int) -> str:
    if not settings.architecture or not layers:
        return f"the header of {seen.path} names no architecture and layers: it is no language model"
    if layers > MOST_LAYERS:
        return f"the header of {seen.path} names {layers} layers, which no model has: fetch it again"
    parts = _number(seen.metadata.get("split.count"))
    if parts > max(seen.files, 1):
        return f"{seen.path} is a part of a model in {parts} files, {seen.files} of which are there: name a directory with all of them, or one whole file"
    if not any(seen.parts.get(f"blk.{index}") for index in range(layers)):
        return f"{seen.path} holds no tensors of its {layers} layers: it is a vocabulary or an adapter, no whole model"
    return ""


class _Settings:
    """A header's settings by their name behind the architecture's; what is not a number is 0."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        name = metadata.get("general.architecture")
        self.architecture = name if isinstance(name, str) else ""

    def count(self, name: str) -> int:
        return _number(self._metadata.get(f"{self.architecture}.{name}"))

    def each(self, name: str, layers: int) -> list[int]:
        """One for each layer: the setting may be a list."""
        value = self._metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, list) and len(value) >= layers:
            return [_number(item) for item in value[:layers]]
        return [_number(value)] * layers

    def length(self, name: str) -> int:
        value = self._metadata.get(name)
        if isinstance(value, list):
            return len(value)
        return _number(value.get("length")) if isinstance(value, dict) else 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _most(types: Mapping[str, int]) -> str:
    """The type that holds most of the bytes: what people call the file by."""
    return max(types, key=lambda name: (types[name], name), default="")


def _cache(settings: _Settings, layers: int) -> tuple[tuple[CacheGroup, ...], str]:
    if state := next((name for name in _STATE if settings.count(name)), None):
        return (), f"{settings.architecture} has layers that carry a state along ({state})"
    heads = settings.each("attention.head_count", layers)
    kv_heads = settings.each("attention.head_count_kv", layers)
    if not any(kv_heads):
        kv_heads = heads
    if not any(heads):
        return (), f"the header tells no heads of {settings.architecture}"
    hidden = settings.count("embedding_length")
    size = settings.count("attention.key_length") or hidden // max(heads)
    value = settings.count("attention.value_length") or size
    window = settings.count("attention.sliding_window")
    every = _SLIDES.get(settings.architecture, 0) if window else 0
    groups: dict[tuple[int, bool], int] = {}
    for index, count in enumerate(kv_heads):
        slides = bool(every) and (index + 1) % every != 0
        if count:
            groups[(count, slides)] = groups.get((count, slides), 0) + 1
    return (
        tuple(
            CacheGroup(layers=number, heads=count, key=size, value=value, window=window if slides else None)
            for (count, slides), number in sorted(groups.items())
        ),
        "",
    )
