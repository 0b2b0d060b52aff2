"""The one place that runs git: every call hardened the same way, bounded in time and output, redacted.

No shell, no user or system configuration, no hooks of ours, no prompts. A call that was given no remote can talk to nobody; with
one, only by ssh, https and file (:mod:`llmgw.controller.repo.access`).
Callers give constant options first and put what people wrote after ``--`` or ``--end-of-options``; refs, commits
and paths have been checked by :mod:`llmgw.controller.repo.refs`. Why not a library: docs/adr/0001.
"""

import asyncio
import dataclasses
import os
import re
import signal
import subprocess
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from llmgw.controller.repo.access import Access, Way
from llmgw.controller.repo.failures import FailureKind, GitError, kind_of
from llmgw.controller.repo.remote import Remote
from llmgw.model.struct import Struct, field
from llmgw.redaction import Redactor

LOCAL_TIMEOUT = 60.0  # seconds; the slowest local call, reading 10,000 files from a cold disk, takes a few
MAX_OUTPUT = 64 * 1024 * 1024  # bytes; the record of 3,000 replicas and 1,000 nodes is about 15 MB
_MAX_SAID = 8 * 1024  # bytes of stderr that are kept, from its end
_CHUNK = 256 * 1024
TELL_EVERY = 5.0  # seconds between two words about a long call; short ones say nothing
_GRACE = 2.0  # seconds between SIGTERM, on which git removes its lock files, and SIGKILL

# Beyond what the environment settles. gc runs when the mirror says so, never behind our back.
_CONFIG: tuple[tuple[str, str], ...] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.askPass", ""),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("push.recurseSubmodules", "no"),
    ("transfer.bundleURI", "false"),
    ("http.lowSpeedLimit", "1"),
    ("http.lowSpeedTime", "60"),
)
_PASSED_ON = (
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "GIT_SSL_CAINFO",
    "SSL_CERT_FILE",
    "TMPDIR",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GitEnvironment:
    """All that git sees of the environment llmgw was started in."""

    path: str = os.defpath
    home: str | None = None  # ssh finds its keys and known_hosts there by the password file, git nothing
    ssh_auth_sock: str | None = dataclasses.field(default=None, repr=False)
    others: Mapping[str, str] = dataclasses.field(
        default_factory=dict, repr=False
    )  # proxies, certificates, temporary files

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "GitEnvironment":
        return cls(
            path=environ.get("PATH") or os.defpath,
            home=environ.get("HOME"),
            ssh_auth_sock=environ.get("SSH_AUTH_SOCK"),
            others={
                **({"GIT_SSL_CAINFO": environ["SSL_CERT_FILE"]} if "SSL_CERT_FILE" in environ else {}),
                **{name: environ[name] for name in _PASSED_ON if name in environ},
            },
        )


class Said(Struct):
    """What git wrote. ``err`` is the end of its messages, redacted."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "surrogateescape")


class How(Struct):
    """What differs from call to call."""

    remote: Remote | None = None  # the only one that the call may talk to
    config: Sequence[tuple[str, str]] = ()  # settings by environment
    variables: Mapping[str, str] = field(default_factory=dict)
    ok: frozenset[int] = frozenset({0})  # exit codes that are answers, not failures
    timeout: float = LOCAL_TIMEOUT  # seconds
    max_output: int = MAX_OUTPUT  # bytes
    keep_open: tuple[int, ...] = ()  # descriptors that git inherits: a lock lives until git has ended, too
    told: Callable[[str], None] | None = None  # hears how far a long call is
    tell_every: float = TELL_EVERY  # seconds


_PLAINLY = How()


class Git:
    """Runs git. Holds no state but how to run it; calls may overlap."""

    __slots__ = ("_access", "_binary", "_environment", "_redact")

    def __init__(
        self,
        environment: GitEnvironment,
        *,
        redact: Redactor | None = None,
        binary: str = "git",
        access: Access | None = None,
    ) -> None:
        self._environment = environment
        self._access = access or Access()
        self._redact = redact or Redactor()
        self._binary = binary

    async def run(
        self,
        *arguments: str,
        doing: str,
        directory: Path | None = None,
        stdin: bytes | None = None,
        how: How = _PLAINLY,
    ) -> Said:
        """``git <arguments>`` with ``directory`` as its repository.

        ``doing`` opens the error message ("reading main of /srv/fleet.git"). Raises :class:`GitError`."""
        argv = ("--no-pager", "--literal-pathspecs", *_where(directory), *arguments)
        with self._access.toward(how.remote) as way:
            code, out, err = await self._finished(argv, how, way, doing, stdin)
        words = self._redact(_without_progress(err.decode("utf-8", "replace"))).strip()
        if code not in how.ok:
            kind = kind_of(words)
            told = self._access.host_trouble(words) if kind is FailureKind.HOST_KEY else ""
            raise GitError(doing, told or _worth_telling(words), kind=kind, code=code)
        return Said(code=code, out=out, err=words)

    async def _finished(
        self, argv: Sequence[str], how: How, way: Way, doing: str, stdin: bytes | None
    ) -> tuple[int, bytes, bytes]:
        process = await self._start(argv, how, way, doing, piped=stdin is not None)
        try:
            async with asyncio.timeout(how.timeout):
                out, err, _ = await _all(
                    _read_whole(process.stdout, how.max_output),
                    _read_end(process.stderr, _Listening(doing, how)),
                    _feed(process.stdin, stdin),
                )
                return await process.wait(), out, err
        except TimeoutError as late:
            said = f"no end after {how.timeout:g} s"
            raise GitError(doing, said, kind=FailureKind.TIMEOUT) from late
        except _TooLargeError as large:
            said = f"git says more than {how.max_output // 2**20} MiB"
            raise GitError(doing, said, kind=FailureKind.TOO_LARGE) from large
        finally:
            await _end(process)

    def succeeds(self, *arguments: str, directory: Path) -> bool:
        """A question about a local repository that git answers by its exit code: 0 yes, 1 no. Blocks for its few
        milliseconds, for callers outside of the event loop."""
        doing = f"asking git {arguments[0]} in {directory}"
        argv = (self._binary, "--no-pager", "-C", str(directory), *arguments)
        trust = (("safe.directory", "*"),)  # reads an index, runs nothing that the repository says
        try:
            done = subprocess.run(
                argv,
                env=self.environment(trust),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LOCAL_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as wrong:
            raise GitError(doing, str(wrong), kind=FailureKind.OTHER) from wrong
        if done.returncode not in {0, 1}:
            words = self._redact(done.stderr[-_MAX_SAID:].decode("utf-8", "replace")).strip()
            raise GitError(doing, _worth_telling(words), kind=kind_of(words), code=done.returncode)
        return done.returncode == 0

    def environment(
        self, config: Sequence[tuple[str, str]] = (), variables: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Exactly what git gets; nothing of ours is inherited."""
        env = {
            **self._environment.others,
            "PATH": self._environment.path,
            "LC_ALL": "C",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            **(variables or {}),
        }
        if self._environment.home:
            env["HOME"] = self._environment.home
        if self._environment.ssh_auth_sock:
            env["SSH_AUTH_SOCK"] = self._environment.ssh_auth_sock
        settings = (*_CONFIG, *config)
        env["GIT_CONFIG_COUNT"] = str(len(settings))
        for number, (key, value) in enumerate(settings):
            env[f"GIT_CONFIG_KEY_{number}"] = key
            env[f"GIT_CONFIG_VALUE_{number}"] = value
        return env

    async def _start(
        self, argv: Sequence[str], how: How, way: Way, doing: str, *, piped: bool
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._binary,
                *argv,
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment((*way.config, *how.config), {**way.variables, **how.variables}),
                pass_fds=(*how.keep_open, *way.descriptors),
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for us to answer, not for git
                limit=_CHUNK,
            )
        except OSError as wrong:
            missing = isinstance(wrong, FileNotFoundError)
            said = f"{self._binary} is not on PATH" if missing else f"starting git: {wrong.strerror or wrong}"
            raise GitError(doing, said, kind=FailureKind.NO_GIT if missing else FailureKind.OTHER) from wrong


_PROGRESS = re.compile(
    r"(remote: )?(Enumerating|Counting|Compressing|Receiving|Resolving|Unpacking|Updating|Writing|Total) .*(\d|done\.?)\s*$"
)


class _TooLargeError(Exception):
    pass


def _where(directory: Path | None) -> tuple[str, ...]:
    return () if directory is None else ("-C", str(directory))


async def _all(
    out: Coroutine[None, None, bytes], err: Coroutine[None, None, bytes], feed: Coroutine[None, None, None]
) -> tuple[bytes, bytes, None]:
    """Like gather, but none outlives the others' failure."""
    tasks = (asyncio.ensure_future(out), asyncio.ensure_future(err), asyncio.ensure_future(feed))
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_whole(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    assert stream is not None
    chunks: list[bytes] = []
    total = 0
    while chunk := await stream.read(_CHUNK):
        total += len(chunk)
        if total > limit:
            raise _TooLargeError
        chunks.append(chunk)
    return b"".join(chunks)


async def _read_end(stream: asyncio.StreamReader | None, heard: "_Listening") -> bytes:
    assert stream is not None
    kept = b""
    while chunk := await stream.read(_CHUNK):
        kept = (kept + chunk)[-_MAX_SAID:]
        heard(kept)
    return kept


class _Listening:
    """Passes on how far git says it is, now and then."""

    def __init__(self, doing: str, how: How) -> None:
        self._doing = doing
        self._told = how.told
        self._every = how.tell_every
        self._next = asyncio.get_running_loop().time() + self._every

    def __call__(self, said: bytes) -> None:
        if self._told is None or asyncio.get_running_loop().time() < self._next:
            return
        steps = [line for line in re.split(r"[\r\n]", said.decode("utf-8", "replace")) if "%" in line]
        if steps:
            self._next = asyncio.get_running_loop().time() + self._every
            self._told(f"{self._doing}: {steps[-1].strip()}")


def _without_progress(words: str) -> str:
    return "\n".join(line for line in re.split(r"[\r\n]", words) if not _PROGRESS.match(line))


async def _feed(stream: asyncio.StreamWriter | None, data: bytes | None) -> None:
    if stream is None or data is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):  # git's own message says why it stopped reading
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of it is left, nor of what it started (ssh)."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _worth_telling(words: str) -> str:
    """The lines that name the cause: git adds hints and progress around them."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if line.startswith(("fatal:", "error:", "remote:", "ssh:", "! ["))
        or "denied" in line.lower()
        or "bad permissions" in line
    ]
    return " / ".join(dict.fromkeys((telling or lines)[-6:]))
