"""The agents' ``watch`` streams while an apply waits: what happens is told at once, and what changes the plan wakes up
whoever waits for the next pass."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from llmgw.controller.nodes.transport import Link
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.progress import Progress
from llmgw.controller.passes.values import PassResult
from llmgw.core.moves.adapters import ON_THE_WAY
from llmgw.model.desired import DesiredNode
from llmgw.model.problems import LlmgwError
from llmgw.model.report import JobState, Reach, Report, ShardState
from llmgw.wire.messages import NO_JOURNAL, ReportParams, WatchEvent, WatchParams

GATHER = 0.1
"""Seconds to wait after a wake-up: ranks and replicas get ready in groups."""
BEGUN_WITHIN = 20.0
"""Seconds for a stream to begin: over SSH a channel is opened and a bridge started first, on a machine that may be busy."""
REPORT_TIMEOUT = 20.0

_WAKING_SHARD = frozenset(
    state.value for state in (ShardState.READY, ShardState.STOPPED, ShardState.FAILED, ShardState.BACKOFF)
)
_WAKING_JOB = frozenset(state.value for state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED))
_WAKING = _WAKING_SHARD | _WAKING_JOB
_QUIET = (_WAKING_SHARD - {ShardState.BACKOFF.value}) | _WAKING_JOB


class Watch:
    """The ``watch`` streams of nodes: everything goes to the progress, what changes the plan wakes the waiter."""

    def __init__(self, links: Links, nodes: Mapping[str, DesiredNode], progress: Progress) -> None:
        self._links = links
        self._nodes = nodes
        self._progress = progress
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    async def follow(self, last: PassResult) -> None:
        """Watch the nodes where something is going on, and no others; a stream that ended is opened again."""
        names = _watched(last)
        for name in set(self._tasks) - set(names):
            await self._end(name)
        for name in names:
            task = self._tasks.get(name)
            if task is None or task.done():
                seen = last.prepared.observed.nodes.get(name)
                known = _states(seen.report) if seen is not None and seen.report is not None else {}
                self._tasks[name] = asyncio.create_task(
                    self._node(self._nodes[name], known), name=f"watch {name}"
                )

    async def _node(self, node: DesiredNode, known: Mapping[str, str]) -> None:
        """Until the stream ends; a node that can't be watched is left to the timer."""
        with suppress(LlmgwError, OSError):
            link = await self._links.to(node)
            begun = asyncio.Event()
            stream = asyncio.create_task(self._stream(node, link, begun))
            try:
                await _begun_or_over(begun, stream)
                await self._catch_up(node, link, known)
                await stream
            finally:
                stream.cancel()
                await asyncio.gather(stream, return_exceptions=True)

    async def _stream(self, node: DesiredNode, link: Link, begun: asyncio.Event) -> None:
        async for event in link.stream("watch", WatchParams(), WatchEvent):
            begun.set()
            self._progress.seen(node.name, event)
            if changes_the_plan(event):
                self._wake.set()

    async def _catch_up(self, node: DesiredNode, link: Link, known: Mapping[str, str]) -> None:
        """What happened between the pass's report and the beginning of the stream would never be told."""
        report = await link.request(
            "report", ReportParams(journal_after=NO_JOURNAL), Report, timeout=REPORT_TIMEOUT
        )
        events = [WatchEvent(shard=it) for it in report.shards] + [WatchEvent(job=it) for it in report.jobs]
        for event in events:
            self._progress.seen(node.name, event)
        now = _states(report)
        if any(state != known.get(name) and state in _WAKING for name, state in now.items()):
            self._wake.set()

    async def woken(self, timeout: float, halt: Halt) -> None:
        """Until something happened, ``timeout`` seconds went by, or the waiting is over."""
        if timeout > 0:
            wake = asyncio.create_task(self._wake.wait())
            stop = asyncio.create_task(halt.sleep(timeout))
            try:
                await asyncio.wait({wake, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (wake, stop):
                    task.cancel()
                await asyncio.gather(wake, stop, return_exceptions=True)
            if self._wake.is_set() and not halt.called:
                await asyncio.sleep(GATHER)
        self._wake.clear()

    async def close(self) -> None:
        for name in tuple(self._tasks):
            await self._end(name)

    async def _end(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _begun_or_over(begun: asyncio.Event, stream: "asyncio.Task[None]") -> None:
    """Until the stream has told its first event, or will never tell one. An agent that says nothing at first is caught up with all
    the same, a little late."""
    first = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({first, stream}, timeout=BEGUN_WITHIN, return_when=asyncio.FIRST_COMPLETED)
    finally:
        first.cancel()


def _states(report: Report) -> dict[str, str]:
    return {it.shard: it.state for it in report.shards} | {it.job: it.state for it in report.jobs}


def changes_the_plan(event: WatchEvent) -> bool:
    if event.resync:
        return True
    if event.shard is not None and event.shard.state in _WAKING_SHARD:
        return True
    return event.job is not None and event.job.state in _WAKING_JOB


def _watched(last: PassResult) -> tuple[str, ...]:
    """Nodes where something may happen that the next pass waits for."""
    busy = {step.node for step in last.plan.steps if step.node is not None}
    for name, node in last.prepared.observed.nodes.items():
        if node.reach is Reach.OK and node.report is not None and unquiet(node.report):
            busy.add(name)
    return tuple(sorted(busy & set(last.prepared.desired.nodes)))


def unquiet(report: Report) -> bool:
    """Whether some shard, job or LoRA adapter of the node is on its way."""
    adapters = (adapter.state for shard in report.shards for adapter in shard.adapters)
    return any(state not in _QUIET for state in _states(report).values()) or any(
        state in ON_THE_WAY for state in adapters
    )
