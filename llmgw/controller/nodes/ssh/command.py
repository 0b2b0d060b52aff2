"""One command on the other side, from its first word to how it ended. Blocking; runs in a thread."""

import select
import threading
import time
from contextlib import suppress
from typing import Final

import paramiko

from llmgw.controller.nodes.ssh import wrapping
from llmgw.model.problems import StalledError, UnknownOutcomeError
from llmgw.model.struct import Struct

CHUNK: Final = 64 * 1024
MAX_OUT: Final = 8 * 1024 * 1024
"""Bytes of standard output kept; a command that says more is not one of ours."""
MAX_ERR: Final = 64 * 1024
"""The end of standard error that is kept; all of it is read."""
MAX_NOISE: Final = 1024 * 1024
WAIT: Final = 100
"""Milliseconds between looks at what makes no descriptor readable: a deadline, an exit status."""
WINDOW_WAIT: Final = 10
"""The same while there is something to send and the other side takes nothing."""
QUIET: Final = 1.0
"""Seconds without a byte after the command has ended: what keeps its output open is a child it left behind."""


class Ended(Struct):
    """How a command ended. ``code`` None: not known, it may still run; ``why`` says what happened. -1: by a signal.
    ``begun`` is False when the login, sudo or the shell failed before the command itself."""

    code: int | None
    out: bytes
    err: bytes
    why: str = ""
    begun: bool = True

    @property
    def said(self) -> str:
        """The end of what it said about itself, for messages."""
        text = (self.err.strip() or self.out.strip()).decode(errors="replace")
        return text[-500:] or "(it said nothing)"

    def must(self, doing: str) -> bytes:
        """Its output. Raises UnknownOutcomeError, or StalledError with what it said when it ended otherwise than with 0."""
        if self.code is None:
            raise UnknownOutcomeError(f"{doing}: {self.why}")
        if self.code != 0:
            raise StalledError(f"{doing}: it ended with {self.code}: {self.said}")
        return self.out


class Command:
    """``text`` as wrapped by wrapping.py. ``stdin`` is sent once the command has begun, so that no login script eats it."""

    def __init__(self, text: str, stdin: bytes, *, timeout: float, doing: str) -> None:
        self._text = text
        self._left = memoryview(stdin)
        self._timeout = timeout
        self._doing = doing
        self._out = bytearray()
        self._err = bytearray()
        self._begun = False
        self._sending = True
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """From any thread: nobody waits any more. The command runs on, and its server keeps the session until it ends."""
        self._abandoned.set()

    def run(self, channel: paramiko.Channel) -> Ended:
        """Closes the channel in the end: an open one would hold one of the connection's few sessions."""
        try:
            return self._run(channel)
        finally:
            with suppress(paramiko.SSHException, OSError, EOFError):
                channel.close()

    def _run(self, channel: paramiko.Channel) -> Ended:
        deadline = time.monotonic() + self._timeout
        try:
            channel.exec_command(self._text)
        except (paramiko.SSHException, OSError, EOFError) as wrong:
            return self._ended(None, f"the connection was lost: {wrong}")
        channel.settimeout(0.0)
        poller = select.poll()
        poller.register(channel.fileno(), select.POLLIN)
        heard = time.monotonic()
        while True:
            try:
                moved = self._read(channel) + self._write(channel)
            except (paramiko.SSHException, OSError, EOFError):
                moved = 0  # closed meanwhile; below it is told apart
            if moved:
                heard = time.monotonic()
                continue
            if channel.closed or channel.eof_received or self._over(channel, heard):
                return self._finish(channel, deadline)
            if self._abandoned.is_set() or time.monotonic() > deadline:
                return self._ended(None, f"no end within {self._timeout:g} s: it may still run")
            poller.poll(WINDOW_WAIT if self._begun and self._left else WAIT)

    def _read(self, channel: paramiko.Channel) -> int:
        """Both streams, whichever has something: a full one would hold up the other."""
        moved = 0
        if channel.recv_stderr_ready():
            data = channel.recv_stderr(CHUNK)
            moved += len(data)
            self._err += data
            del self._err[:-MAX_ERR]
        if channel.recv_ready():
            data = channel.recv(CHUNK)
            moved += len(data)
            self._out += data
            self._look_for_magic()
            if len(self._out) > MAX_OUT:
                raise StalledError(f"{self._doing}: it printed more than {MAX_OUT} bytes")
        return moved

    def _look_for_magic(self) -> None:
        if self._begun:
            return
        rest = wrapping.after_magic(bytes(self._out))
        if rest is not None:
            self._begun = True
            self._out = bytearray(rest)
        elif len(self._out) > MAX_NOISE:
            raise StalledError(
                f"{self._doing}: the login prints more than {MAX_NOISE} bytes before any command: silence its start files for"
                " shells without a terminal"
            )

    def _write(self, channel: paramiko.Channel) -> int:
        if not self._begun or not self._sending:
            return 0
        sent = 0
        if self._left:
            with suppress(TimeoutError):  # its window is full
                sent = channel.send(bytes(self._left[:CHUNK]))
                self._left = self._left[sent:]
        if not self._left:
            self._sending = False
            channel.shutdown_write()
        return sent

    def _over(self, channel: paramiko.Channel, heard: float) -> bool:
        return channel.exit_status_ready() and time.monotonic() - heard > QUIET

    def _finish(self, channel: paramiko.Channel, deadline: float) -> Ended:
        """Its output has ended. A lost connection looks the same as an end but for the missing exit status; the transport
        tells that it is lost a moment later than the channel does."""
        wait = max(0.0, deadline - time.monotonic())
        if not channel.status_event.wait(min(wait, 5.0)):
            return self._ended(None, "its output ended and it did not: it may still run")
        code = channel.recv_exit_status()
        if code != -1:
            return self._ended(code, "")
        transport = channel.get_transport()
        until = time.monotonic() + 0.5
        while transport.is_active() and time.monotonic() < until:
            time.sleep(0.01)
        if transport.is_active():
            return self._ended(-1, "ended by a signal")
        return self._ended(None, "the connection was lost: it may still run")

    def _ended(self, code: int | None, why: str) -> Ended:
        err = wrapping.after_magic(bytes(self._err))
        return Ended(
            code=code,
            out=bytes(self._out),
            err=bytes(self._err) if err is None else err,
            why=why,
            begun=self._begun,
        )
