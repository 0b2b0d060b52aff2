"""From the options of a command to an open fleet, and from a key on the keyboard to a halt."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from llmgw.cli import output
from llmgw.cli.environment import environment
from llmgw.cli.main import INTERRUPTED, Asked
from llmgw.controller.instance import instance_of
from llmgw.controller.opening import Opened, opened
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.settings import Settings, load_settings
from llmgw.model.record import Outcome
from llmgw.model.struct import replace

T = TypeVar("T")
SHOW_CURSOR = "\x1b[?25h"
"""The moving lines hide it, and who leaves at once does not come by where they show it again."""


def settings_of(asked: Asked, flags: Mapping[str, str | None] | None = None) -> Settings:
    """Flags before environment before llmgw.yaml before defaults. ``flags``: those of one command, by the settings' names."""
    return load_settings(
        flags={"repo": asked.repo, "branch": asked.branch, "path": asked.path, **(flags or {})},
        environ=environment(),
        cwd=Path.cwd(),
        config=str(asked.config) if asked.config else None,
    )


@asynccontextmanager
async def fleet_of(
    asked: Asked, *, trigger: str = "manual", flags: Mapping[str, str | None] | None = None
) -> AsyncIterator[tuple[Opened, Links]]:
    """The fleet that a command is about, and the connections it opens; both are closed at the end."""
    settings = settings_of(asked, flags)
    async with opened(
        settings, environment(), redactor=output.redactor(), trigger=trigger, told=output.note
    ) as found:
        fleet = replace(found.fleet, instance=instance_of(settings.state_dir))
        open_fleet = replace(found, fleet=fleet)
        links = Links(open_fleet.fleet.transports)
        try:
            yield open_fleet, links
        finally:
            await links.close()


def run(main: Coroutine[Any, Any, T]) -> T:
    output.tell_logs()
    return asyncio.run(_heard(main))


async def _heard(main: Coroutine[Any, Any, T]) -> T:
    """Ctrl-C ends it, also in the moment in which the loop falls asleep with nothing to wake up for: the handler that
    ``asyncio.run`` sets itself does not wake a sleeping loop."""
    _cancel_at_interrupt()
    try:
        return await main
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _cancel_at_interrupt() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)


@contextmanager
def interruptible(halt: Halt) -> Iterator[None]:
    """The first Ctrl-C (or TERM) ends the work in good order: what is in flight finishes, the outcome is written. The
    second ends the process: the next apply asks the agents what became of it."""
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        if halt.called:
            if output.is_terminal(sys.stderr):
                sys.stderr.write(SHOW_CURSOR)
            output.note("Out. The next apply asks the agents what became of the commands.")
            os._exit(INTERRUPTED)
        output.note("Finishing what is in flight; once more to leave at once.")
        halt.now(Outcome.INTERRUPTED, "it was interrupted: the next apply goes on from there")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        _cancel_at_interrupt()
