"""Why a process ended, from what it wrote last and what others saw: the first traceback (the last one is often only its
echo), the last lines, lack of memory, errors of its GPUs. Pure."""

import re
from collections.abc import Iterable

from llmgw.model.report import Exit
from llmgw.model.struct import Struct, replace

LAST_LINES = 20
MAX_TEXT = 2_000
"""Characters kept of one line."""
MAX_TRACEBACK = 8_000
READ = 512 * 1024
"""Bytes of output looked at: an engine's log from start to crash is some 100 kB."""

SHORTEST_SECRET = 4
"""Characters: masking shorter ones would tear holes into ordinary text."""

TRACEBACK = "Traceback (most recent call last):"
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|std::bad_alloc|cudaErrorMemoryAllocation|Cannot allocate memory"
)


class Evidence(Struct):
    """What others saw of a death. ``said`` is put into the exit's detail, a sentence each."""

    out_of_memory: bool = False
    said: tuple[str, ...] = ()


NOTHING_SEEN = Evidence()


def explain(exit_: Exit, output: str, evidence: Evidence = NOTHING_SEEN) -> Exit:
    """``output`` is what the process wrote since its start, or the end of that."""
    lines = [line for line in output.splitlines() if line.strip()]
    traceback = first_traceback(lines)
    last = tuple(line[:MAX_TEXT] for line in lines[-LAST_LINES:])
    told = "\n".join((traceback, *last))
    return replace(
        exit_,
        traceback=traceback,
        last_lines=last,
        out_of_memory=exit_.out_of_memory or evidence.out_of_memory or OUT_OF_MEMORY.search(told) is not None,
        detail="; ".join(text for text in (exit_.detail, *evidence.said) if text)[:MAX_TEXT],
    )


def mask(text: str, secrets: Iterable[str]) -> str:
    """Engines print what they like, their keys too; what leaves the node, or stays in a record, must not hold them."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text


def first_traceback(lines: list[str]) -> str:
    """Python's, with whatever prefix a logger put before each of its lines cut off."""
    start = next((i for i, line in enumerate(lines) if TRACEBACK in line), None)
    if start is None:
        return ""
    column = lines[start].index(TRACEBACK)
    found = [TRACEBACK]
    for line in lines[start + 1 :]:
        text = line[column:] if len(line) > column else line
        found.append(text[:MAX_TEXT])
        if not text.startswith((" ", "\t")):
            break  # the exception itself
    # A traceback is read from its end: what is too long loses its middle.
    whole = "\n".join(found)
    if len(whole) <= MAX_TRACEBACK:
        return whole
    return f"{TRACEBACK}\n  …\n{whole[-(MAX_TRACEBACK - 50) :]}"
