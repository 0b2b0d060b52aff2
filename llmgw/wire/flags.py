"""Which flags a program's help names. Where they stand is what tells them from flags that a sentence only speaks of: at the
beginning of an entry, and in the usage that comes first.
"""

import re
from collections.abc import Iterator

MAX_FLAG = 80
MAX_INDENT = 8
"""Spaces before an entry; what is indented more is the text of one."""
FLAG = re.compile(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*(?:\.[A-Za-z][\w-]*)*")
_ENTRY = re.compile(rf"^ {{0,{MAX_INDENT}}}-{{1,2}}[A-Za-z]")
_CHOICES = re.compile(r"\{[^{}]*\}")
_TEXT = re.compile(r"(?<=[^,\s])\s{2,}")
"""What ends the names of an entry: two spaces, but for those that only set names below each other."""
_USAGE = re.compile(r"^\s*usage:", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MORE = re.compile(r"--help(?:=|[ -])[\w-]+")


def flags_of(text: str) -> tuple[str, ...]:
    """Every flag that the help has an entry for, or names in its usage; sorted."""
    found = {flag for part in _named(_COLOUR.sub("", text)) for flag in FLAG.findall(_CHOICES.sub("", part))}
    return tuple(sorted(flag for flag in found if len(flag) <= MAX_FLAG))


def points_elsewhere(text: str, asked: str) -> str:
    """The word that the help itself names for seeing more, ``--help=all`` before one for a part; empty when it names none but
    ``asked``."""
    words = [word for word in _MORE.findall(_COLOUR.sub("", text)) if word != asked]
    return next((word for word in words if word.endswith("all")), next(iter(words), ""))


def _named(text: str) -> Iterator[str]:
    """The parts of the help that name flags."""
    usage = False
    for line in text.splitlines():
        usage = bool(_USAGE.match(line)) or (usage and bool(line.strip()))
        if usage:
            yield line
        elif _ENTRY.match(line):
            yield _TEXT.split(line.strip(), maxsplit=1)[0]
