"""Asks a program of an engine which flags it knows: bounded in time and size, as the engines' user, and with next to nothing
in its environment, because an engine somebody has put on the node is run by it.

Never raises for the program's sake: what was wrong is told instead of flags.
"""

import asyncio
import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmgw.agent.children import end_session
from llmgw.model.launch import LATE_PATTERN, HelpSpec
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct
from llmgw.wire.flags import flags_of, points_elsewhere

MAX_HELP = 1024 * 1024
"""vLLM's whole help is some 130 kB."""
MAX_FLAGS = 40_000
"""Characters of all flags together: they stand in the engine's marker, in reports and in the record."""
KEPT_VARIABLES = ("LD_LIBRARY_PATH",)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PLAIN = {"COLUMNS": "400", "LANG": "C.UTF-8", "NO_COLOR": "1", "PATH": PATH, "TERM": "dumb"}
"""Wide, so that no entry is broken in two."""
_SAID = 300


class Heard(Struct):
    """What a program said of its flags: them, or what was wrong."""

    flags: tuple[str, ...] | None = None
    problem: str = ""


class _Said(Struct):
    text: str
    code: int | None
    problem: str = ""


class Asker(Struct):
    """``user`` is whom engines run as; None: the agent's own. Of ``env``, the node's, only what finds libraries is kept."""

    user: str | None
    env: Mapping[str, str]

    async def help(self, spec: HelpSpec, argv: Sequence[str]) -> Heard:
        """``argv`` with its late values filled in."""
        said = await self._run(argv, spec)
        if said.problem:
            return Heard(problem=said.problem)
        flags = flags_of(said.text)
        if missing := [flag for flag in spec.sure if flag not in flags]:
            return Heard(problem=_not_whole(said, argv, flags, missing))
        if sum(map(len, flags)) > MAX_FLAGS:
            return Heard(problem=f"its help names {len(flags)} flags, more than any engine has")
        return Heard(flags=flags)

    async def devices(self, spec: HelpSpec, argv: Sequence[str]) -> tuple[str, ...]:
        """The lines in which it lists what it computes on, or why it can't."""
        said = await self._run(argv, spec)
        if said.problem:
            return (said.problem,)
        return tuple(line.strip()[:_SAID] for line in said.text.splitlines() if line.strip())[-20:]

    async def _run(self, argv: Sequence[str], spec: HelpSpec) -> _Said:
        """In an empty home of its own, which goes with it."""
        home = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="llmgw-help-"))
        try:
            return await self._run_in(home, argv, spec)
        except OSError as wrong:
            return _Said(text="", code=None, problem=f"starting {argv[0]}: {wrong.strerror}")
        except KeyError:
            return _Said(text="", code=None, problem=f"there is no user {self.user} to run {argv[0]} as")
        finally:
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)

    async def _run_in(self, home: Path, argv: Sequence[str], spec: HelpSpec) -> _Said:
        kept = {name: self.env[name] for name in KEPT_VARIABLES if name in self.env}
        account = _account(self.user)
        if account is not None:
            os.chown(home, account.pw_uid, account.pw_gid)
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**PLAIN, **kept, **spec.env, "HOME": str(home)},
            cwd=home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=_own_group,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=os.getgrouplist(account.pw_name, account.pw_gid) if account else None,
        )
        try:
            return await asyncio.wait_for(_all_of(process), timeout=spec.timeout)
        except asyncio.TimeoutError:
            return _Said(text="", code=None, problem=f"{argv[0]} did not end within {spec.timeout:.0f} s")
        finally:
            await end_session(process)


def filled_in(words: Sequence[str], engine: str) -> tuple[str, ...]:
    """``${engine}`` is the only value that a question about help may hold. Raises StalledError for any other."""

    def value(name: str | None) -> str:
        if name is None:
            return "$"
        if name != "engine":
            raise StalledError(f"asking for help: ${{{name}}} can't stand in a question about it")
        return engine

    return tuple(LATE_PATTERN.sub(lambda found: value(found[1]), word) for word in words)


async def _all_of(process: asyncio.subprocess.Process) -> _Said:
    assert process.stdout is not None
    data = bytearray()
    while part := await process.stdout.read(65536):
        data += part
        if len(data) > MAX_HELP:
            return _Said(text="", code=None, problem=f"it said more than {MAX_HELP // 1024} KiB")
    return _Said(text=data.decode(errors="replace"), code=await process.wait())


def _not_whole(said: _Said, argv: Sequence[str], flags: tuple[str, ...], missing: Sequence[str]) -> str:
    if said.code:
        lines = said.text.strip().splitlines()
        last = f": {lines[-1].strip()[:_SAID]}" if lines else ""
        return f"{argv[0]} {argv[-1]} ended with {said.code}{last}"
    more = points_elsewhere(said.text, argv[-1])
    hint = f"; it points to {more}" if more else ""
    return f"its help looks truncated: it names {len(flags)} flags, and not {', '.join(missing)}{hint}"


def _own_group() -> None:
    os.setpgid(0, 0)


def _account(user: str | None) -> "pwd.struct_passwd | None":
    """None: it runs as whoever asks. Raises KeyError when there is no such user."""
    return pwd.getpwnam(user) if user is not None and os.geteuid() == 0 else None
