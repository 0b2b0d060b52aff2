"""The agent as a process of this machine: who holds its lock, starting it detached, ending it, and what its log says when
it does not come up. Knows nothing of the protocol."""

import asyncio
import fcntl
import os
import signal
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import llmgw
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct
from llmgw.wire import codec
from llmgw.wire.setup import LOCK, LOG, Holder

POLL: Final = 0.05
STOP_WITHIN: Final = 10.0
"""An agent ends within 2 s when told; more is a fault, and then it is killed. Its engines run on either way."""
LOG_LINES: Final = 15
LOG_TAIL: Final = 16 * 1024
MAX_HOLDER: Final = 64 * 1024
PASSED_ON: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "LLMGW_AGENT_POLICY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    }
)  # fmt: skip - one list
"""Of the controller's environment, what an agent and its jobs may need. Never all of it: the fleet's secret is there."""


class AgentProcess(Struct):
    """The agent of one work directory."""

    work: Path
    python: str
    environ: Mapping[str, str]

    def holder(self) -> Holder | None:
        """The agent that runs there, whether it answers or not; None when none does."""
        try:
            descriptor = os.open(self.work / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as wrong:
            raise StalledError(
                f"looking for the agent of {self.work}: {wrong.strerror}: {self.work / LOCK}: run as the user that the agent"
                " runs as, or use another work directory"
            ) from wrong
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(codec.CodecError):
                return codec.loads(Holder, os.pread(descriptor, MAX_HOLDER, 0), strict=False)
            return Holder(
                pid=0, start=0, version="", settings=""
            )  # it has the lock and has not said who it is yet
        else:
            return None
        finally:
            os.close(descriptor)

    def start(self) -> int:
        """Starts it in a session of its own, all its output into its log. Returns the pid."""
        log = self.work / LOG
        argv = [self.python, "-m", "llmgw.agent", "daemon", "--work", str(self.work)]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # posix_spawn and not subprocess: nobody here waits for this child, it is meant to outlive us.
        try:
            return os.posix_spawn(self.python, argv, self._environment(), file_actions=actions, setsid=True)
        except OSError as wrong:
            raise StalledError(
                f"starting the agent in {self.work}: {wrong.strerror}: {self.python}"
            ) from wrong

    def _environment(self) -> dict[str, str]:
        env = {
            name: value
            for name, value in self.environ.items()
            if name in PASSED_ON or name.startswith(("PIP_", "LC_")) or name.lower().endswith("_proxy")
        }
        package = str(Path(llmgw.__file__).parent.parent)
        if package not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
            env["PYTHONPATH"] = package  # run from a source tree
        return env

    async def stop(self) -> None:
        """Ends the agent, if one runs; its engines go on. Raises StalledError when it can't be ended."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        number = signal.SIGTERM
        last: Holder | None = None
        while (holder := self.holder()) is not None:
            last = holder if holder.pid > 0 else last
            late = loop.time() - begun
            if late > 2 * STOP_WITHIN:
                raise StalledError(
                    f"ending the agent of {self.work}: pid {holder.pid} does not end: end it by hand, then try again"
                )
            if late > STOP_WITHIN:
                number = signal.SIGKILL
            if _is(holder):
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, number)
            await asyncio.sleep(POLL)
        if last is not None:
            await _bury(last, until=begun + 2 * STOP_WITHIN)

    def log_size(self) -> int:
        """Bytes that earlier agents have left in the log."""
        try:
            return (self.work / LOG).stat().st_size
        except OSError:
            return 0

    def log_tail(self, since: int = 0) -> str:
        """The last lines of its log after the first ``since`` bytes, for an error that must explain itself."""
        try:
            with (self.work / LOG).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(since if since <= size else 0, size - LOG_TAIL))
                lines = file.read(LOG_TAIL).decode(errors="replace").splitlines()
        except OSError as wrong:
            return f"(its log can't be read: {wrong.strerror})"
        return "\n".join(lines[-LOG_LINES:]) or "(its log is empty)"


def lives(holder: Holder) -> bool:
    """A child that a killed agent had just forked keeps the lock for a moment longer than the agent lived."""
    return holder.pid == 0 or _is(holder)


def _is(holder: Holder) -> bool:
    """Whether the pid still is the process that wrote itself into the lock file."""
    try:
        data = Path(f"/proc/{holder.pid}/stat").read_bytes()
    except OSError:
        return False
    fields = data[data.rfind(b")") + 2 :].split()
    return len(fields) > 19 and fields[0] != b"Z" and int(fields[19]) == holder.start


def reap(pid: int) -> int | None:
    """Exit code of a child of ours that has ended; None: it runs, or is no child of ours."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done else None


async def _bury(holder: Holder, *, until: float) -> None:
    """The lock goes a moment before the process does; one that we started is also ours to wait for. It looks dead already while
    a thread of it still ends, and can't be waited for until that has."""
    while asyncio.get_running_loop().time() < until:
        if not _is(holder):
            try:
                done, _ = os.waitpid(holder.pid, os.WNOHANG)  # noqa: ASYNC222 - WNOHANG never waits
            except ChildProcessError:
                return
            if done:
                return
        await asyncio.sleep(POLL / 10)
