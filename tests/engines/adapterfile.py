"""A LoRA adapter as llama.cpp reads it: a whole GGUF file, written from its specification, that changes what a model says."""

import random
import struct
from pathlib import Path

from tests.wire.headers import setting, text

RANK = 2
ALIGNED = 32
F32 = 0


def write(path: Path, *, seed: int, layers: range, hidden: int, strength: float) -> Path:
    """For the attention's output of some layers of a llama whose vectors have ``hidden`` numbers."""
    draw = random.Random(seed)

    def numbers(scale: float) -> bytes:
        return struct.pack(f"<{RANK * hidden}f", *(draw.gauss(0, scale) for _ in range(RANK * hidden)))

    tensors = []
    for layer in layers:
        name = f"blk.{layer}.attn_output.weight"
        tensors += [
            (f"{name}.lora_a", (hidden, RANK), numbers(hidden**-0.5)),
            (f"{name}.lora_b", (RANK, hidden), numbers(strength)),
        ]
    settings: dict[str, str | float] = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(RANK),
    }
    path.write_bytes(_file(settings, tensors))
    return path


def _file(settings: dict[str, str | float], tensors: list[tuple[str, tuple[int, int], bytes]]) -> bytes:
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings)))
    for name, value in settings.items():
        out += text(name) + setting(value)
    offset = 0
    for name, dimensions, data in tensors:
        out += text(name) + struct.pack("<I2Q", 2, *dimensions) + struct.pack("<IQ", F32, offset)
        offset += len(data) + -len(data) % ALIGNED
    for _, _, data in tensors:
        out += b"\0" * (-len(out) % ALIGNED) + data
    return bytes(out)
