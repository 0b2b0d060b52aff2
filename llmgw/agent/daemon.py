"""Puts the real agent together and runs it: one process a work directory, until it is told to end. Engines run on."""

import asyncio
import getpass
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import llmgw
from llmgw import __version__
from llmgw.agent.cancelling import cancelled
from llmgw.agent.discovery.classes import Classes
from llmgw.agent.discovery.commands import looking_environment
from llmgw.agent.discovery.gpus import GpuDiscovery
from llmgw.agent.discovery.pretended import PretendedChecks
from llmgw.agent.discovery.survey import Survey
from llmgw.agent.discovery.xids import DriverErrors
from llmgw.agent.disk import FileDisk
from llmgw.agent.doctor.examiner import NodeExaminer
from llmgw.agent.events import Events
from llmgw.agent.helps import Helps
from llmgw.agent.jobs.helptext import Asker
from llmgw.agent.jobs.runner import Jobs
from llmgw.agent.jobs.setup import WorkPlace, workers
from llmgw.agent.jobs.targets import DiskTargets
from llmgw.agent.journal import FileJournalStore, Journal
from llmgw.agent.lock import only_agent
from llmgw.agent.logsink import log_to, secret_values
from llmgw.agent.ownership import Ownership
from llmgw.agent.policy import PolicyFile, policy_path
from llmgw.agent.sampling import Sampler
from llmgw.agent.server import Server
from llmgw.agent.service import AgentService
from llmgw.agent.settings import Layout, layout, make_folders, pretended_bytes, read_settings
from llmgw.agent.shards import proc
from llmgw.agent.shards.checks import SystemChecks
from llmgw.agent.shards.keeper import Shards
from llmgw.agent.shards.kernellog import KernelLog
from llmgw.agent.shards.orders import nobody_told
from llmgw.agent.shards.probes import HttpProber
from llmgw.agent.shards.processes import ShimSpawner
from llmgw.agent.shards.surroundings import ShardSettings
from llmgw.agent.shards.witness import Witness
from llmgw.clock import Clock, SystemClock
from llmgw.model.problems import LlmgwError
from llmgw.model.report import AgentInfo
from llmgw.notify import ServiceManager
from llmgw.redaction import Redactor
from llmgw.wire.messages import PROTOCOL
from llmgw.wire.setup import AgentSettings, Holder

RUNTIME = Path(llmgw.__file__).parent / "runtime"
LEAVE = 1.2
"""Seconds for a clean end: whoever asked (a service manager, an upgrade) waits for 2."""
LEAVE_AT_LAST = 1.7
"""Seconds until an end that is not clean. A thread that reads a dead disk can't be ended, and Python would wait for it."""
PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HF_ENDPOINT",
)
"""Of the agent's own environment, what its jobs may need; with PIP_* and *_PROXY. Engines get none of it."""
AS_ROOT = (
    "engines run as root, as the agent does, because no user is set for them: bootstrap the node, or name one in"
    " spec.engineUser"
)
LOG = logging.getLogger("llmgw.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The parts that have a life of their own."""

    service: AgentService
    server: Server
    sampler: Sampler
    shards: Shards
    jobs: Jobs


def job_environment(own: Mapping[str, str], settings: AgentSettings) -> dict[str, str]:
    """The node's settings win over what the agent was started with."""
    kept = {
        name: value
        for name, value in own.items()
        if name in PASSED_ON or name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    return {**kept, **settings.env}


def assemble(
    places: Layout,
    settings: AgentSettings,
    *,
    own_env: Mapping[str, str],
    clock: Clock,
    info: AgentInfo,
    learn: Callable[[str], None] = nobody_told,
) -> Agent:
    """Everything real; nothing is started yet. ``learn`` is told every secret that the agent is sent."""
    env = job_environment(own_env, settings)
    journal = Journal(store=FileJournalStore(places.journal), clock=clock)
    events = Events(journal)
    disk = FileDisk(places.work)
    targets = DiskTargets(engines_folder=places.engines, weights_folder=places.weights)
    install, fetch = workers(
        WorkPlace(places=places, runtime=RUNTIME, settings=settings, env=env, targets=targets), clock=clock
    )
    jobs = Jobs(
        clock=clock,
        disk=disk,
        journal=journal,
        install=install,
        fetch=fetch,
        targets=targets,
        changed=events.from_jobs,
        learn=learn,
        boot_id=info.boot_id,
    )
    spawner = ShimSpawner(places.work, clock=clock)
    survey = Survey(
        places=places,
        ports=settings.ports,
        gpus=GpuDiscovery(env=looking_environment(env), classes=Classes(disk)),
        owner=spawner.owner,
        pretends=settings.pretends,
        xids=DriverErrors(KernelLog(), clock).on,
    )
    real = SystemChecks(engine_user=settings.engine_user)
    rules = PolicyFile(
        policy_path(own_env),
        user=settings.engine_user or info.user or getpass.getuser(),
        engines=targets.engines,
        told=lambda text: events.told("policy", settings.node, text),
    )
    shards = Shards(
        ShardSettings(work=places.work, boot_id=info.boot_id, engine_user=settings.engine_user),
        clock=clock,
        spawner=spawner,
        probe=HttpProber(),
        disk=disk,
        gpus=survey,
        jobs=jobs,
        node=PretendedChecks(places=places, real=real) if settings.pretends else real,
        events=events.from_shards,
        learn=learn,
        witness=Witness(KernelLog(), bus=survey.gpus.bus),
        rules=rules,
    )
    sampler = Sampler(survey.look, told=lambda facts: shards.sampled(facts.gpus))
    helps = Helps(
        disk=disk,
        asker=Asker(user=settings.engine_user, env=env),
        installed=targets.engines,
        facts=sampler,
        rules=rules,
    )
    service = AgentService(
        info=info,
        clock=clock,
        shards=shards,
        jobs=jobs,
        events=events,
        ownership=Ownership(disk=disk, journal=journal, fleet=settings.fleet),
        facts=sampler,
        waits=True,
        rules=rules,
        helps=helps,
        examiner=NodeExaminer(
            places=places, settings=settings, rules=rules, policy=rules.path, strays=spawner.strays
        ),
    )
    if settings.engine_user is None and os.geteuid() == 0:
        events.told("engine-user", settings.node, AS_ROOT)
    return Agent(service=service, server=Server(service), sampler=sampler, shards=shards, jobs=jobs)


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


def this_holder(places: Layout, settings: AgentSettings) -> Holder:
    """As the lock of the work directory names who has it: this process."""
    start = proc.stat(os.getpid())
    return Holder(
        pid=os.getpid(),
        start=start.start if start else 0,
        version=__version__,
        settings=settings.digest(pretended_bytes(places) if settings.pretends else b""),
    )


def this_agent(settings: AgentSettings, clock: Clock) -> AgentInfo:
    """As this process names itself in reports."""
    return AgentInfo(
        version=__version__,
        protocol=PROTOCOL,
        fleet=settings.fleet,
        node=settings.node,
        boot_id=proc.boot_id(),
        pid=os.getpid(),
        started=clock.now(),
        user=getpass.getuser(),
        build=settings.build,
    )


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
