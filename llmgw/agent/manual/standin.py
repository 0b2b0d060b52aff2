"""What stands in for an agent that does not run: what can be read of the node without one, and, for a command, the agent's
own parts for as long as that command takes, under the agent's lock."""

import getpass
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from llmgw.agent.assembly import assemble, job_environment, this_agent, this_holder
from llmgw.agent.discovery.commands import looking_environment
from llmgw.agent.discovery.gpus import GpuDiscovery
from llmgw.agent.discovery.survey import Survey
from llmgw.agent.disk import FileDisk
from llmgw.agent.doctor.examiner import NodeExaminer
from llmgw.agent.jobs.targets import DiskTargets
from llmgw.agent.lock import only_agent
from llmgw.agent.logsink import log_to, secret_values
from llmgw.agent.policy import PolicyFile, policy_path
from llmgw.agent.seams import Running
from llmgw.agent.settings import Layout, layout, make_folders, read_settings
from llmgw.agent.shards import adoption, autopsy, proc, reports
from llmgw.agent.shards.keeper import Shards
from llmgw.agent.shards.logs import LogBook
from llmgw.agent.shards.orders import FOLDER, Orders, StoredOrder, read_order
from llmgw.agent.shards.processes import ShimSpawner
from llmgw.clock import SystemClock
from llmgw.model.facts import Facts
from llmgw.model.ids import ShardId
from llmgw.model.launch import ENGINE
from llmgw.model.problems import StalledError
from llmgw.model.report import ShardReport
from llmgw.model.struct import Struct, replace
from llmgw.redaction import Redactor
from llmgw.wire import codec
from llmgw.wire.messages import LogLine
from llmgw.wire.setup import AgentSettings


class Node(Struct):
    """The node as its disk and the kernel show it. Reads only."""

    settings: AgentSettings
    places: Layout
    spawner: ShimSpawner
    survey: Survey
    targets: DiskTargets
    rules: PolicyFile

    async def facts(self) -> Facts:
        facts = await self.survey.look()
        return replace(
            facts,
            engines=(*facts.engines, *self.targets.engines()),
            weights=(*facts.weights, *self.targets.weights()),
            policy=self.rules.facts(),
        )

    async def orders(self) -> tuple[StoredOrder, ...]:
        """Those that can be read; the doctor tells of the others."""
        found = []
        for name, data in (await FileDisk(self.places.work).read_all(FOLDER)).items():
            try:
                found.append(read_order(name.removesuffix(".json"), data))
            except codec.CodecError:  # noqa: PERF203 - one broken order must not hide the others
                continue
        return tuple(sorted(found, key=lambda order: order.spec.shard))

    async def shards(self) -> tuple[ShardReport, ...]:
        """As their orders say, and what really runs of them; and what runs without an order that can be read."""
        orders = await self.orders()
        now, boot_id = SystemClock().now(), proc.boot_id()
        for stray in await self.spawner.strays(frozenset(str(order.spec.shard) for order in orders)):
            left = await self.spawner.describe(await self.spawner.remaining(stray))
            why = f"its order is gone or can't be read; of it live {left}"
            orders = (*orders, adoption.nameless(stray, why, now=now, boot_id=boot_id))
        return tuple([await self._shard(order) for order in orders])

    async def _shard(self, order: StoredOrder) -> ShardReport:
        name = order.spec.shard
        status_file = str(self.places.work / "status" / f"{name}.{ENGINE}.json")
        found = await self.spawner.find(name, ENGINE, status_file)
        engine = found if isinstance(found, Running) and order.boot_id == proc.boot_id() else None
        seen = reports.Seen(engine=engine, by_hand=order.by_hand)
        report = reports.report(order.spec, order.life, seen)
        runs = f"its engine runs, pid {report.pid}" if report.pid else "nothing of it is known to run"
        told = (
            f"by its order, no agent watches it; {runs}"
            if order.spec.processes[-1].argv
            else "no agent watches it"
        )
        return replace(report, reason=f"{report.reason}; {told}" if report.reason else told)

    async def logs(self, shard: str, lines: int, *, follow: bool) -> AsyncIterator[LogLine]:
        order = next((one for one in await self.orders() if one.spec.shard == shard), None)
        if order is None:
            raise StalledError(
                f"reading the logs of shard {shard[:200]}: there is no such shard on this node"
            )
        names = tuple(process.name for process in order.spec.processes)
        secrets = await Orders(FileDisk(self.places.work)).secrets(ShardId(shard))
        book = LogBook(self.places.work / "logs")
        if not follow:
            for line in book.tail(shard, names, lines):
                yield replace(line, text=autopsy.mask(line.text, secrets.values()))
            return
        async for line in book.follow(shard, names, lines):
            yield replace(line, text=autopsy.mask(line.text, secrets.values()))

    def examiner(self) -> NodeExaminer:
        return NodeExaminer(
            places=self.places,
            settings=self.settings,
            rules=self.rules,
            policy=self.rules.path,
            strays=self.spawner.strays,
        )


def node_at(work: Path, own_env: Mapping[str, str]) -> Node:
    """Raises StalledError when there are no settings of an agent, or when they are not for this user to read."""
    settings = read_settings(work)
    places = layout(work, settings)
    spawner = ShimSpawner(work, clock=SystemClock())
    targets = DiskTargets(engines_folder=places.engines, weights_folder=places.weights)
    looks = GpuDiscovery(env=looking_environment(job_environment(own_env, settings)))
    return Node(
        settings=settings,
        places=places,
        spawner=spawner,
        survey=Survey(
            places=places,
            ports=settings.ports,
            gpus=looks,
            owner=spawner.owner,
            pretends=settings.pretends,
        ),
        targets=targets,
        rules=PolicyFile(
            policy_path(own_env),
            user=settings.engine_user or getpass.getuser(),
            engines=targets.engines,
            told=_to_nobody,
        ),
    )


def _to_nobody(_: str) -> None:
    """The next agent tells of its policy itself."""


@asynccontextmanager
async def standing_in(
    work: Path, own_env: Mapping[str, str], shard: ShardId, *, starts: bool
) -> AsyncIterator[Shards]:
    """The agent's own parts, with one shard in their hands. No agent can start meanwhile; engines outlive this as they
    outlive an agent. ``starts``: its jobs are looked for as well."""
    settings = read_settings(work)
    places = layout(work, settings)
    make_folders(places)
    clock = SystemClock()
    with only_agent(work, this_holder(places, settings)):
        redactor = Redactor(secret_values((*own_env.items(), *settings.env.items())))
        log_to(places.log, redactor)
        info = this_agent(settings, clock)
        agent = assemble(places, settings, own_env=own_env, clock=clock, info=info, learn=redactor.learn)
        if starts:
            await agent.jobs.adopt()
        await agent.shards.attend(shard)
        try:
            yield agent.shards
        finally:
            await agent.service.close()
