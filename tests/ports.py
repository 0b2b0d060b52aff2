"""Rows of TCP ports that no other test uses meanwhile, in this run or another on the same machine."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROW = 40
FIRST, LAST = 20000, 31960  # below the kernel's usual range of ephemeral ports


@contextmanager
def row_of_ports() -> Iterator[tuple[int, int]]:
    """First and last of a row, held by a lock until the end; free ports alone would not do, since an agent only
    listens on them much later."""
    locks = Path(tempfile.gettempdir()) / f"llmgw-test-ports-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    for first in range(FIRST, LAST, ROW):
        with (locks / str(first)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if all(_free(port) for port in range(first, first + ROW)):
                yield first, first + ROW - 1
                return
    raise AssertionError(f"no {ROW} free ports in a row between {FIRST} and {LAST}")


def _free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
