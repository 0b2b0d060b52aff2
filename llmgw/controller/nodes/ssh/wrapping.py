"""The words that a login shell on the other side gets. Pure, and the one place where anything is quoted.

A login shell may print whatever it likes before it gets to our command (banners in .bashrc, complaints about the locale):
what counts begins after a line that nothing else prints. It is printed by the command's own side of ``sudo``, so that it also
says that the login and sudo have worked, and that what comes after is the command's own doing.
"""

import shlex
from collections.abc import Sequence
from typing import Final

MAGIC: Final = "llmgw command 1"
MAGIC_LINE: Final = MAGIC.encode() + b"\n"
_BEGIN: Final = f"echo '{MAGIC}'; echo '{MAGIC}' >&2; exec \"$@\""
_SHOWN: Final = 200


def wrapped(command: Sequence[str], *, sudo: bool) -> str:
    """A command that says when it begins, on both its streams."""
    return plain(("sh", "-c", _BEGIN, "llmgw", *command), sudo=sudo)


def plain(command: Sequence[str], *, sudo: bool) -> str:
    """A command that says so itself, such as the agent's bridge. The C locale, because answers are read by programs."""
    become = ("sudo", "-n", "--") if sudo else ()
    return "exec " + shlex.join(("env", "LC_ALL=C", *become, *command))


def shown(command: Sequence[str]) -> str:
    """For messages: in one line, and not a whole script."""
    text = shlex.join(command).replace("\n", " ")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def after_magic(data: bytes) -> bytes | None:
    """What came after the magic line; None: it has not come. A banner without a line end may stand before it."""
    _, found, rest = data.partition(MAGIC_LINE)
    return rest if found else None
