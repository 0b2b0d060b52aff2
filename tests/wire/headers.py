"""Small GGUF and safetensors files, written byte by byte from their specifications."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

U32, F32, BOOL, TEXT, LIST, U64 = 4, 6, 7, 8, 9, 10


def gguf(
    settings: Mapping[str, Any], tensors: Sequence[tuple[str, tuple[int, ...], int]], *, version: int = 3
) -> bytes:
    """The header alone. ``tensors``: name, dimensions, number of ggml's type."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(settings)))
    for name, value in settings.items():
        out += text(name) + setting(value)
    for name, dimensions, kind in tensors:
        out += (
            text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        )
        out += struct.pack("<IQ", kind, 0)
    return bytes(out)


def setting(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<IQ", U64, value) if value > 2**32 - 1 else struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + text(value)
    kind = TEXT if value and isinstance(value[0], str) else U32
    items = b"".join(text(item) if kind == TEXT else struct.pack("<I", item) for item in value)
    return struct.pack("<IIQ", LIST, kind, len(value)) + items


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def llama(*, layers: int = 2, vocab: int = 512, more: Mapping[str, Any] | None = None) -> bytes:
    """A whole small model's header: hidden 128, 4 heads, 2 KV heads of 32, F16."""
    settings: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": layers,
        "llama.context_length": 2048,
        "llama.embedding_length": 128,
        "llama.feed_forward_length": 256,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.tokens": [f"token-{index}" for index in range(vocab)],
        "tokenizer.ggml.add_bos_token": False,
        **(more or {}),
    }
    tensors: list[tuple[str, tuple[int, ...], int]] = [("token_embd.weight", (128, vocab), 1)]
    for index in range(layers):
        tensors += [
            (f"blk.{index}.attn_q.weight", (128, 128), 1),
            (f"blk.{index}.attn_k.weight", (128, 64), 1),
            (f"blk.{index}.ffn_up.weight", (128, 256), 1),
        ]
    tensors += [("output_norm.weight", (128,), 0), ("output.weight", (128, vocab), 1)]
    return gguf(settings, tensors)


def safetensors(tensors: Mapping[str, tuple[str, int]]) -> bytes:
    """A whole file of zeros. ``tensors``: name to type and bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, size) in tensors.items():
        header[name] = {"dtype": kind, "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(offset)
