"""Runs one command of a job: in a process group of its own, its output read line by line and bounded, all of it killed
when the job is cancelled. It stays in the session of the job's worker, which is one of the proofs of whose it is.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmgw.agent.children import end_session
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

MAX_LINE = 16 * 1024
KEPT_LINES = 20


class Ended(Struct):
    """How a command ended. ``code`` is negative for a signal, as in subprocess."""

    code: int
    last_lines: tuple[str, ...]


async def run_command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    directory: Path,
    told: Callable[[str], None],
    given: bytes = b"",
) -> Ended:
    """``env`` is exact. ``told`` gets each line as it comes, standard input holds what is ``given``. Cancelling kills the
    whole group."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            cwd=directory,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=_own_group,
            limit=MAX_LINE,
        )
    except OSError as wrong:
        raise StalledError(f"starting {argv[0]}: {wrong.strerror}: see that it is there") from wrong
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        await _read_lines(process.stdout, kept, told)
        return Ended(code=await process.wait(), last_lines=tuple(kept))
    finally:
        await end_session(process)


def _own_group() -> None:
    os.setpgid(0, 0)


async def _read_lines(stream: asyncio.StreamReader, kept: "deque[str]", told: Callable[[str], None]) -> None:
    """Until the end of the output. Over-long lines are cut; progress bars end their lines with a carriage return."""
    rest = b""
    while data := await stream.read(MAX_LINE):
        *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(rest) > MAX_LINE:
            lines, rest = [*lines, rest[:MAX_LINE]], b""
        for line in lines:
            _keep(line, kept, told)
    _keep(rest, kept, told)


def _keep(line: bytes, kept: "deque[str]", told: Callable[[str], None]) -> None:
    text = line.decode(errors="replace").strip()[:1_000]
    if text:
        kept.append(text)
        told(text)
