"""An open SSH connection to one machine: run commands, put files, open channels. What bootstrap and the transport are
built on.

asyncio outside, threads inside. A connection that dies is noticed within 10 s; whatever was under way then ends with an outcome
that is not known, never with one that is made up.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import paramiko

from llmgw.controller.nodes.ssh import dialing, uploading, wrapping
from llmgw.controller.nodes.ssh.blocking import in_thread
from llmgw.controller.nodes.ssh.channels import LostError, SessionsError, open_session
from llmgw.controller.nodes.ssh.command import Command, Ended
from llmgw.controller.nodes.ssh.heartbeat import Heartbeat
from llmgw.controller.nodes.ssh.login import Login
from llmgw.controller.nodes.ssh.stream import stream
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.struct import replace

__all__ = ["Ended", "NotBegunError", "SessionsError", "SshConnection"]

T = TypeVar("T")

AT_ONCE: Final = 6
"""Commands of this connection at a time. Servers allow 10 sessions (MaxSessions), and the agent's channels are among them."""
MAX_NOISE: Final = 64 * 1024
OPEN_WITHIN: Final = 20.0
MAX_UNENDED: Final = 2
AGAIN: Final = timedelta(seconds=1)


class NotBegunError(StalledError):
    """A channel's command ended before its first line; ``ended`` says how."""

    def __init__(self, message: str, ended: Ended) -> None:
        super().__init__(message)
        self.ended = ended


class SshConnection:
    """Make one with :meth:`open`, and close it. Commands are word lists; nothing of them is ever a secret, because every
    user of the other machine can read command lines: secrets go through ``stdin`` or :meth:`put`."""

    def __init__(self, login: Login, transports: tuple[paramiko.Transport, ...]) -> None:
        self._login = login
        self._transports = transports
        self._lost: str | None = None
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._unended = 0
        self._sessions = 0
        self._limit: int | None = None
        self._heart = Heartbeat(transports[-1], self._die)
        self._heart.start()

    @classmethod
    async def open(cls, login: Login) -> "SshConnection":
        """Connects, compares the host key and logs in.

        Raises RetryError when the machine does not answer; StalledError when its host key is not the pinned one or none is
        pinned, when our key is refused, or when there is none to show."""
        made: list[tuple[paramiko.Transport, ...]] = []
        wanted = True

        def dial() -> None:
            made.append(dialing.dial(login))
            if not wanted:
                dialing.hang_up(made[0])

        try:
            await in_thread(dial, name="dial")
        except asyncio.CancelledError:
            wanted = False  # whichever comes later, this or the end of dialling, hangs up
            for transports in made:
                dialing.hang_up(transports)
            raise
        return cls(login, made[0])

    @property
    def login(self) -> Login:
        return self._login

    @property
    def lost(self) -> str | None:
        """Why the connection is gone; None while it lives."""
        if self._lost is None and not self._transports[-1].is_active():
            self._lost = "the other side closed the connection"
        return self._lost

    @property
    def has_room(self) -> bool:
        """Whether another session is worth trying. The server's limit is not known until it has refused one; commands that
        were given up hold theirs for as long as they run."""
        if self._limit is not None:
            return self._sessions < self._limit
        return self._unended < MAX_UNENDED

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout: float, sudo: bool = False
    ) -> Ended:
        """One command to its end. ``stdin`` is sent whole and closed; output is bounded, standard error keeps its end.

        ``Ended.code`` is None when the connection died, or the time ran out, after the command was sent: it may have been
        done. Raises RetryError when it was never sent, StalledError when sudo or the login fails before the command (no
        sudo, a password wanted), SessionsError when the server opens no more sessions."""
        doing = f"{self}: running {wrapping.shown(command)}"
        work = Command(wrapping.wrapped(command, sudo=sudo), stdin, timeout=timeout, doing=doing)
        async with self._gate:
            self._must_live(doing)
            try:
                ended = await in_thread(partial(self._run, work, doing), name="run")
            except LostError as lost:
                raise RetryError(
                    f"{doing}: the connection was lost before it was sent", after=AGAIN
                ) from lost
            except asyncio.CancelledError:
                work.abandon()
                self._unended += 1
                raise
        if not ended.begun and ended.code is not None:
            raise self._not_begun(doing, ended, sudo=sudo)
        if ended.code is not None:
            return ended
        self._unended += 1
        return replace(ended, why=f"{self.lost}: it may have been done") if self.lost else ended

    async def put(
        self, data: bytes, path: str, *, mode: int = 0o644, sudo: bool = False, timeout: float | None = None
    ) -> None:
        """A file on the other machine, whole or not at all: an upload that is cut leaves nothing at ``path``, and what stood
        there stays. Its folder must be there. Safe to repeat. Raises what :meth:`run` raises, and UnknownOutcomeError."""
        command = uploading.upload(path, mode, len(data), secrets.token_hex(6))
        limit = timeout if timeout is not None else uploading.within(len(data))
        ended = await self.run(command, stdin=data, timeout=limit, sudo=sudo)
        ended.must(f"{self}: uploading {path} ({len(data)} bytes)")

    async def open_channel(
        self,
        command: Sequence[str],
        *,
        sudo: bool = False,
        magic: bytes | None = None,
        timeout: float = OPEN_WITHIN,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A command's standard input and output as a byte stream, from behind its first line on.

        ``magic`` is that line, with its end, for a command that prints one itself; else one is printed for it. What a login
        prints before is skipped. Closing the writer closes the channel. When the connection is lost, reading raises
        ConnectionResetError saying why. Raises NotBegunError when the command ends before that line, and what :meth:`run` raises."""
        doing = f"{self}: running {wrapping.shown(command)}"
        text = wrapping.wrapped(command, sudo=sudo) if magic is None else wrapping.plain(command, sudo=sudo)
        self._must_live(doing)
        self._sessions += 1
        try:
            channel = await self._in_session(partial(self._start, text, doing), doing)
        except BaseException:
            self._sessions -= 1
            raise
        reader, writer, under = stream(channel, lambda: self.lost, self._session_ended)
        try:
            async with asyncio.timeout(timeout):
                if await _skip_noise(reader, magic or wrapping.MAGIC_LINE, doing):
                    return reader, writer
        except BaseException as wrong:
            under.abort()
            if isinstance(wrong, TimeoutError):
                raise RetryError(f"{doing}: it does not begin within {timeout:g} s", after=AGAIN) from wrong
            if isinstance(wrong, OSError):
                raise RetryError(f"{doing}: {wrong.strerror or wrong}", after=AGAIN) from wrong
            raise
        under.abort()
        ended = Ended(code=under.code, out=b"", err=under.err, begun=False)
        if ended.code is None:
            raise RetryError(
                f"{doing}: {self.lost or 'it was ended by a signal, or nobody knows how'}", after=AGAIN
            )
        raise self._not_begun(doing, ended, sudo=sudo)

    async def close(self) -> None:
        """Ends everything on this connection. Idempotent."""
        self._heart.stop()
        self._lost = self._lost or "this side closed the connection"
        await in_thread(partial(dialing.hang_up, self._transports), name="close")

    def __str__(self) -> str:
        return f"node {self._login.node} ({self._login.target})"

    # ---- inside ----------------------------------------------------------------------------------

    async def _in_session(self, work: Callable[[], T], doing: str) -> T:
        """Work that opens a session; our own is counted already."""
        try:
            return await in_thread(work, name="session")
        except LostError as lost:
            raise RetryError(f"{doing}: the connection was lost before it was sent", after=AGAIN) from lost
        except SessionsError:
            self._limit = max(1, self._sessions - 1)
            raise

    def _session_ended(self) -> None:
        self._sessions -= 1

    def _run(self, work: Command, doing: str) -> Ended:
        return work.run(open_session(self._transports[-1], doing=doing))

    def _start(self, text: str, doing: str) -> paramiko.Channel:
        channel = open_session(self._transports[-1], doing=doing)
        try:
            channel.exec_command(text)
        except (paramiko.SSHException, OSError, EOFError) as wrong:
            channel.close()
            raise LostError(str(wrong)) from wrong
        return channel

    def _must_live(self, doing: str) -> None:
        if self.lost is not None:
            raise RetryError(f"{doing}: the connection was lost before it was sent: {self.lost}", after=AGAIN)

    def _die(self, why: str) -> None:
        """The heartbeat has stopped: whoever reads or waits on this connection is told by its end."""
        self._lost = self._lost or why
        closing = asyncio.ensure_future(in_thread(partial(dialing.hang_up, self._transports), name="close"))
        closing.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _not_begun(self, doing: str, ended: Ended, *, sudo: bool) -> NotBegunError:
        """In words, what keeps a login from running anything."""
        said = ended.said
        user = self._login.target.user
        if sudo and "password is required" in said:
            what = f"sudo wants a password of {user}: give that user NOPASSWD in /etc/sudoers.d"
        elif sudo and ("not in the sudoers" in said or "not allowed to execute" in said):
            what = f"sudo refuses {user}: {said}: allow it in /etc/sudoers.d, with NOPASSWD"
        elif sudo and ended.code == 127 and "sudo" in said:
            what = "there is no sudo: install it, or write ssh.user: root and leave ssh.become out"
        elif sudo and "tty" in said:
            what = f"sudo wants a terminal: remove `requiretty` for {user} from the sudoers"
        else:
            what = f"ended with {ended.code} before it began: {said}"
        return NotBegunError(f"{doing}: {what}", ended)


async def _skip_noise(reader: asyncio.StreamReader, magic: bytes, doing: str) -> bool:
    """Reads to the end of the magic line; False when the stream ends before it."""
    noise = 0
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return False
        except asyncio.LimitOverrunError as wrong:
            line = await reader.read(wrong.consumed)
        if line.endswith(magic):
            return True
        noise += len(line)
        if noise > MAX_NOISE:
            raise StalledError(
                f"{doing}: the login prints more than {MAX_NOISE} bytes before it: silence its start files for shells without a"
                " terminal"
            )
