"""What end-to-end tests share: a range of ports that no other test, in this run or another, uses meanwhile."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK = 40
FIRST, LAST = 20000, 31960  # below the kernel's usual range of ephemeral ports


@pytest.fixture
def free_ports() -> Iterator[tuple[int, int]]:
    """First and last of a block of ports, held by a lock until the test ends."""
    locks = Path(tempfile.gettempdir()) / f"llmgw-test-ports-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    for first in range(FIRST, LAST, BLOCK):
        with (locks / str(first)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if all(_free(port) for port in range(first, first + BLOCK)):
                yield first, first + BLOCK - 1
                return
    raise RuntimeError(f"no {BLOCK} free ports in a row between {FIRST} and {LAST}")


def _free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
