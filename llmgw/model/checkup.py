"""What a doctor says of a node: one line for each thing that was looked at, also for what is well."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    OK = "ok"
    WARN = "warn"  # works, and will hurt some day
    FAIL = "fail"  # something does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``do`` says what to do about it; empty where nothing is to be done."""

    name: str
    level: Level
    text: str
    do: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    checks: tuple[Check, ...] = ()


def well(name: str, text: str) -> Check:
    return Check(name=name, level=Level.OK, text=text)


def warn(name: str, text: str, do: str) -> Check:
    return Check(name=name, level=Level.WARN, text=text, do=do)


def fail(name: str, text: str, do: str) -> Check:
    return Check(name=name, level=Level.FAIL, text=text, do=do)


def worst(checks: Iterable[Check]) -> Level:
    order = (Level.OK, Level.WARN, Level.FAIL)
    return max((check.level for check in checks), key=order.index, default=Level.OK)
