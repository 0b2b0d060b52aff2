"""Durations and sizes as people write them: ``90s``, ``1h30m``, ``40GiB``, ``500MB``."""

import re

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS: dict[str, int] = {"B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+")
_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?(B|[KMGT]i?B)")


def duration(text: str) -> float:
    """Seconds. Raises ValueError."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f'"{text}" is no duration: write one such as 90s, 5m or 1h30m')
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in _DURATION_PART.findall(text))


def size(text: str) -> int:
    """Bytes, exactly. Raises ValueError."""
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f'"{text}" is no size: write one such as 40GiB or 500MB')
    whole, fraction, unit = found.groups(default="")
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * _SIZE_UNITS[unit] // scale
