"""Durations and sizes as people write them: ``90s``, ``1h30m``, ``40GiB``, ``500MB``."""

import re
from decimal import Decimal

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


def duration_text(seconds: float) -> str:
    """As people write it: ``1h30m``, ``500ms``. ``duration`` reads the same number."""
    if seconds == int(seconds):
        return _parts(int(seconds))
    thousandths = f"{round(seconds * 1000)}ms"
    return thousandths if duration(thousandths) == seconds else f"{Decimal(repr(seconds)):f}s"


def _parts(seconds: int) -> str:
    text = ""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, length)
        text += f"{number}{unit}" if number else ""
    return text or "0s"


def size_text(count: int) -> str:
    """As people write it, in the largest unit that is whole: ``40GiB``. ``size`` reads the same number."""
    if not count:
        return "0B"
    length, unit = max((length, unit) for unit, length in _SIZE_UNITS.items() if count % length == 0)
    return f"{count // length}{unit}"
