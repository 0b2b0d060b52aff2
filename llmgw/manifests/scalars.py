"""YAML scalars by the core schema of YAML 1.2, and nothing that only some readers understand.

``no`` and ``on`` are text, ``0o17`` and ``0x1f`` are numbers, ``1e3`` is a number, ``22:22`` and dates are text.
What two YAML readers would read as two different values is refused instead of guessed.
"""

import math
import re
from typing import Any

WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_MAYBE_NUMBER = frozenset("+-.0123456789")
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = (
    40  # enough for 64 bits in any base; turning very long digits into a number takes quadratic time
)
_INT64 = range(-(2**63), 2**63)


class AmbiguousError(ValueError):
    """A scalar that readers disagree on, or that is no usable value. ``instead`` says what to write."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what)
        self.instead = instead


def plain(text: str) -> Any:
    """The value of a plain (unquoted) scalar: None, bool, int, float or str. Raises AmbiguousError."""
    if text in WORDS:
        return WORDS[text]
    if text[0] not in _MAYBE_NUMBER:
        return text
    return _number(text)


def _number(text: str) -> Any:
    if _LEADING_ZERO.fullmatch(text):
        raise AmbiguousError(
            f"`{text}` is octal for some YAML readers and decimal for others",
            f'write 0o{text.lstrip("+-0") or "0"} for octal, the number without leading zeros, or "{text}" for text',
        )
    if _NOT_FINITE.fullmatch(text):
        raise AmbiguousError(f"`{text}` is not a finite number", f'write a number, or "{text}" for text')
    whole = _DECIMAL.fullmatch(text) or _OCTAL.fullmatch(text) or _HEXADECIMAL.fullmatch(text)
    if whole and len(text) <= _MAX_DIGITS:
        number = int(text, 10 if text[1:2] not in ("o", "x") else 0)
        if number in _INT64:
            return number
    elif not whole:
        if not _FLOAT.fullmatch(text):
            return text
        if math.isfinite(real := float(text)):
            return real
    raise AmbiguousError(
        f"`{text[:50]}` is a number of more than 64 bits", f'quote it if it is text: "{text[:50]}"'
    )


_TAGGED: dict[str, type | None] = {
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:null": None,
}
TEXT_TAGS = ("tag:yaml.org,2002:str", "!")


def tagged(tag: str, text: str) -> Any:
    """The value of a scalar with an explicit tag of the core schema. Raises AmbiguousError for any other tag."""
    if tag in TEXT_TAGS:
        return text
    if tag not in _TAGGED:
        raise custom_tag(tag)
    value, kind = plain(text), _TAGGED[tag]
    if kind is float and type(value) is int:
        return float(value)
    if (value is None) if kind is None else type(value) is kind:
        return value
    raise AmbiguousError(
        f"`{text[:50]}` is not what its tag says ({short_tag(tag)})",
        "leave the tag out, or correct the value",
    )


def custom_tag(tag: str) -> AmbiguousError:
    return AmbiguousError(
        f"the tag {short_tag(tag)} is not supported", "write the plain value: manifests know no custom tags"
    )


def short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")[:60]
