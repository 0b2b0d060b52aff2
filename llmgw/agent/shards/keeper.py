"""All shards of this node: takes the commands, refuses what can't be, keeps every claim within what there is. The one
door to this folder; see ShardKeeper in agent/seams.py."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping

from llmgw.agent.seams import (
    ANYTHING,
    Disk,
    Gpus,
    JobGate,
    NodeChecks,
    Probe,
    Rules,
    Running,
    ShardEvents,
    Spawner,
)
from llmgw.agent.shards import admission, adoption, reports, tokens
from llmgw.agent.shards.jobs import to_wait_for
from llmgw.agent.shards.logs import AGENT, LogBook
from llmgw.agent.shards.orders import (
    SAFE_SHARD,
    Orders,
    StoredOrder,
    needed,
    nobody_told,
    refused,
    refused_adapters,
    with_adapters,
)
from llmgw.agent.shards.supervisor import Shard
from llmgw.agent.shards.surroundings import ShardSettings, Surroundings
from llmgw.agent.shards.witness import Witness
from llmgw.clock import Clock
from llmgw.core.life import Adopted, DrainAsked, Event, Ordered, StopAsked
from llmgw.core.lifecycle import newborn
from llmgw.model.facts import Gpu
from llmgw.model.ids import Fence, ShardId
from llmgw.model.launch import LaunchSpec
from llmgw.model.problems import AgentError, StalledError
from llmgw.model.report import ByHand, ShardReport, ShardState
from llmgw.model.struct import replace
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import (
    CONFLICT,
    INVALID_PARAMS,
    NO_SPACE,
    NOT_FOUND,
    POLICY,
    Accepted,
    AdaptersParams,
    DrainParams,
    ForgetParams,
    KeyParams,
    LogLine,
    LogsParams,
    ManualParams,
    StartParams,
    StopParams,
    Tokened,
    TokenParams,
    Whose,
    WhoseParams,
)

log = logging.getLogger(__name__)

DRAINABLE = frozenset({ShardState.LOADING, ShardState.READY})
ENDING = frozenset({ShardState.DRAINING, ShardState.STOPPING})
BY_HAND = {"start": "started", "stop": "stopped", "drain": "drained"}
DOING = {"start": "starting", "stop": "stopping", "drain": "draining"}
MAX_FOLLOW = 10_000


class Shards:
    """Commands are taken one at a time; what they set going runs beside them."""

    def __init__(  # noqa: PLR0913 - one seam each
        self,
        settings: ShardSettings,
        *,
        clock: Clock,
        spawner: Spawner,
        probe: Probe,
        disk: Disk,
        gpus: Gpus,
        jobs: JobGate,
        node: NodeChecks,
        events: ShardEvents,
        learn: Callable[[str], None] = nobody_told,
        witness: Witness | None = None,
        rules: Rules = ANYTHING,
    ) -> None:
        self._around = Surroundings(
            settings=settings,
            clock=clock,
            spawner=spawner,
            probe=probe,
            orders=Orders(disk, learn=learn),
            gpus=gpus,
            jobs=jobs,
            node=node,
            logs=LogBook(settings.work / "logs"),
            events=events,
            witness=witness,
            rules=rules,
        )
        self._shards: dict[str, Shard] = {}
        self._unreadable: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._housekeeping: asyncio.Task[None] | None = None

    async def adopt(self) -> None:
        left = await adoption.legacy(self._around)
        self._unreadable.update(left.unreadable)
        for one in left.adoptions:
            self._take(one)
        for told in left.strays.values():
            log.warning("%s", told)
        for shard, told in (*left.unreadable.items(), *left.strays.items()):
            self._around.events(reports.problem(shard, told))
        # A report may not show what an earlier agent knew of an engine that has died since.
        await asyncio.gather(*(shard.settled() for shard in self._shards.values()))
        if self._around.settings.housekeeping:
            self._housekeeping = asyncio.ensure_future(self._keep_house(self._around.settings.housekeeping))

    async def attend(self, name: ShardId) -> None:
        """Instead of adopting, for one command while no agent runs: this shard is taken in hand, the others are only known
        for what they claim."""
        found = await self._around.orders.load()
        for order in found.orders:
            if order.spec.shard != name:
                self._shards[order.spec.shard] = Shard(order, self._around, {})
        if one := await adoption.only(name, found, self._around):
            await self._take(one).settled()

    # ---- Commands -----------------------------------------------------------------------------------------

    async def start(self, params: StartParams) -> Accepted:
        spec = params.spec
        if why := refused(spec, params.secrets):
            raise AgentError(f"starting shard {spec.shard[:200]}: {why}", code=INVALID_PARAMS)
        async with self._lock:
            existing = self._shards.get(spec.shard)
            if existing is not None and not existing.terminal:
                return await self._live_already(existing, params)
            if existing is not None:
                await existing.settled()  # what is told may not be on disk yet
            return await self._start(spec, params.secrets, params.command.fence)

    async def _start(
        self, spec: LaunchSpec, secrets: Mapping[str, str], fence: Fence | None, by_hand: ByHand | None = None
    ) -> Accepted:
        """In place of what has ended under that name."""
        existing = self._shards.get(spec.shard)
        held = {
            name: shard.spec.claims
            for name, shard in sorted(self._shards.items())
            if not shard.terminal and name != spec.shard
        }
        await admission.allow(spec, held, self._around)
        there = await self._there_already(existing, spec)
        order = StoredOrder(
            spec=spec,
            life=newborn(self._around.clock.now()),
            fence=fence,
            boot_id=self._around.settings.boot_id,
            by_hand=by_hand,
        )
        first = Adopted() if there else Ordered(here=not to_wait_for(spec, self._around))
        await admission.write(order, first, secrets, self._around)
        if existing is not None:
            await existing.close()
        await self._readable_again(spec.shard)
        shard = self._begin(order, first, running=there, secrets=secrets)
        return Accepted(shard=shard.report(), detail="it runs already, and is adopted" if there else "")

    async def _live_already(self, shard: Shard, params: StartParams) -> Accepted:
        await shard.commanded(None)
        if not shard.lost:
            return Accepted(shard=shard.report(), detail="it is live already")
        await self._take_secrets(shard, params.secrets)
        return Accepted(shard=shard.report(), detail="it is live already, and knows its secrets again")

    async def _there_already(self, existing: Shard | None, spec: LaunchSpec) -> tuple[Running, ...]:
        """What runs of an order that this agent has lost: nothing healthy is killed to be started again."""
        if existing is None or not existing.lost:
            return ()
        return await adoption.running_already(spec, self._around)

    async def drain(self, params: DrainParams) -> Accepted:
        async with self._lock:
            return await self._drain(self._known(params.shard, "draining"), params.timeout, None)

    async def _drain(self, shard: Shard, timeout: float, by_hand: ByHand | None) -> Accepted:
        state = shard.life.state
        if state not in DRAINABLE | ENDING:
            raise AgentError(
                f"draining shard {shard.spec.shard}: it is {_as_it_is(shard)}, so nothing is in flight:"
                " stop it instead",
                code=CONFLICT,
            )
        await shard.commanded(by_hand)
        if state in DRAINABLE:
            await shard.tell(DrainAsked(timeout=timeout))
        return Accepted(shard=shard.report())

    async def manual(self, params: ManualParams) -> Accepted:
        """Break glass: what a person on the node says counts until the controller commands the shard again."""
        async with self._lock:
            shard = self._known(params.shard, f"by hand, {DOING[params.verb]}")
            by_hand = ByHand(verb=BY_HAND[params.verb], by=params.by[:100], at=self._around.clock.now())
            accepted = await self._manual(shard, params, by_hand)
            told = f"{by_hand.verb} by hand by {by_hand.by}"
            self._around.events(reports.manual(shard.spec, told))
            return accepted

    async def _manual(self, shard: Shard, params: ManualParams, by_hand: ByHand) -> Accepted:
        if params.verb == "drain":
            return await self._drain(shard, params.timeout, by_hand)
        if params.verb == "stop":
            await shard.commanded(by_hand)
            await shard.tell(StopAsked(reason=f"by hand by {by_hand.by}"))
            return Accepted(shard=shard.report(), detail=shard.problem)
        if not shard.terminal:
            raise AgentError(
                f"by hand, starting shard {params.shard}: it is {_as_it_is(shard)}: stop it"
                " first to start it anew",
                code=CONFLICT,
            )
        if not shard.spec.processes[-1].argv:
            raise AgentError(
                f"by hand, starting shard {params.shard}: its order is lost: only `llmgw apply` can send it again",
                code=CONFLICT,
            )
        try:
            secrets = await self._around.orders.secrets(params.shard)
        except CodecError as wrong:
            raise AgentError(f"by hand, starting shard {params.shard}: {wrong}", code=CONFLICT) from wrong
        return await self._start(shard.spec, secrets, shard.order.fence, by_hand)

    async def stop(self, params: StopParams) -> Accepted:
        async with self._lock:
            asked = StopAsked(reason=params.reason)
            shard = self._shards.get(params.shard)
            if shard is not None:
                await shard.commanded(None)
                await shard.tell(asked)
                return Accepted(shard=shard.report(), detail=shard.problem)
            if not SAFE_SHARD.match(params.shard) or not await self._around.spawner.remaining(params.shard):
                return Accepted(detail="not known here: nothing to stop")
            # Its order is gone, and yet processes carry its mark.
            found = adoption.orphan(params.shard, "found running without an order", self._around)
            shard = self._begin(found, asked)
            return Accepted(
                shard=shard.report(), detail="its order was gone; its processes are being stopped"
            )

    async def forget(self, params: ForgetParams) -> Accepted:
        async with self._lock:
            shard = self._shards.get(params.shard)
            if shard is None:
                return Accepted(detail="not known here: nothing to forget")
            if not shard.terminal:
                raise AgentError(
                    f"forgetting shard {params.shard}: it is {shard.life.state.value}: stop it first",
                    code=CONFLICT,
                )
            await shard.settled()  # what is told may not be on disk yet
            names = tuple(process.name for process in shard.spec.processes)
            home = self._around.home(params.shard)
            try:
                await self._around.orders.remove(params.shard, names, home=home)
                await self._readable_again(params.shard)
            except StalledError as wrong:
                raise AgentError(f"forgetting shard {params.shard}: {wrong}", code=NO_SPACE) from wrong
            await shard.close()
            self._around.logs.forget(params.shard)
            del self._shards[params.shard]
            return Accepted(detail="forgotten")

    async def key(self, params: KeyParams) -> Accepted:
        async with self._lock:
            shard = self._known(params.shard, "replacing the secrets of")
            if why := refused(shard.spec, params.secrets):
                raise AgentError(f"replacing the secrets of shard {params.shard}: {why}", code=INVALID_PARAMS)
            await self._take_secrets(shard, params.secrets)
            return Accepted(shard=shard.report(), detail="used from its next start on")

    async def adapters(self, params: AdaptersParams) -> Accepted:
        async with self._lock:
            shard = self._known(params.shard, "changing the adapters of")
            doing = f"changing the adapters of shard {params.shard}"
            if why := refused_adapters(shard.spec, params.adapters):
                raise AgentError(f"{doing}: {why}", code=INVALID_PARAMS)
            if why := self._around.rules.start(
                with_adapters(shard.spec, params.adapters), await self._around.gpus.sample()
            ):
                raise AgentError(f"{doing}: {why}", code=POLICY)
            try:
                await shard.change_adapters(params.adapters)
            except StalledError as wrong:
                raise AgentError(f"{doing}: {wrong}", code=NO_SPACE) from wrong
            return Accepted(shard=shard.report())

    async def _take_secrets(self, shard: Shard, secrets: Mapping[str, str]) -> None:
        name, asking = shard.spec.shard, bool(shard.lost)
        try:
            await self._around.orders.save_secrets(name, secrets)
        except StalledError as wrong:
            raise AgentError(f"replacing the secrets of shard {name}: {wrong}", code=NO_SPACE) from wrong
        shard.learn(secrets)
        if asking and shard.life.state in DRAINABLE:
            await shard.tell(Adopted())  # it was asked without its key: it is asked again

    # ---- What is so -----------------------------------------------------------------------------------------

    async def sampled(self, gpus: tuple[Gpu, ...]) -> None:
        for shard in list(self._shards.values()):
            await shard.sampled(gpus)

    def reports(self) -> tuple[ShardReport, ...]:
        return tuple(self._shards[name].report() for name in sorted(self._shards))

    async def whose(self, params: WhoseParams) -> Whose:
        shard = await self._around.spawner.owner(params.pid)
        process = await self._around.spawner.describe((params.pid,))
        return Whose(shard=ShardId(shard) if shard is not None else None, process=process)

    async def token(self, params: TokenParams) -> Tokened:
        return await tokens.one_token(self._known(params.shard, "asking a token of"), self._around)

    def needs(self) -> Mapping[str, tuple[ShardId, ...]]:
        return needed((shard.spec for shard in self._shards.values()), self._unreadable)

    def problems(self) -> tuple[str, ...]:
        disk = {shard.problem for shard in self._shards.values() if shard.problem}
        return (*self._unreadable.values(), *sorted(disk))

    async def logs(self, params: LogsParams) -> AsyncIterator[LogLine]:
        shard = self._known(params.shard, "reading the logs of")
        names = tuple(process.name for process in shard.spec.processes)
        lines = max(0, params.lines)
        if not params.follow:
            for line in self._around.logs.tail(params.shard, names, lines):
                yield replace(line, text=shard.masked(line.text))
            if how := shard.how_it_ended:
                yield LogLine(process=AGENT, text=how)
            return
        async for line in self._around.logs.follow(params.shard, names, lines):
            yield replace(line, text=shard.masked(line.text))

    async def close(self) -> None:
        tasks = [self._housekeeping] if self._housekeeping is not None else []
        for task in tasks:
            task.cancel()
        shards = (shard.close() for shard in self._shards.values())
        prepared = (self._around.spawner.dismiss(name) for name in self._shards)
        await asyncio.gather(*tasks, *shards, *prepared, return_exceptions=True)

    # ---- Inside -----------------------------------------------------------------------------------------------

    def _take(self, one: adoption.Adoption) -> Shard:
        return self._begin(one.order, *one.events, running=one.running, secrets=one.secrets, lost=one.lost)

    def _begin(
        self,
        order: StoredOrder,
        *events: Event,
        running: tuple[Running, ...] = (),
        secrets: Mapping[str, str] | None = None,
        lost: str = "",
    ) -> Shard:
        shard = Shard(order, self._around, secrets or {}, lost=lost)
        self._shards[order.spec.shard] = shard
        shard.begin(*events, running=running)
        return shard

    def _known(self, name: ShardId, doing: str) -> Shard:
        shard = self._shards.get(name)
        if shard is None:
            raise AgentError(
                f"{doing} shard {name[:200]}: there is no such shard on this node: `llmgw-agent status` there lists them",
                code=NOT_FOUND,
            )
        return shard

    async def _readable_again(self, shard: str) -> None:
        if self._unreadable.pop(shard, None) is not None:
            await self._around.orders.discard_unreadable(shard)

    async def _keep_house(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            for name, shard in list(self._shards.items()):
                names = tuple(process.name for process in shard.spec.processes)
                try:
                    await self._around.logs.empty_large(name, names)
                except Exception:
                    log.exception("shard %s: emptying its logs", name)


def _as_it_is(shard: Shard) -> str:
    life = shard.life
    return f"{life.state.value} ({life.reason})" if life.reason else life.state.value
