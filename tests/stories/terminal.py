"""A person at a terminal: a command that runs on a pseudo terminal, read and typed at."""

import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.stories.stage import LLMGW, Stage

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(slots=True)
class Terminal:
    process: subprocess.Popen[bytes]
    descriptor: int
    screen: str = ""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def shows(self, text: str, *, within: float = 30) -> None:
        """Wait until it has been on the screen."""
        give_up = time.monotonic() + within
        while text not in self.screen:
            assert time.monotonic() < give_up, f"{text!r} was never shown:\n{self.screen}"
            self._read()

    def ends(self, *, within: float = 60) -> int:
        give_up = time.monotonic() + within
        while self.process.poll() is None:
            assert time.monotonic() < give_up, f"it does not end:\n{self.screen}"
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        os.set_blocking(self.descriptor, False)
        with suppress(BlockingIOError, OSError):
            while data := os.read(self.descriptor, 65536):
                self.screen += _ESCAPES.sub("", data.decode(errors="replace")).replace("\r", "")
        time.sleep(0.02)


@contextmanager
def terminal(stage: Stage, *words: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*LLMGW, *words],
        cwd=stage.fleet,
        env={**stage.environment, "TERM": "xterm", "COLUMNS": "160"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process=process, descriptor=ours)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
