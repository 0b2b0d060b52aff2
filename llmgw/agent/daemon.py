"""Runs the real agent: one process a work directory, until it is told to end. Engines run on."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from llmgw import __version__
from llmgw.agent.assembly import Agent, assemble, this_agent, this_holder
from llmgw.agent.cancelling import cancelled
from llmgw.agent.lock import only_agent
from llmgw.agent.logsink import log_to, secret_values
from llmgw.agent.settings import Layout, layout, make_folders, read_settings
from llmgw.clock import Clock, SystemClock
from llmgw.model.problems import LlmgwError
from llmgw.model.report import AgentInfo
from llmgw.notify import ServiceManager
from llmgw.redaction import Redactor
from llmgw.wire.setup import AgentSettings

LEAVE = 1.2
"""Seconds for a clean end: whoever asked (a service manager, an upgrade) waits for 2."""
LEAVE_AT_LAST = 1.7
"""Seconds until an end that is not clean. A thread that reads a dead disk can't be ended, and Python would wait for it."""
LOG = logging.getLogger("llmgw.agent")


async def run(agent: Agent, work: Path, *, manager: ServiceManager) -> None:
    """Listens, and adopts beside it, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    await agent.service.own()
    await agent.server.start(work)
    LOG.info("listening")
    manager.ready()
    adopting = asyncio.ensure_future(_adopt(agent))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({adopting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    broken = adopting.exception() if adopting.done() else None
    if broken is None:
        await stopped
    LOG.info("ending; engines run on")
    manager.stopping()
    leave_at_last()
    closing = asyncio.ensure_future(_close(agent, adopting))
    if not (await asyncio.wait({closing}, timeout=LEAVE))[0]:
        LOG.warning("not everything ended within %s s", LEAVE)
    await cancelled(stopped)
    if broken is not None:
        raise broken  # a service manager starts the next agent


async def _adopt(agent: Agent) -> None:
    await agent.service.adopt()
    LOG.info("what an earlier agent left is adopted")
    agent.sampler.start()


def leave_at_last() -> None:
    """Whatever still hangs then, in a thread or in the kernel: nothing of the agent needs a better end."""
    last = threading.Timer(LEAVE_AT_LAST, os._exit, args=(0,))
    last.daemon = True
    last.start()


async def _close(agent: Agent, adopting: "asyncio.Task[None]") -> None:
    await cancelled(adopting)
    await agent.server.close()
    await agent.sampler.close()
    await agent.service.close()


def daemon(work: Path, own_env: Mapping[str, str]) -> int:
    """``llmgw-agent daemon``. Exit code 1 with the reason on standard error when it can't run."""
    os.umask(0o022)  # what jobs bring is for other users' engines too; what is secret gets its own mode
    settings = read_settings(work)
    places = layout(work, settings)
    make_folders(places)
    clock = SystemClock()
    with only_agent(work, this_holder(places, settings)):
        redactor = Redactor(secret_values((*own_env.items(), *settings.env.items())))
        log_to(places.log, redactor)
        LOG.info("agent %s of node %s started, pid %s", __version__, settings.node, os.getpid())
        info = this_agent(settings, clock)
        try:
            asyncio.run(
                _main(places, settings, own_env=own_env, clock=clock, info=info, learn=redactor.learn)
            )
        except LlmgwError as wrong:
            LOG.error("can't run: %s", wrong)  # noqa: TRY400 - the reason is told, a traceback would hide it
            raise
    return 0


async def _main(
    places: Layout,
    settings: AgentSettings,
    *,
    own_env: Mapping[str, str],
    clock: Clock,
    info: AgentInfo,
    learn: Callable[[str], None],
) -> None:
    agent = assemble(places, settings, own_env=own_env, clock=clock, info=info, learn=learn)
    await run(agent, places.work, manager=ServiceManager(own_env))
    leave()


def leave() -> NoReturn:
    """Ends the process from within its loop. A loop that is closed while a shim is still being started, or a child still
    hangs in a driver, has Python complain of each of them; nothing of the agent is left to be ended."""
    logging.shutdown()
    os._exit(0)
