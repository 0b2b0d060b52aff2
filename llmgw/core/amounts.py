"""Sizes, times and lists as people read them."""

from collections.abc import Iterable
from datetime import datetime, timezone

GIB = 1024**3
MIB = 1024**2
NAMES_SHOWN = 3
"""Names that a list spells out before it counts the rest: more would hide the sentence they stand in."""


def size(count: float) -> str:
    """``38.2 GiB``, ``512 MiB``: as much as a person needs to compare two of them."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB"


def at(moment: datetime) -> str:
    """``2026-03-01 10:02:03Z``."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float) -> str:
    """``42s``, ``3m 20s``, ``2h 5m``, ``3d 4h``."""
    whole = max(round(seconds), 0)
    for unit, lower, length in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if whole >= length:
            rest = whole % length // {"h": 3600, "m": 60, "s": 1}[lower]
            return f"{whole // length}{unit} {rest}{lower}" if rest else f"{whole // length}{unit}"
    return f"{whole}s"


def plural(count: int, noun: str, many: str | None = None) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def names(items: Iterable[str]) -> str:
    """``a, b and c``; a long list says how many more."""
    listed = list(items)
    if len(listed) > NAMES_SHOWN + 1:
        return f"{', '.join(listed[:NAMES_SHOWN])} and {len(listed) - NAMES_SHOWN} more"
    return " and ".join(part for part in (", ".join(listed[:-1]), *listed[-1:]) if part)


def ranges(numbers: Iterable[int]) -> str:
    """``0-3, 6`` for 0, 1, 2, 3 and 6."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
