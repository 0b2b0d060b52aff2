"""Ending a program that the agent itself started in a session of its own, with everything that it started."""

import asyncio
import os
import signal
from contextlib import suppress

WITHIN = 1.0
"""Seconds for the kernel to end it. One that hangs in a driver can't be killed: it is not waited for any longer."""


def kill_session(leader: int) -> None:
    """SIGKILL to a process group that we started; nobody left is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


async def end_session(process: asyncio.subprocess.Process) -> None:
    """Kills what still runs and reads what still lies in its pipes: a full pipe would keep its transport open for ever."""
    kill_session(process.pid)
    readers = [_drain(stream) for stream in (process.stdout, process.stderr) if stream is not None]
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.gather(*readers, process.wait()), timeout=WITHIN)


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass
