"""What the header of a GGUF file says: its settings, and the exact bytes of every tensor. Reads no tensor.

The header comes first and its length is written nowhere: :func:`read` is given the file's beginning and says by
:class:`TooShortError` how much more it needs, so that a file, a map of it in memory and a range over HTTP are read alike.
Layout: the GGUF specification of ggml, versions 2 and 3. All counts are bounded.
"""

import struct
from collections.abc import Mapping
from typing import Any

from llmgw.model.struct import Struct

MAX_HEADER = 64 * 1024 * 1024
"""Bytes: the largest vocabularies, with their merges, make headers of some 15 MB."""
MAX_SETTINGS = 65_536
MAX_TENSORS = 200_000
MAX_TEXT = 1024 * 1024
"""Bytes of one text; chat templates are some 20 kB."""
MAX_LIST = 1_024
"""Items of a list that are kept; of a longer one only the length is told: vocabularies, never settings of layers."""
KEPT_TEXT = 256
"""Characters that are kept of a text: names, not templates."""

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT, _LIST = 8, 9

TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""ggml's tensor types: name, elements of a block, bytes of a block (ggml.h and gguf's constants)."""


class TooShortError(ValueError):
    """The header goes on beyond what was given; at least ``need`` bytes from the file's start are wanted."""

    def __init__(self, need: int) -> None:
        super().__init__(f"the header is longer than what was read: at least {need} bytes")
        self.need = need


class BadHeaderError(ValueError):
    """Not a GGUF header, or one that can't be believed."""


class Header(Struct):
    """``parts`` counts the tensors' bytes by part of the model: ``blk.0``, ``token_embd``, ``output``; ``types`` by their
    type's name."""

    settings: Mapping[str, Any]
    parts: Mapping[str, int]
    types: Mapping[str, int]
    tensors: int


def read(data: Any) -> Header:
    """``data``: the file's beginning, as bytes or a map of it in memory. Raises TooShortError and BadHeaderError."""
    cursor = _Cursor(data)
    if bytes(cursor.take(4)) != MAGIC:
        raise BadHeaderError("it does not begin as a GGUF file does")
    version = cursor.number("<I")
    if version not in _VERSIONS:
        raise BadHeaderError(f"GGUF version {version} is not one of {', '.join(map(str, _VERSIONS))}")
    tensors, count = cursor.number("<Q"), cursor.number("<Q")
    if tensors > MAX_TENSORS or count > MAX_SETTINGS:
        raise BadHeaderError(f"{tensors} tensors and {count} settings are more than any model has")
    settings = dict(_setting(cursor) for _ in range(count))
    parts: dict[str, int] = {}
    types: dict[str, int] = {}
    for _ in range(tensors):
        name, kind, size = _tensor(cursor)
        part = _part(name)
        parts[part] = parts.get(part, 0) + size
        types[kind] = types.get(kind, 0) + size
    return Header(settings=settings, parts=parts, types=types, tensors=tensors)


class _Cursor:
    """A place in the file's beginning."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def take(self, count: int) -> Any:
        end = self._at + count
        if end > MAX_HEADER:
            raise BadHeaderError(f"its header is longer than {MAX_HEADER} bytes")
        if end > self._size:
            raise TooShortError(end)
        found = self._data[self._at : end]
        if len(found) < count:  # a file that is being cut while it is read
            raise TooShortError(end)
        self._at = end
        return found

    def number(self, form: str) -> int:
        return int(self.scalar(form))

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        length = self.number("<Q")
        if length > MAX_TEXT:
            raise BadHeaderError(f"a text of {length} bytes")
        return bytes(self.take(length)).decode(errors="replace")

    def skip_texts(self, count: int) -> None:
        for _ in range(count):
            length = self.number("<Q")
            if length > MAX_TEXT:
                raise BadHeaderError(f"a text of {length} bytes")
            self.take(length)


def _setting(cursor: _Cursor) -> tuple[str, Any]:
    name = cursor.text()
    return name, _value(cursor, cursor.number("<I"))


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind == _TEXT:
        return cursor.text()[:KEPT_TEXT]
    if kind == _LIST:
        return _list(cursor)
    if kind not in _SCALARS:
        raise BadHeaderError(f"a value of the unknown type {kind}")
    return cursor.scalar(_SCALARS[kind])


def _list(cursor: _Cursor) -> Any:
    kind, count = cursor.number("<I"), cursor.number("<Q")
    if kind == _TEXT:
        if count <= MAX_LIST:
            return [cursor.text()[:KEPT_TEXT] for _ in range(count)]
        cursor.skip_texts(count)
        return {"length": count}
    if kind not in _SCALARS:
        raise BadHeaderError(f"a list of the type {kind}")
    form = _SCALARS[kind]
    if count <= MAX_LIST:
        return [cursor.scalar(form) for _ in range(count)]
    cursor.take(count * struct.calcsize(form))
    return {"length": count}


def _tensor(cursor: _Cursor) -> tuple[str, str, int]:
    """Name, type and bytes."""
    name = cursor.text()
    dimensions = cursor.number("<I")
    if not 0 <= dimensions <= 8:
        raise BadHeaderError(f"tensor {name:.80} has {dimensions} dimensions")
    elements = 1
    for _ in range(dimensions):
        elements *= cursor.number("<Q")
    kind = cursor.number("<I")
    cursor.number("<Q")  # where it lies
    if kind not in TYPES:
        raise BadHeaderError(f"tensor {name:.80} has the unknown type {kind}: a newer llmgw may know it")
    title, block, size = TYPES[kind]
    return name, title, -(-elements // block) * size


def _part(name: str) -> str:
    """``blk.12`` of ``blk.12.attn_q.weight``; ``output`` of ``output.weight``."""
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == "blk" else first
