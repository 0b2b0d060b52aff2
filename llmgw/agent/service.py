"""The agent's answers, without a socket: every method of the protocol, decoded strictly, decided, handed to its doer.

All of the outside world is handed in, so that the simulation runs this very code on fakes.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from llmgw.agent.answers import Answers
from llmgw.agent.events import Events
from llmgw.agent.helps import Helps
from llmgw.agent.inspecting import Inspector
from llmgw.agent.jobs.runner import Jobs
from llmgw.agent.jobs.storage import Storage
from llmgw.agent.ownership import Ownership
from llmgw.agent.seams import ANYTHING, Examiner, Rules, ShardKeeper
from llmgw.clock import Clock
from llmgw.model.checkup import Checkup
from llmgw.model.facts import Facts
from llmgw.model.ids import JobId
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import AgentError, RetryError, StalledError
from llmgw.model.report import AgentInfo, Report
from llmgw.model.struct import replace
from llmgw.model.weights import Inspection
from llmgw.wire import codec, messages
from llmgw.wire.messages import (
    BUSY,
    CONFLICT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MAX_LINE,
    METHOD_NOT_FOUND,
    POLICY,
    PROTOCOL,
    VERSION,
    Accepted,
    Command,
    HelloParams,
    HelloResult,
    LogsParams,
    ReportParams,
    WatchParams,
)
from llmgw.wire.rpc import STREAMS

P = TypeVar("P")
MAX_INSPECTED = 64
"""Weights that one request looks at: more than models of one node."""
FACTS_AGE = 5.0
"""Seconds that facts of a report may be old: GPUs change hands fast while people start things by hand."""
ENDED = frozenset({"stopped", "failed", "backoff"})
LOG = logging.getLogger("llmgw.agent")

Checkpoint = Callable[[str], Awaitable[None]]
"""Called at the points where a crash would be told apart; the simulation ends the agent there."""


async def no_checkpoint(_: str) -> None:
    """What the real agent does there."""


class FactsSource(Protocol):
    """What the node is, sampled."""

    async def facts(self, *, max_age: float) -> Facts:
        """The latest sample, or a new one when it is older than ``max_age`` seconds; never fails, see Facts.problems."""
        ...


class AgentService:
    """``info`` says who this agent is; its fleet is filled in from ``ownership``. ``waits``: it is asked before it has
    adopted, and answers only ``hello`` until then."""

    def __init__(  # noqa: PLR0913 - one part each
        self,
        *,
        info: AgentInfo,
        clock: Clock,
        shards: ShardKeeper,
        jobs: Jobs,
        events: Events,
        ownership: Ownership,
        facts: FactsSource,
        checkpoint: Checkpoint = no_checkpoint,
        waits: bool = False,
        rules: Rules = ANYTHING,
        examiner: Examiner | None = None,
        inspector: Inspector | None = None,
        helps: Helps | None = None,
    ) -> None:
        self._info = info
        self._rules = rules
        self._examiner = examiner
        self._inspector = inspector or Inspector()
        self._helps = helps
        self._clock = clock
        self._shards = shards
        self._jobs = jobs
        self._storage = Storage(jobs=jobs, needs=shards.needs)
        self._journal = events.journal
        self._events = events
        self._ownership = ownership
        self._facts = facts
        self._checkpoint = checkpoint
        self._owned = False
        self._adopted = asyncio.Event()
        if not waits:
            self._adopted.set()
        self._answers = Answers()
        self._problems: tuple[str, ...] = ()
        self._questions: Mapping[str, tuple[type[Any], Callable[[Any], Awaitable[Any]]]] = {
            "report": (ReportParams, self._report),
            "manual": (messages.ManualParams, shards.manual),
            "doctor": (messages.DoctorParams, self._doctor),
            "knock": (messages.KnockParams, self._knock),
            "inspect": (messages.InspectParams, self._inspect),
            "help": (messages.HelpParams, self._help),
            "token": (messages.TokenParams, shards.token),
            "whose": (messages.WhoseParams, shards.whose),
            "storage": (messages.StorageParams, self._stored),
        }
        self._commands: Mapping[str, tuple[type[Any], Callable[[Any], Awaitable[Accepted]]]] = {
            "start": (messages.StartParams, shards.start),
            "drain": (messages.DrainParams, shards.drain),
            "stop": (messages.StopParams, shards.stop),
            "forget": (messages.ForgetParams, shards.forget),
            "key": (messages.KeyParams, shards.key),
            "adapters": (messages.AdaptersParams, shards.adapters),
            "install": (messages.InstallParams, self._install),
            "fetch": (messages.FetchParams, self._fetch),
            "cancel": (messages.CancelParams, self._cancel),
            "collect": (messages.CollectParams, self._collect),
        }

    # ---- life ------------------------------------------------------------------------------------

    async def own(self) -> None:
        """First of all: who owns the node."""
        if not self._owned:
            await self._ownership.load()
        self._owned = True

    async def adopt(self) -> None:
        """Before anything but ``hello`` is answered: which shards and jobs an earlier agent left."""
        await self.own()
        self._problems = await self._jobs.adopt()
        if self._helps is not None:
            await self._helps.load()
        await self._shards.adopt()
        self._journal.append(
            "agent-started", self._info.node, f"agent {self._info.version} started, pid {self._info.pid}"
        )
        self._adopted.set()

    async def close(self) -> None:
        """Engines run on; orders stand."""
        await self._answers.close()
        if self._helps is not None:
            await self._helps.close()
        await self._jobs.close()
        await self._shards.close()

    # ---- the protocol ----------------------------------------------------------------------------

    async def call(self, method: str, params: Mapping[str, Any]) -> Any:
        """One request; JSON types in and out. Raises AgentError, and nothing else."""
        try:
            return codec.to_json(await self._dispatch(method, params))
        except (AgentError, codec.CodecError, RetryError, StalledError) as wrong:
            raise _refusal(wrong) from wrong
        except Exception as wrong:
            LOG.exception("answering %s", method)
            raise _fault(method, wrong) from wrong

    async def stream(self, method: str, params: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """``watch`` or ``logs``; JSON types in and out. Raises AgentError, and nothing else. Closing it ends what is
        behind it at once."""
        if method not in STREAMS:
            raise AgentError(f"{method!r:.60} is no stream of this agent", code=METHOD_NOT_FOUND)
        await self._adopted.wait()
        try:
            if method == "watch":
                _decode(WatchParams, params)
                async with aclosing(self._events.watch()) as events:
                    async for event in events:
                        yield codec.to_json(event)
            else:
                lines = self._shards.logs(_decode(LogsParams, params))
                async with AsyncExitStack() as stack:
                    if isinstance(lines, AsyncGenerator):
                        await stack.enter_async_context(aclosing(lines))
                    async for line in lines:
                        yield codec.to_json(line)
        except (AgentError, codec.CodecError, RetryError, StalledError) as wrong:
            raise _refusal(wrong) from wrong
        except Exception as wrong:
            LOG.exception("streaming %s", method)
            raise _fault(method, wrong) from wrong

    async def _dispatch(self, method: str, params: Mapping[str, Any]) -> Any:
        if method == "hello":
            return await self._hello(params)
        await self._adopted.wait()
        if method in self._questions:
            kind, answer = self._questions[method]
            return await answer(_decode(kind, params))
        if method in self._commands:
            kind, do = self._commands[method]
            return await self._command(method, _decode(kind, params), params, do)
        raise AgentError(
            f"this agent ({self._info.version}) has no method {method!r:.60}: upgrade the agent",
            code=METHOD_NOT_FOUND,
        )

    # ---- reading ---------------------------------------------------------------------------------

    async def _hello(self, params: Mapping[str, Any]) -> HelloResult:
        """The version comes first: a newer peer's hello may hold fields that this agent does not know."""
        protocol = params.get("protocol")
        if isinstance(protocol, str) and not messages.compatible(protocol, PROTOCOL):
            raise AgentError(
                f"the controller speaks protocol {protocol:.20}, this agent ({self._info.version}) {PROTOCOL}: bring both"
                " to the same version",
                code=VERSION,
                data={"protocol": PROTOCOL, "agentVersion": self._info.version},
            )
        hello = _decode(HelloParams, params)
        await self._ownership.greet(hello.fleet)
        return HelloResult(
            protocol=PROTOCOL,
            agent_version=self._info.version,
            node=self._info.node,
            boot_id=self._info.boot_id,
            fleet=self._ownership.fleet,
            fence=self._ownership.fence,
        )

    async def _report(self, params: ReportParams) -> Report:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        facts = await self._facts.facts(max_age=self._facts_age())
        await self._shards.sampled(facts.gpus)
        targets = self._jobs.targets
        engines = targets.engines()
        problems = [*self._problems, *self._shards.problems(), self._journal.problem, self._rules.problem()]
        return Report(
            agent=replace(self._info, fleet=self._ownership.fleet),
            at=self._clock.now(),
            facts=replace(
                facts,
                engines=(*facts.engines, *(self._helps.facts(engines) if self._helps else engines)),
                weights=(*facts.weights, *targets.weights()),
                policy=self._rules.facts(),
            ),
            fence=self._ownership.fence,
            shards=self._shards.reports(),
            jobs=self._jobs.reports(),
            journal=self._journal.after(params.journal_after),
            journal_last=self._journal.last,
            problems=tuple(problem for problem in problems if problem),
            took=loop.time() - asked,
        )

    def _facts_age(self) -> float:
        """An engine on GPUs that has just got ready wants a look of now: by one from before it would compute on the CPU. So does
        one that has just ended: by one from before somebody would still listen on its port, and its place would count as lost."""
        since = self._clock.now() - timedelta(seconds=FACTS_AGE)
        news = (
            (report.claims.gpus and report.ready_at is not None and report.ready_at > since)
            or (report.state in ENDED and report.since > since)
            for report in self._shards.reports()
        )
        return 0.0 if any(news) else FACTS_AGE

    async def _doctor(self, _: messages.DoctorParams) -> Checkup:
        return await self._examined().examine(
            await self._report(ReportParams(journal_after=self._journal.last))
        )

    async def _knock(self, params: messages.KnockParams) -> messages.Knocked:
        return await self._examined().knock(params)

    async def _inspect(self, params: messages.InspectParams) -> messages.Inspected:
        """As many as one message holds; what was asked for first comes first."""
        lying = {weights.digest: weights.path for weights in self._jobs.targets.weights()}
        found: dict[str, Inspection] = {}
        room = MAX_LINE // 2
        for digest, path in list(params.paths.items())[:MAX_INSPECTED]:
            where = path or lying.get(digest, "")
            if not where:
                found[digest] = Inspection(path="", problem="they are not on this node: fetch them")
                continue
            seen = await (self._look(digest, path) if path else self._inspector.inspect(where))
            room -= len(codec.dumps(seen))
            if room < 0 and found:
                break
            found[digest] = seen
        return messages.Inspected(inspections=found)

    async def _look(self, digest: str, path: str) -> Inspection:
        """What lies there, if the machine's own people let it be read."""
        as_fetched = FetchSpec(job=JobId(f"inspect-{digest[:8]}"), digest=digest, description=path, path=path)
        if refusal := self._rules.fetch(as_fetched):
            return Inspection(path=path, problem=refusal)
        return await self._inspector.inspect(path)

    async def _help(self, params: messages.HelpParams) -> messages.Helped:
        if self._helps is None:
            raise AgentError("this agent has nobody to ask engines for their help", code=METHOD_NOT_FOUND)
        return await self._helps.ask(params)

    def _examined(self) -> Examiner:
        if self._examiner is None:
            raise AgentError("this agent has nobody to examine its node", code=METHOD_NOT_FOUND)
        return self._examiner

    # ---- commands --------------------------------------------------------------------------------

    async def _install(self, params: messages.InstallParams) -> Accepted:
        spec = params.spec
        _allow(f"installing {spec.engine} {spec.version}", self._rules.install(spec))
        return Accepted(job=await self._jobs.install(params.spec))

    async def _fetch(self, params: messages.FetchParams) -> Accepted:
        _allow(f"fetching {params.spec.description}", self._rules.fetch(params.spec))
        return Accepted(job=await self._jobs.fetch(params.spec, secrets=params.secrets))

    async def _cancel(self, params: messages.CancelParams) -> Accepted:
        return Accepted(job=await self._jobs.cancel(params.job))

    async def _stored(self, _: messages.StorageParams) -> messages.StorageResult:
        return messages.StorageResult(stored=await self._storage.stored())

    async def _collect(self, params: messages.CollectParams) -> Accepted:
        removed, kept = await self._storage.collect(params.names)
        for one in removed:
            self._journal.append(
                "job", one.name, f"removed {one.description}, {one.size} bytes at {one.path}"
            )
        return Accepted(detail="; ".join(f"kept {one.description}: {one.held}" for one in kept))

    async def _command(
        self, method: str, decoded: Any, params: Mapping[str, Any], do: Callable[[Any], Awaitable[Accepted]]
    ) -> Accepted:
        """Once for each command id, and to the end even when the one who asked is gone."""
        command: Command = decoded.command
        asked = hashlib.sha256(method.encode() + b"\0" + codec.dumps(params)).hexdigest()
        return await self._answers.of(
            command.id, asked, lambda: self._carry_out(method, command, decoded, do)
        )

    async def _carry_out(
        self, method: str, command: Command, params: Any, do: Callable[[Any], Awaitable[Accepted]]
    ) -> Accepted:
        await self._ownership.admit(command.fence)
        await self._checkpoint(f"agent:admitted:{method}")
        accepted = await do(params)
        await self._checkpoint(f"agent:done:{method}")
        return accepted


def _allow(doing: str, refusal: str) -> None:
    if refusal:
        raise AgentError(f"{doing}: {refusal}", code=POLICY)


def _decode(kind: type[P], params: Mapping[str, Any]) -> P:
    return codec.from_json(kind, params, strict=True)


def _refusal(wrong: Exception) -> AgentError:
    """An error as the protocol tells it: by what happens next."""
    match wrong:
        case AgentError():
            return wrong
        case codec.CodecError():
            return AgentError(str(wrong), code=INVALID_PARAMS)
        case RetryError():
            return AgentError(str(wrong), code=BUSY, after=max(wrong.after, timedelta(seconds=1)))
        case _:
            return AgentError(str(wrong), code=CONFLICT)


def _fault(method: str, wrong: Exception) -> AgentError:
    return AgentError(
        f"answering {method}: {type(wrong).__name__}: {wrong}: a fault of the agent; its log says more",
        code=INTERNAL_ERROR,
    )
