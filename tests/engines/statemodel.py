"""A tiny model whose layers carry a state along (Mamba), as llama.cpp reads it: random weights, a vocabulary of bytes."""

import random
import struct
from pathlib import Path
from typing import Any

from tests.wire.headers import F32, LIST, setting, text

HIDDEN, INNER, STATE, WIDTH, STEP, LAYERS = 64, 128, 16, 4, 4, 2
ALIGNED = 32
GGML_F32, I32 = 0, 5
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
TOKENS = (
    ("<unk>", UNKNOWN),
    ("<s>", CONTROL),
    ("</s>", CONTROL),
    *((f"<0x{byte:02X}>", BYTE) for byte in range(256)),
    *((char, NORMAL) for char in "\u2581abcdefghijklmnopqrstuvwxyz"),
)


def write(path: Path, *, seed: int = 7) -> Path:
    draw = random.Random(seed)
    tensors = [
        ("token_embd.weight", (HIDDEN, len(TOKENS))),
        ("output_norm.weight", (HIDDEN,)),
        ("output.weight", (HIDDEN, len(TOKENS))),
    ]
    for layer in range(LAYERS):
        tensors += [(f"blk.{layer}.{name}", shape) for name, shape in _LAYER]
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(_SETTINGS) + 2))
    for name, value in _SETTINGS.items():
        out += text(name) + setting(value)
    out += (
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", LIST, F32, len(TOKENS)) + bytes(4 * len(TOKENS))
    )
    kinds = struct.pack(f"<{len(TOKENS)}i", *(kind for _, kind in TOKENS))
    out += text("tokenizer.ggml.token_type") + struct.pack("<IIQ", LIST, I32, len(TOKENS)) + kinds
    data = bytearray()
    for name, shape in tensors:
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", GGML_F32, len(data))
        data += _numbers(draw, name, shape)
        data += bytes(-len(data) % ALIGNED)
    path.write_bytes(bytes(out) + bytes(-len(out) % ALIGNED) + bytes(data))
    return path


def _numbers(draw: random.Random, name: str, shape: tuple[int, ...]) -> bytes:
    count = 1
    for size in shape:
        count *= size
    if "norm" in name or name.endswith(("ssm_d", "bias")):
        numbers = [1.0] * count
    elif name.endswith("ssm_a"):
        numbers = [-1.0 - index % STATE for index in range(count)]  # what a state forgets by: never growing
    else:
        numbers = [draw.gauss(0, shape[0] ** -0.5) for _ in range(count)]
    return struct.pack(f"<{count}f", *numbers)


_LAYER: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("attn_norm.weight", (HIDDEN,)),
    ("ssm_in.weight", (HIDDEN, 2 * INNER)),
    ("ssm_conv1d.weight", (WIDTH, INNER)),
    ("ssm_conv1d.bias", (INNER,)),
    ("ssm_x.weight", (INNER, STEP + 2 * STATE)),
    ("ssm_dt.weight", (STEP, INNER)),
    ("ssm_dt.bias", (INNER,)),
    ("ssm_a", (STATE, INNER)),
    ("ssm_d", (INNER,)),
    ("ssm_out.weight", (INNER, HIDDEN)),
)
_SETTINGS: dict[str, Any] = {
    "general.architecture": "mamba",
    "mamba.block_count": LAYERS,
    "mamba.context_length": 2048,
    "mamba.embedding_length": HIDDEN,
    "mamba.feed_forward_length": 0,
    "mamba.attention.head_count": 0,
    "mamba.attention.layer_norm_rms_epsilon": 1e-5,
    "mamba.ssm.conv_kernel": WIDTH,
    "mamba.ssm.inner_size": INNER,
    "mamba.ssm.state_size": STATE,
    "mamba.ssm.time_step_rank": STEP,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [name for name, _ in TOKENS],
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
