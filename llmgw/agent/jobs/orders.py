"""What the agent and the worker of a job say to each other, as files in the job's own folder (0700):

================ ============ ===============================================================================
``order.json``   the agent    what to do; may hold secrets, and goes as soon as it is read
``progress``     the worker   how far it is: a line of JSON, written over in place
``result``       the worker   how it ended, likewise
================ ============ ===============================================================================

Progress and result are laid down full of blanks before the worker begins: writing over them needs no new block, so that
they can be told on a full disk too.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from llmgw.agent.jobs.files import NoSpaceError
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.problems import LlmgwError, RetryError, StalledError
from llmgw.model.struct import Struct, field
from llmgw.wire import codec

ORDER = "order.json"
PROGRESS = "progress"
RESULT = "result"
MAX_ORDER = 4 * 1024 * 1024
ROOM = 16 * 1024
"""Bytes of either file. Pip's last lines, and more, in any language."""
MAX_TEXT = 2_000


class WorkOrder(Struct):
    """One job, and the node as far as it matters to it. Holds secrets: never logged. Exactly one spec is set."""

    engines: str
    weights: str
    runtime: str
    python: str | None
    env: Mapping[str, str]
    reserve: int
    engine_user: str | None = None
    install: InstallSpec | None = None
    fetch: FetchSpec | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)


class Told(Struct):
    """How far a worker is."""

    done: int = 0
    total: int | None = None
    line: str = ""


class Result(Struct):
    """How it ended. ``kind``: done, retry, stalled or no-space."""

    kind: str
    error: str = ""
    after: float = 0

    def raise_error(self) -> None:
        """Nothing for ``done``."""
        match self.kind:
            case "done":
                return
            case "retry":
                raise RetryError(self.error, after=timedelta(seconds=self.after))
            case "no-space":
                raise NoSpaceError(self.error)
            case _:
                raise StalledError(self.error)


def result_of(wrong: BaseException) -> Result:
    match wrong:
        case RetryError():
            return Result(kind="retry", error=_cut(str(wrong)), after=wrong.after.total_seconds())
        case NoSpaceError():
            return Result(kind="no-space", error=_cut(str(wrong)))
        case LlmgwError():
            return Result(kind="stalled", error=_cut(str(wrong)))
        case _:
            return Result(kind="stalled", error=_cut(f"{type(wrong).__name__}: {wrong}"))


def files_of(order: WorkOrder) -> Mapping[str, str]:
    return {ORDER: codec.dumps(order).decode(), PROGRESS: " " * ROOM, RESULT: " " * ROOM}


def write_over(file: Path, value: Told | Result) -> None:
    """In place. Raises OSError."""
    data = codec.dumps(value).ljust(ROOM)
    descriptor = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, 0)
        if isinstance(value, Result):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(kind: type[codec.T], file: Path) -> codec.T | None:
    """None: nothing is told there, or it is being written this moment."""
    try:
        with file.open("rb") as stream:
            data = stream.read(ROOM).strip()
        return codec.loads(kind, data, strict=False) if data else None
    except (OSError, codec.CodecError):
        return None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
