"""What a doctor says of a node: one line for each thing that was looked at, also for what is well."""

from collections.abc import Iterable
from enum import Enum

from llmgw.model.struct import Struct


class Level(Enum):
    OK = "ok"
    WARN = "warn"  # works, and will hurt some day
    FAIL = "fail"  # something does not work


class Check(Struct):
    """``do`` says what to do about it; empty where nothing is to be done."""

    name: str
    level: Level
    text: str
    do: str = ""


class Checkup(Struct):
    checks: tuple[Check, ...] = ()


def well(name: str, text: str) -> Check:
    return Check(name=name, level=Level.OK, text=text)


def warn(name: str, text: str, do: str) -> Check:
    return Check(name=name, level=Level.WARN, text=text, do=do)


def fail(name: str, text: str, do: str) -> Check:
    return Check(name=name, level=Level.FAIL, text=text, do=do)


def lines(checks: Iterable[Check]) -> list[str]:
    """For a terminal: what failed and what to do about it stands out by its first word."""
    listed = list(checks)
    width = max((len(check.name) for check in listed), default=0)
    told = []
    for check in listed:
        told.append(f"{check.level.value:<4}  {check.name:<{width}}  {check.text}")
        if check.do:
            told.append(f"{'':<{width + 8}}-> {check.do}")
    return told


def worst(checks: Iterable[Check]) -> Level:
    order = (Level.OK, Level.WARN, Level.FAIL)
    return max((check.level for check in checks), key=order.index, default=Level.OK)
