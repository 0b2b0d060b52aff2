"""Runs llmgw's small programs on a machine that has nothing but a Python: their text goes first on standard input, what
they work on follows. Their answers are read and refused where they are no answers."""

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import llmgw
from llmgw.controller.nodes.bootstrap.shell import Ended, Shell
from llmgw.model.problems import StalledError, UnknownOutcomeError
from llmgw.model.struct import Struct

RUNTIME: Final = Path(llmgw.__file__).parent / "runtime"
LOADER: Final = (
    "import sys;n=int(sys.argv.pop(1));t=sys.stdin.buffer.read(n);"
    "len(t)==n or sys.exit('the program came in part only');"
    "exec(compile(t,'llmgw','exec'),{'__name__':'__main__'})"
)
"""Not a byte more than the program's own is read, so that the payload is the program's."""
SECONDS: Final = 180.0
SLOWEST: Final = 64 * 1024
"""Bytes a second that a payload is given to arrive: a bundle has some 5 MB, a bad line 1 Mbit/s."""
SAID: Final = 800


class Place(Struct):
    """A machine, a Python on it, and whether root is needed there."""

    node: str
    shell: Shell
    python: str
    sudo: bool


async def call(
    place: Place, program: str, *words: str, payload: bytes = b"", doing: str, timeout: float = SECONDS
) -> Mapping[str, Any]:
    """One verb of ``runtime/node<program>.py``. Raises StalledError with its reason, UnknownOutcomeError when nobody knows."""
    text = (RUNTIME / f"node{program}.py").read_bytes()
    ended = await place.shell.run(
        (place.python, "-I", "-S", "-c", LOADER, str(len(text)), str(len(payload)), *words),
        stdin=text + payload,
        timeout=timeout + len(payload) / SLOWEST,
        sudo=place.sudo,
    )
    answer = answered(ended, program, doing=f"node {place.node}: {doing}")
    if "error" in answer:
        full = answer.get("errno") in (errno.ENOSPC, errno.EDQUOT)
        told = f"{answer['error']}: free some space there" if full else answer["error"]
        raise StalledError(f"node {place.node}: {doing}: {told}")
    return dict(answer["done"])


def answered(ended: Ended, word: str, *, doing: str) -> Mapping[str, Any]:
    """The line that begins with ``word``; what a login shell prints before it is skipped."""
    for line in reversed(ended.out.decode(errors="replace").splitlines()):
        if line.startswith(f"{word} {{"):
            try:
                return dict(json.loads(line[len(word) :]))
            except ValueError:
                break
    if ended.code is None:
        raise UnknownOutcomeError(
            f"{doing}: the line was lost: it may have been done; the next try looks and goes on"
        )
    raise StalledError(f"{doing}: no answer, it ended with {ended.code}: {said(ended)}")


def said(ended: Ended) -> str:
    """The end of what a command told, for an error."""
    text = (ended.err.strip() or ended.out.strip()).decode(errors="replace")
    return text[-SAID:] or "(it said nothing)"
