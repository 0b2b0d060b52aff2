"""Puts the real agent together, part by part, from the bottom up. Nothing of it is begun here."""

import getpass
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import llmgw
from llmgw import __version__
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
from llmgw.agent.ownership import Ownership
from llmgw.agent.policy import PolicyFile, policy_path
from llmgw.agent.sampling import Sampler
from llmgw.agent.server import Server
from llmgw.agent.service import AgentService
from llmgw.agent.settings import Layout, pretended_bytes
from llmgw.agent.shards import proc
from llmgw.agent.shards.checks import SystemChecks
from llmgw.agent.shards.keeper import Shards
from llmgw.agent.shards.kernellog import KernelLog
from llmgw.agent.shards.orders import nobody_told
from llmgw.agent.shards.probes import HttpProber
from llmgw.agent.shards.processes import ShimSpawner
from llmgw.agent.shards.surroundings import ShardSettings
from llmgw.agent.shards.witness import Witness
from llmgw.clock import Clock
from llmgw.model.report import AgentInfo
from llmgw.model.struct import Struct
from llmgw.wire.messages import PROTOCOL
from llmgw.wire.setup import AgentSettings, Holder

RUNTIME = Path(llmgw.__file__).parent / "runtime"
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


class Agent(Struct):
    """The parts that have a life of their own."""

    service: AgentService
    server: Server
    sampler: Sampler
    shards: Shards
    jobs: Jobs


class _Ground(Struct):
    """What all parts stand on. ``env``: what jobs are run with."""

    places: Layout
    settings: AgentSettings
    env: Mapping[str, str]
    clock: Clock
    info: AgentInfo
    learn: Callable[[str], None]
    events: Events
    disk: FileDisk
    targets: DiskTargets


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
    ground = _Ground(
        places=places,
        settings=settings,
        env=job_environment(own_env, settings),
        clock=clock,
        info=info,
        learn=learn,
        events=Events(Journal(store=FileJournalStore(places.journal), clock=clock)),
        disk=FileDisk(places.work),
        targets=DiskTargets(engines_folder=places.engines, weights_folder=places.weights),
    )
    if settings.engine_user is None and os.geteuid() == 0:
        ground.events.told("engine-user", settings.node, AS_ROOT)
    jobs = _jobs(ground)
    spawner = ShimSpawner(places.work, clock=clock)
    survey = _survey(ground, spawner)
    rules = _rules(ground, own_env)
    shards = _shards(ground, spawner=spawner, survey=survey, jobs=jobs, rules=rules)
    sampler = Sampler(survey.look, told=lambda facts: shards.sampled(facts.gpus))
    service = AgentService(
        info=info,
        clock=clock,
        shards=shards,
        jobs=jobs,
        events=ground.events,
        ownership=Ownership(disk=ground.disk, journal=ground.events.journal, fleet=settings.fleet),
        facts=sampler,
        waits=True,
        rules=rules,
        helps=_helps(ground, sampler, rules),
        examiner=NodeExaminer(
            places=places, settings=settings, rules=rules, policy=rules.path, strays=spawner.strays
        ),
    )
    return Agent(service=service, server=Server(service), sampler=sampler, shards=shards, jobs=jobs)


def _jobs(ground: _Ground) -> Jobs:
    place = WorkPlace(
        places=ground.places,
        runtime=RUNTIME,
        settings=ground.settings,
        env=ground.env,
        targets=ground.targets,
    )
    install, fetch = workers(place, clock=ground.clock)
    return Jobs(
        clock=ground.clock,
        disk=ground.disk,
        journal=ground.events.journal,
        install=install,
        fetch=fetch,
        targets=ground.targets,
        changed=ground.events.from_jobs,
        learn=ground.learn,
        boot_id=ground.info.boot_id,
    )


def _survey(ground: _Ground, spawner: ShimSpawner) -> Survey:
    return Survey(
        places=ground.places,
        ports=ground.settings.ports,
        gpus=GpuDiscovery(env=looking_environment(ground.env), classes=Classes(ground.disk)),
        owner=spawner.owner,
        pretends=ground.settings.pretends,
        xids=DriverErrors(KernelLog(), ground.clock).on,
    )


def _rules(ground: _Ground, own_env: Mapping[str, str]) -> PolicyFile:
    return PolicyFile(
        policy_path(own_env),
        user=ground.settings.engine_user or ground.info.user or getpass.getuser(),
        engines=ground.targets.engines,
        told=lambda text: ground.events.told("policy", ground.settings.node, text),
    )


def _shards(
    ground: _Ground, *, spawner: ShimSpawner, survey: Survey, jobs: Jobs, rules: PolicyFile
) -> Shards:
    settings, places = ground.settings, ground.places
    real = SystemChecks(engine_user=settings.engine_user)
    return Shards(
        ShardSettings(work=places.work, boot_id=ground.info.boot_id, engine_user=settings.engine_user),
        clock=ground.clock,
        spawner=spawner,
        probe=HttpProber(),
        disk=ground.disk,
        gpus=survey,
        jobs=jobs,
        node=PretendedChecks(places=places, real=real) if settings.pretends else real,
        events=ground.events.from_shards,
        learn=ground.learn,
        witness=Witness(KernelLog(), bus=survey.gpus.bus),
        rules=rules,
    )


def _helps(ground: _Ground, sampler: Sampler, rules: PolicyFile) -> Helps:
    return Helps(
        disk=ground.disk,
        asker=Asker(user=ground.settings.engine_user, env=ground.env),
        installed=ground.targets.engines,
        facts=sampler,
        rules=rules,
    )


def job_environment(own: Mapping[str, str], settings: AgentSettings) -> dict[str, str]:
    """The node's settings win over what the agent was started with."""
    kept = {
        name: value
        for name, value in own.items()
        if name in PASSED_ON or name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    return {**kept, **settings.env}


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
