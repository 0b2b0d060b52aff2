"""What the header of a safetensors file, or the index of several, says of their tensors' bytes. Reads no tensor.

A file begins with the length of its header (8 bytes, little endian), then the header: JSON that names every tensor with its
type and place. All counts are bounded.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

PREFIX = 8
MAX_HEADER = 100_000_000
"""Bytes that the format allows itself; a mixture of many experts needs some 15 MB."""
INDEX = "model.safetensors.index.json"
MAX_INDEX = 64 * 1024 * 1024
MAX_FILES = 2_000
MAX_SIZE = 2**53
"""Bytes of all tensors; beyond that a number in JSON may be another."""


class BadHeaderError(ValueError):
    """Not what it should be; says what is wrong."""


def length(prefix: bytes) -> int:
    """Of the header, from the file's first eight bytes."""
    if len(prefix) < PREFIX:
        raise BadHeaderError("it is shorter than eight bytes")
    found = int(struct.unpack("<Q", prefix[:PREFIX])[0])
    if not 2 <= found <= MAX_HEADER:
        raise BadHeaderError(f"its header would be {found} bytes long: it is no safetensors file")
    return found


def tensor_bytes(header: bytes) -> dict[str, int]:
    """Bytes of all tensors by their type (``BF16``, ``F8_E4M3``), from the header alone."""
    found: dict[str, int] = {}
    for name, entry in _object(header, "its header").items():
        if name == "__metadata__":
            continue
        match entry:
            case {"dtype": str(kind), "data_offsets": [int(begin), int(end)]} if 0 <= begin <= end:
                found[kind] = found.get(kind, 0) + end - begin
            case _:
                raise BadHeaderError(f"its header says of tensor {name:.80} neither type nor place")
    return found


def indexed(index: bytes) -> tuple[int | None, tuple[str, ...]]:
    """The tensors' bytes, if the index tells them, and the files that hold them, from ``model.safetensors.index.json``."""
    parsed = _object(index, INDEX)
    total, files = None, parsed.get("weight_map")
    match parsed.get("metadata"):
        case {"total_size": int(size) | float(size)} if 1 < size < MAX_SIZE:  # True is a number too
            total = int(size)
    if (
        not isinstance(files, Mapping)
        or not files
        or not all(isinstance(name, str) for name in files.values())
    ):
        raise BadHeaderError(f"{INDEX} names no files (weight_map)")
    names = tuple(sorted(set(files.values())))
    if len(names) > MAX_FILES:
        raise BadHeaderError(f"{INDEX} names {len(names)} files, more than {MAX_FILES}")
    return total, names


def _object(data: bytes, what: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as wrong:
        raise BadHeaderError(f"{what} is not JSON: {wrong}") from wrong
    if not isinstance(parsed, dict):
        raise BadHeaderError(f"{what} is no JSON object")
    return parsed
