"""Asks a program with a deadline, because drivers in trouble hang; its answer is bounded."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence

from llmgw.agent.children import end_session
from llmgw.model.struct import Struct

MAX_OUTPUT = 4 * 1024 * 1024
LOOKS_FOR = ("PATH", "LD_LIBRARY_PATH")
"""What a program that only looks needs of an environment: where to find itself and the driver's libraries."""


def looking_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the node's ``env`` but what finds drivers: it may hold secrets, and anybody's program may be the driver's."""
    return {"LC_ALL": "C.UTF-8", **{name: env[name] for name in LOOKS_FOR if name in env}}


class AskError(Exception):
    """The program gave no usable answer; says why."""


class NoAnswerError(AskError):
    """The time is over. ``process`` was killed, and may not have ended for all that."""

    def __init__(self, message: str, process: asyncio.subprocess.Process) -> None:
        super().__init__(message)
        self.process = process


class Said(Struct):
    """How a program ended, and all that it wrote."""

    program: str
    code: int | None
    out: str
    err: str

    @property
    def failure(self) -> str:
        """Empty when it succeeded."""
        if self.code == 0:
            return ""
        return f"{self.program} ended with {self.code}: {(self.err or self.out).strip()[-300:]}"


async def ask_program(argv: Sequence[str], *, env: Mapping[str, str], deadline: float) -> str:
    """Its standard output. Raises :class:`AskError` when it fails or takes too long; FileNotFoundError when there is
    no such program."""
    said = await run_program(argv, env=env, deadline=deadline)
    if said.failure:
        raise AskError(said.failure)
    return said.out


async def run_program(argv: Sequence[str], *, env: Mapping[str, str], deadline: float) -> Said:
    """For programs whose answer may be of use although they fail. Raises as :func:`ask_program` does otherwise."""
    # exec itself says "permission denied" of a program that is nowhere, when a folder on PATH can't be searched.
    if shutil.which(argv[0], path=env.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(argv[0])
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(_read(process), timeout=deadline)
    except asyncio.TimeoutError:
        raise NoAnswerError(f"{argv[0]} gave no answer within {deadline:.0f} s", process) from None
    finally:
        await end_session(process)
    return Said(
        program=argv[0],
        code=process.returncode,
        out=out.decode(errors="replace"),
        err=err.decode(errors="replace"),
    )


async def _read(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    reading = [asyncio.ensure_future(_bounded(stream)) for stream in (process.stdout, process.stderr)]
    try:
        out, err = await asyncio.gather(*reading)
    finally:
        for task in reading:  # one that babbles must not leave the other reading
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    await process.wait()
    return out, err


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    data = bytearray()
    while part := await stream.read(65536):
        data += part
        if len(data) > MAX_OUTPUT:
            raise AskError(f"more than {MAX_OUTPUT} bytes of output")
    return bytes(data)
