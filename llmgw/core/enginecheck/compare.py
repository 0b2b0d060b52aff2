"""Flags of a command line against those that a program knows. On word boundaries: ``--port`` is not known because
``--port-range`` is, and the beginning of a flag is no flag, even where the engine would guess what was meant.
"""

import difflib
import re
from collections.abc import Collection, Sequence

from llmgw.model.launch import LATE_PATTERN, HelpSpec

_FLAG = re.compile(r"-{1,2}[A-Za-z]")
_SHORT = 2
"""Characters of a short flag; its value may stand right behind it."""


def asked_flags(words: Sequence[str]) -> tuple[str, ...]:
    """The flags among the words behind a program, each once and without a value, in order. A word that begins like a flag is
    taken for one: values don't."""
    found: dict[str, None] = {}
    for word in words:
        if word == "--":
            break
        if _FLAG.match(word):
            found.setdefault(word.partition("=")[0])
    return tuple(found)


def words_after(spec: HelpSpec, argv: Sequence[str]) -> tuple[str, ...] | None:
    """What stands behind the command whose help ``spec`` asks for; None: this is another program's command line."""
    command = spec.argv[:-1]
    return tuple(argv[len(command) :]) if tuple(argv[: len(command)]) == command else None


def unknown_flags(spec: HelpSpec, words: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Those of the words' flags that the program does not know."""
    return tuple(flag for flag in asked_flags(words) if not _knows(spec, flag, known))


def must_know(spec: HelpSpec, words: Sequence[str]) -> tuple[str, ...]:
    """The flags among the words that must stand in the program's help to the letter. Short ones of Python programs are left
    out: what belongs to the flag and what is its value can't be told without the help."""
    found = asked_flags(words)
    if spec.argparse:
        found = tuple(dict.fromkeys(_long(flag) for flag in found if flag.startswith("--")))
    return found


def nearest(flag: str, known: Collection[str]) -> str:
    """The flag that may have been meant; empty when none is like it. One that only goes on is nearer than one that is spelt
    alike."""
    longer = sorted((each for each in known if each.startswith(flag)), key=lambda each: (len(each), each))
    return next(iter([*longer, *difflib.get_close_matches(flag, sorted(known), n=1)]), "")


def plain(word: str) -> str:
    """A word of a launch spec as the program sees it, where it holds no value that only the node knows."""
    return LATE_PATTERN.sub(lambda found: "$" if found[1] is None else found[0], word)


def _knows(spec: HelpSpec, flag: str, known: Collection[str]) -> bool:
    if flag in known:
        return True
    if not spec.argparse:
        return False
    if not flag.startswith("--"):
        return flag[:_SHORT] in known
    return _long(flag) in known


def _long(flag: str) -> str:
    """As a Python program declares it."""
    return flag.partition(".")[0].replace("_", "-")
