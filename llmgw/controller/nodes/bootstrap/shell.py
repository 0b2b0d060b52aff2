"""The seam to a machine: running commands there. The SSH connection is one; :class:`LocalShell` is this machine."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from llmgw.model.struct import Struct

MAX_OUTPUT: Final = 16 * 1024 * 1024


class Ended(Protocol):
    """How a command ended. ``code`` None: nobody knows, the line was lost."""

    @property
    def code(self) -> int | None: ...

    @property
    def out(self) -> bytes: ...

    @property
    def err(self) -> bytes: ...


class Shell(Protocol):
    """Runs commands on one machine. What a login shell prints before a command's own output may be in ``out``."""

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout: float, sudo: bool = False
    ) -> Ended:
        """The command is a list of words; whoever implements this quotes them. ``sudo``: as root. Raises RetryError when the
        machine can't be reached or does not end the command in time."""
        ...


class LocalEnded(Struct):
    """How a command of this machine ended."""

    code: int | None
    out: bytes
    err: bytes


class LocalShell(Struct):
    """Commands of this machine, each after ``prefix``, such as one that enters a namespace."""

    prefix: tuple[str, ...] = ()

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout: float, sudo: bool = False
    ) -> LocalEnded:
        words = (*self.prefix, *(("sudo", "-n") if sudo else ()), *command)
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            return LocalEnded(code=127, out=b"", err=f"{words[0]}: command not found".encode())
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate(stdin)
        except TimeoutError:
            return LocalEnded(code=None, out=b"", err=b"")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return LocalEnded(code=process.returncode, out=out[:MAX_OUTPUT], err=err[:MAX_OUTPUT])
