"""The worker of one job: the program that installs an engine or fetches weights, run by the agent under a shim in the job's
own folder. Reads its order there, tells how far it is and how it ended; see orders.py.

SIGTERM ends it and what it started. What it leaves half done is gone on with, or begun anew, by the next worker.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.fetch import Fetcher
from llmgw.agent.jobs.install import Installer
from llmgw.agent.jobs.orders import (
    MAX_ORDER,
    ORDER,
    PROGRESS,
    RESULT,
    Result,
    Told,
    WorkOrder,
    result_of,
    write_over,
)
from llmgw.model.problems import LlmgwError, StalledError
from llmgw.wire import codec

TELL_EVERY = 0.5


def main() -> None:
    """In the current directory, which is the job's folder."""
    os.umask(0o022)  # what jobs bring is for other users' engines too
    place = Path.cwd()
    result = asyncio.run(_work(place))
    if result is not None:
        write_over(place / RESULT, result)


async def _work(place: Path) -> Result | None:
    """None: told to end."""
    task = asyncio.ensure_future(_do(place))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return None
    except Exception as wrong:  # noqa: BLE001 - whatever it is, the agent must hear it
        return result_of(wrong)
    return Result(kind="done")


async def _do(place: Path) -> None:
    order = read_order(place / ORDER)
    progress = Progress()
    telling = asyncio.ensure_future(_tell(place / PROGRESS, progress))
    try:
        await carry_out(order, progress)
    finally:
        telling.cancel()
        _write(place / PROGRESS, progress)


async def carry_out(order: WorkOrder, progress: Progress) -> None:
    """Does the job in this process."""
    if order.install is not None:
        installer = Installer(
            engines=Path(order.engines),
            runtime=Path(order.runtime),
            env=order.env,
            python=order.python,
            reserve=order.reserve,
            engine_user=order.engine_user,
        )
        await installer.run(order.install, progress)
    elif order.fetch is not None:
        fetcher = Fetcher(
            weights=Path(order.weights),
            engines=Path(order.engines),
            runtime=Path(order.runtime),
            env=order.env,
            python=order.python,
            reserve=order.reserve,
            engine_user=order.engine_user,
        )
        await fetcher.run(order.fetch, progress, secrets=order.secrets)
    else:
        raise StalledError("this job's order names no work: upgrade the agent")


def read_order(file: Path) -> WorkOrder:
    """Once: it may hold secrets, so it is gone afterwards."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_ORDER)
        file.unlink()
        return codec.loads(WorkOrder, data, strict=True)
    except OSError as wrong:
        raise StalledError(f"reading {file}: {wrong.strerror}: see to the agent's disk") from wrong
    except codec.CodecError:
        # The cause may quote a secret.
        raise LlmgwError(f"reading {file}: it is no job of this agent's version: order it again") from None


async def _tell(file: Path, progress: Progress) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY)
        _write(file, progress)


def _write(file: Path, progress: Progress) -> None:
    with suppress(OSError):
        write_over(file, Told(done=progress.done, total=progress.total, line=progress.line))
