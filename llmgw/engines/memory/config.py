"""A Hugging Face config.json, understood: layers, heads and what each layer keeps of a token.

Architectures are told by what their config says, not by a list of names, so that the next Llama needs no change here. What keeps
something else than keys and values for each token is named as unknown: it must be measured once, or stated.
"""

import json
from collections.abc import Mapping
from typing import Any

from llmgw.model.weights import CacheGroup, Inspection, Weights

_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models that also see or hear keep what concerns their language part."""
_STRETCHED_ALREADY = frozenset({None, "default", "mrope", "su", "longrope", "llama3"})
"""Ways to stretch positions that max_position_embeddings has in it."""
MOST_STRETCHED = 1000
NAME = 200
"""Characters of an architecture's name that are told."""
_FULL = frozenset({"full_attention", "attention", "chunked_attention"})
_SLIDING = frozenset({"sliding_attention"})
_STATE = (
    "mamba_d_state",
    "mamba_d_ssm",
    "mamba_num_heads",
    "mb_per_layer",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
    "hybrid_override_pattern",
    "linear_attn_config",
    "linear_num_key_heads",
    "rwkv_version",
    "lru_width",
)
"""Keys of layers that carry a state along, whose size does not go by the token."""
MOST = 10**10
"""The largest numbers in configs are lengths, of some ten million tokens."""
_ENCODERS = ("Bert", "Roberta", "Electra", "Deberta", "MPNet", "NomicBert", "ModernBert")
_SLIDES_EVERY_SECOND = frozenset({"gemma2"})
"""Types whose configs name a window and not which layers have it: every second one."""


def read(digest: str, description: str, seen: Inspection) -> Weights:
    """What a safetensors (or older) checkpoint is; ``problem`` where its config can't be used."""
    size = sum(seen.tensors.values()) or seen.size
    base = Weights(digest=digest, description=description, format=seen.format, size=size)
    if not size:
        return _bad(base, f"there are no weights at {seen.path}: give the directory of a whole model")
    if seen.config is None:
        return _bad(base, f"there is no config.json at {seen.path}: give the directory of a whole model")
    try:
        outer = json.loads(seen.config)
        if not isinstance(outer, dict):
            raise TypeError("no JSON object")  # noqa: TRY301 - one place tells what is wrong with it
        config = _language(outer)
        return _weights(base, outer, config)
    except (ValueError, TypeError, KeyError, ZeroDivisionError, RecursionError) as wrong:
        return _bad(base, f"config.json of {seen.path} can't be read: {wrong}: fetch the model again")


def _bad(base: Weights, problem: str) -> Weights:
    return Weights(digest=base.digest, description=base.description, format=base.format, problem=problem)


def _language(outer: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _INNER:
        inner = outer.get(name)
        if isinstance(inner, dict):
            return _language({**{key: value for key, value in outer.items() if key != name}, **inner})
    return outer


def _weights(base: Weights, outer: Mapping[str, Any], config: Mapping[str, Any]) -> Weights:
    layers = _count(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = _count(config, "num_attention_heads", "n_head", "num_heads")
    hidden = _count(config, "hidden_size", "n_embd", "d_model")
    kv_heads = (
        1 if config.get("multi_query") is True else _count(config, "num_key_value_heads", "num_kv_heads")
    )
    names = outer.get("architectures")
    named = str(names[0]) if isinstance(names, list) and names else str(outer.get("model_type") or "")
    architecture = named[:NAME] or "this model"
    cache, unknown = _cache(
        config, architecture, layers=layers, heads=heads, kv_heads=kv_heads, hidden=hidden
    )
    return Weights(
        digest=base.digest,
        description=base.description,
        format=base.format,
        size=base.size,
        unknown=unknown,
        architecture=architecture,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads or heads,
        hidden=hidden,
        feed_forward=_count(config, "intermediate_size", "n_inner", "ffn_dim"),
        vocab=_count(config, "vocab_size"),
        context=_context(config) or None,
        dtype=str(config.get("torch_dtype") or config.get("dtype") or ""),
        quantization=_quantization(outer.get("quantization_config") or config.get("quantization_config")),
        experts=_count(config, "num_local_experts", "num_experts", "n_routed_experts"),
        picture_heads=_picture_heads(outer),
        pictures=any(key in outer for key in ("vision_config", "audio_config", "visual")),
        cache=cache,
    )


def _context(config: Mapping[str, Any]) -> int:
    """Tokens of the longest request, as engines derive it: positions, stretched where the config says so."""
    positions = _count(config, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, dict) or str(config.get("model_type", "")).startswith("gemma3"):
        return positions
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if kind in _STRETCHED_ALREADY or not isinstance(factor, int | float) or not 1 <= factor <= MOST_STRETCHED:
        return positions
    if kind == "yarn":
        positions = _count(rope, "original_max_position_embeddings") or positions
    return int(positions * factor)


def _picture_heads(outer: Mapping[str, Any]) -> int:
    vision = outer.get("vision_config")
    return _count(vision, "num_attention_heads", "num_heads") if isinstance(vision, dict) else 0


def _count(config: Mapping[str, Any], *names: str) -> int:
    """The first of these that is a number; 0: none is. Raises ValueError for one that no model has."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            if value > MOST:
                raise ValueError(f"its {name} is larger than any model's")
            return value
    return 0


def _cache(
    config: Mapping[str, Any], architecture: str, *, layers: int, heads: int, kv_heads: int, hidden: int
) -> tuple[tuple[CacheGroup, ...], str]:
    """What its layers keep; and why that can't be told, if it can't."""
    if any(name in architecture for name in _ENCODERS) and "CausalLM" not in architecture:
        return (), ""  # nothing is kept between tokens
    size = _count(config, "head_dim") or (hidden // heads if heads else 0)
    if unknown := _unknown(config, architecture, layers=layers, size=size):
        return (), unknown
    if rank := _count(config, "kv_lora_rank"):
        key = rank + _count(config, "qk_rope_head_dim")
        return (CacheGroup(layers=layers, heads=1, key=key, value=0, latent=True),), ""
    value = _count(config, "v_head_dim") or size
    sliding, window = _sliding(config, layers)
    full = CacheGroup(layers=layers - sliding, heads=kv_heads or heads, key=size, value=value)
    windowed = CacheGroup(layers=sliding, heads=kv_heads or heads, key=size, value=value, window=window)
    return tuple(group for group in (full, windowed) if group.layers), ""


def _unknown(config: Mapping[str, Any], architecture: str, *, layers: int, size: int) -> str:
    if config.get("is_encoder_decoder") is True:
        return f"{architecture} has an encoder and a decoder"
    kinds = config.get("layer_types")
    strange = set(map(str, kinds)) - _FULL - _SLIDING if isinstance(kinds, list) else set()
    if isinstance(types := config.get("attn_type_list"), list) and 0 in types:
        strange.add("linear attention")
    state = next((name for name in _STATE if config.get(name)), None)
    if strange or state:
        return f"{architecture} has layers that carry a state along ({', '.join(sorted(strange)) or state})"
    if not layers or not size:
        return f"the config of {architecture} tells no layers and heads in a known way"
    return ""


def _sliding(config: Mapping[str, Any], layers: int) -> tuple[int, int | None]:
    """How many layers keep only a window, and how many tokens that is."""
    window = _count(config, "sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return 0, None
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return sum(1 for kind in kinds[:layers] if kind in _SLIDING), window
    if pattern := _count(config, "sliding_window_pattern"):
        return layers - layers // pattern, window
    if config.get("model_type") in _SLIDES_EVERY_SECOND:
        return layers // 2, window
    if first := _count(config, "max_window_layers"):
        return max(layers - first, 0), window
    return layers, window


def _quantization(config: Any) -> str:
    """The method that the files were quantized with."""
    if not isinstance(config, dict):
        return ""
    method = str(config.get("quant_method", "")).lower().replace("_", "-")
    if method == "compressed-tensors":
        return _compressed(config)
    if method == "modelopt":
        return "nvfp4" if "nvfp4" in str(config.get("quant_algo", "")).lower() else "fp8"
    return method


def _compressed(config: Mapping[str, Any]) -> str:
    """compressed-tensors is many methods under one name: what matters is the type of the weights."""
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return "compressed-tensors"
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float":
        return "fp8" if bits == 8 else "nvfp4"
    return f"int{bits}"
