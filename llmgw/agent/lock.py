"""One agent a work directory: a kernel lock that ends with the process, and who holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgw.model.problems import HeldError, StalledError
from llmgw.wire import codec
from llmgw.wire.setup import LOCK, Holder

MAX_HOLDER = 64 * 1024


def read_holder(work: Path) -> Holder | None:
    """None when nobody has written there, or not what we can read."""
    try:
        with (work / LOCK).open("rb") as file:
            return codec.loads(Holder, file.read(MAX_HOLDER), strict=False)
    except (OSError, codec.CodecError):
        return None


@contextmanager
def only_agent(work: Path, holder: Holder) -> Iterator[None]:
    """Holds the lock. Raises HeldError naming the agent that has it."""
    file = work / LOCK
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as wrong:
        raise StalledError(f"opening {file}: {wrong.strerror}: see to that directory") from wrong
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = read_holder(work)
            named = f" (pid {other.pid}, version {other.version})" if other else ""
            raise HeldError(
                f"starting an agent in {work}: another one{named} runs there: stop it first"
            ) from None
        _sign(descriptor, file, holder)
        yield
    finally:
        os.close(descriptor)


def _sign(descriptor: int, file: Path, holder: Holder) -> None:
    """Over what stands there: on a full disk that needs no room, and room once given up would be somebody else's."""
    data = codec.dumps(holder)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    except OSError as wrong:
        raise StalledError(f"writing {file}: {wrong.strerror}: see to that disk") from wrong
