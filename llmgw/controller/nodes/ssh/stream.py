"""A channel as an asyncio stream: reader and writer with their usual flow control, over one reading thread.

Standard error is read on the way, so that it never fills the window, and its end is kept for messages.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import paramiko

from llmgw.controller.nodes.ssh.blocking import tell

CHUNK: Final = 64 * 1024
LOOK: Final = 0.5
"""Seconds between looks at standard error while standard output says nothing."""
STATUS_WITHIN: Final = 1.0
"""Seconds from the end of the output to the exit status, which comes right behind it."""
HIGH_WATER: Final = 256 * 1024
MAX_ERR: Final = 4096


class ChannelTransport(asyncio.Transport):
    """What StreamReader and StreamWriter need of a channel. ``lost`` says why the connection is gone, if it is;
    ``ended`` is called once, when the channel is."""

    def __init__(
        self,
        channel: paramiko.Channel,
        protocol: asyncio.StreamReaderProtocol,
        lost: Callable[[], str | None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__()
        self._channel = channel
        self._protocol = protocol
        self._lost = lost
        self._tell_end = ended
        self._loop = asyncio.get_running_loop()
        self._may_read = threading.Event()
        self._may_read.set()
        self._buffer = bytearray()
        self._writing = False
        self._paused = False
        self._closing = False
        self._end = False
        self._over = False
        self._err = bytearray()
        self._code: int | None = None
        channel.settimeout(LOOK)
        protocol.connection_made(self)
        threading.Thread(target=self._read, name="llmgw-ssh-stream", daemon=True).start()

    @property
    def err(self) -> bytes:
        """The end of standard error so far."""
        return bytes(self._err)

    @property
    def code(self) -> int | None:
        """How the command ended, once reading has ended; None: not known, or by a signal."""
        return self._code if self._code != -1 else None

    # ---- reading: its own thread -----------------------------------------------------------------

    def _read(self) -> None:
        while not self._channel.closed or self._channel.recv_ready():
            self._may_read.wait()
            try:
                self._drain_err()
                data = self._channel.recv(CHUNK)
            except TimeoutError:
                continue
            except (paramiko.SSHException, OSError, EOFError):
                break
            if not data:
                break
            tell(self._loop, self._received, data)
        with suppress(paramiko.SSHException, OSError, EOFError):
            self._drain_err()
            # Before our own closing, which would be taken for an end without a status.
            if self._channel.status_event.wait(STATUS_WITHIN):
                self._code = self._channel.recv_exit_status()
        tell(self._loop, self._ended)

    def _drain_err(self) -> None:
        while self._channel.recv_stderr_ready():
            self._err += self._channel.recv_stderr(CHUNK)
            del self._err[:-MAX_ERR]

    def _received(self, data: bytes) -> None:
        if not self._over:
            self._protocol.data_received(data)

    def _ended(self) -> None:
        if self._over:
            return
        self._over = True
        self._closing = True
        self._tell_end()
        why = self._lost()
        if why is None:
            self._protocol.eof_received()
            self._protocol.connection_lost(None)
        else:
            self._protocol.connection_lost(ConnectionResetError(104, why))
        self._close_channel()

    # ---- writing: a short thread for each burst --------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing:
            return
        self._buffer += data
        if len(self._buffer) > HIGH_WATER and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        self._flush()

    def write_eof(self) -> None:
        self._end = True
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def _flush(self) -> None:
        if self._writing or self._over:
            return
        if not self._buffer and not self._end and not self._closing:
            return
        self._writing = True
        data, self._buffer = bytes(self._buffer), bytearray()
        end, close = self._end, self._closing
        work = threading.Thread(
            target=self._send, args=(data, end, close), name="llmgw-ssh-write", daemon=True
        )
        work.start()

    def _send(self, data: bytes, end: bool, close: bool) -> None:  # noqa: FBT001 - what the thread has to do
        left = memoryview(data)
        try:
            while left:
                with suppress(TimeoutError):
                    sent = self._channel.send(bytes(left))
                    if not sent:
                        break
                    left = left[sent:]
            if end:
                self._channel.shutdown_write()
            if close:
                self._channel.close()
        except (paramiko.SSHException, OSError, EOFError):
            with suppress(paramiko.SSHException, OSError, EOFError):
                self._channel.close()  # the reading thread sees it and tells
        tell(self._loop, self._sent, end, close)

    def _sent(self, end: bool, close: bool) -> None:  # noqa: FBT001 - what the thread has done
        self._writing = False
        self._end = self._end and not end
        if self._paused and len(self._buffer) <= HIGH_WATER // 4:
            self._paused = False
            self._protocol.resume_writing()
        if not close or self._buffer:
            self._flush()

    # ---- the rest --------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_reading(self) -> bool:
        return self._may_read.is_set()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What is buffered is still sent."""
        if not self._closing:
            self._closing = True
            self._may_read.set()
            self._flush()

    def abort(self) -> None:
        self._closing = True
        self._buffer.clear()
        self._may_read.set()
        self._close_channel()

    def _close_channel(self) -> None:
        """In a thread: it says goodbye, which may block on a connection that is dead and does not know it yet."""

        def closing() -> None:
            with suppress(paramiko.SSHException, OSError, EOFError):
                self._channel.close()

        threading.Thread(target=closing, name="llmgw-ssh-close", daemon=True).start()


def stream(
    channel: paramiko.Channel, lost: Callable[[], str | None], ended: Callable[[], None]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, ChannelTransport]:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = ChannelTransport(channel, protocol, lost, ended)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    return reader, writer, transport
