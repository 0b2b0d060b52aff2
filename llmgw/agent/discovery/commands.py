"""Asks a program with a deadline, because drivers in trouble hang; its answer is bounded."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

MAX_OUTPUT = 4 * 1024 * 1024


class AskError(Exception):
    """The program gave no usable answer; says why."""


async def ask_program(argv: Sequence[str], *, env: Mapping[str, str], deadline: float) -> str:
    """Its standard output. Raises :class:`AskError` when it fails or takes too long; FileNotFoundError when there is
    no such program."""
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
        raise AskError(f"{argv[0]} gave no answer within {deadline:.0f} s") from None
    finally:
        await _end(process)
    if process.returncode != 0:
        why = (err or out).decode(errors="replace").strip()[-300:]
        raise AskError(f"{argv[0]} ended with {process.returncode}: {why}")
    return out.decode(errors="replace")


async def _read(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = await asyncio.gather(_bounded(process.stdout), _bounded(process.stderr))
    await process.wait()
    return out, err


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    data = bytearray()
    while part := await stream.read(65536):
        data += part
        if len(data) > MAX_OUTPUT:
            raise AskError(f"more than {MAX_OUTPUT} bytes of output")
    return bytes(data)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills what still runs. A process that hangs in the kernel can't be killed: it is not waited for."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), timeout=1.0)
