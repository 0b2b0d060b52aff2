"""Runs one command of a job: in a session of its own, its output read line by line and bounded, all of it killed when
the job is cancelled or the agent ends. What a killed agent left running is found by a marker in its environment.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.children import end_session
from llmgw.model.problems import StalledError

MARKER = "LLMGW_JOB"
MAX_LINE = 16 * 1024
KEPT_LINES = 20
MAX_ENVIRON = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended. ``code`` is negative for a signal, as in subprocess."""

    code: int
    last_lines: tuple[str, ...]


async def run_command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    marker: str,
    directory: Path,
    told: Callable[[str], None],
) -> Ended:
    """``env`` is exact. ``told`` gets each line as it comes. Cancelling kills the whole session."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**env, MARKER: marker},
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=MAX_LINE,
        )
    except OSError as wrong:
        raise StalledError(f"starting {argv[0]}: {wrong.strerror}: see that it is there") from wrong
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        assert process.stdout is not None
        await _read_lines(process.stdout, kept, told)
        return Ended(code=await process.wait(), last_lines=tuple(kept))
    finally:
        await end_session(process)


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


def kill_leftovers(marker: str, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Kills what an earlier agent's job left running. Only a process whose environment carries exactly this marker
    is touched."""
    wanted = f"{MARKER}={marker}".encode()
    killed = []
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            with (folder / "environ").open("rb") as file:
                environ = file.read(MAX_ENVIRON)
        except OSError:
            continue  # gone, or somebody else's: not ours to kill
        if wanted in environ.split(b"\0"):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(int(folder.name))
    return tuple(killed)
