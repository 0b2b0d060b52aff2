"""Every node's ``watch`` stream, kept open: what changes the plan becomes a hint, and what was lost is opened again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from random import Random

from llmgw.controller.nodes.transport import Link
from llmgw.controller.passes.links import way_of
from llmgw.controller.passes.watch import BEGUN_WITHIN, changes_the_plan
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.pauses import Pauses, first_of
from llmgw.controller.serving.reach import KeptLinks
from llmgw.model.desired import DesiredNode
from llmgw.model.problems import LlmgwError, NoAgentError, RetryError
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import WatchEvent, WatchParams

log = logging.getLogger("llmgw.serve")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a node is tried again."""
LIVED = 1.0
"""Seconds from which on a stream that its agent closed counts as a good one: it is opened again at once."""
NEWS = frozenset({"manual", "policy", "problem"})
"""Kinds of journal entries that change what a plan or a status says without any shard having changed."""


class Streams:
    """``follow`` says which nodes there are; everything else goes by itself until ``close``."""

    def __init__(self, links: KeptLinks, hints: Hints, *, rng: Random) -> None:
        self._links = links
        self._hints = hints
        self._rng = rng
        self._followed: dict[str, _Followed] = {}

    async def follow(self, nodes: Mapping[str, DesiredNode]) -> None:
        """From now on these nodes and no others. One without an agent is tried at once: it may just have got it."""
        for name in set(self._followed) - set(nodes):
            await self._end(name)
        for name, node in nodes.items():
            followed = self._followed.get(name)
            if followed is not None and way_of(followed.node) != way_of(node):
                await self._end(name)
                followed = None
            if followed is None:
                self._followed[name] = _Followed(node, self._links, self._hints, self._rng)
            else:
                followed.node = node
                followed.has_agent.set()

    @property
    def following(self) -> int:
        return len(self._followed)

    async def close(self) -> None:
        for name in tuple(self._followed):
            await self._end(name)

    async def _end(self, name: str) -> None:
        await self._followed.pop(name).end()
        self._links.found(name)
        await self._links.drop(name)


class _Followed:
    """One node's stream, over and over."""

    def __init__(self, node: DesiredNode, links: KeptLinks, hints: Hints, rng: Random) -> None:
        self.node = node
        self.has_agent = asyncio.Event()
        self._links = links
        self._hints = hints
        self._pauses = Pauses(FIRST_PAUSE, LONGEST_PAUSE, rng)
        self._begun = False
        self._link: Link | None = None  # that the stream goes over; passes use it too
        self._task = asyncio.create_task(self._keep(), name=f"stream {node.name}")

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self.has_agent.clear()
            self._begun, self._link = False, None
            closed = await self._once()
            if self._begun:
                self._hints.hint("watch", f"the stream of node {self.node.name} ended")
            if not (closed and loop.time() - began >= LIVED):
                await first_of(self.has_agent.wait(), timeout=self._pauses.next())

    async def _once(self) -> bool:
        """Until the stream ends; whether its agent closed it in good order."""
        node = self.node
        try:
            await self._listen(node)
        except NoAgentError:
            if self._links.found(node.name):  # the machine answers: a pass can look at it and set it up
                self._hints.hint("watch", f"node {node.name} answers, and has no agent")
            await self._let_go()
        except RetryError as failed:
            if not self._begun:
                self._links.lost(node, failed)
            await self._let_go()
        except (LlmgwError, OSError, CodecError) as failed:
            await self._let_go()
            log.debug("stream of node %s: %s", node.name, failed)
        except Exception:  # whatever ends one stream must not end the watching
            await self._let_go()
            log.exception("the stream of node %s broke, and is opened again", node.name)
        else:
            return True
        return False

    async def _let_go(self) -> None:
        if self._link is not None:
            await self._links.drop(self.node.name, self._link)

    async def _listen(self, node: DesiredNode) -> None:
        self._link = await self._links.again(node)
        events = self._link.stream("watch", WatchParams(), WatchEvent)
        try:
            await self._begin(node, events)
            async for event in events:
                if text := _worth_a_pass(event):
                    self._hints.hint("watch", f"node {node.name}: {text}")
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def _begin(self, node: DesiredNode, events: AsyncIterator[WatchEvent]) -> None:
        """The first event says that nothing is missed from now on: what happened before, a pass must see."""
        try:
            async with asyncio.timeout(BEGUN_WITHIN):
                await anext(events, None)
        except TimeoutError as late:
            raise RetryError(
                f"node {node.name}: its agent is connected and tells nothing for {BEGUN_WITHIN:g} s"
            ) from late
        self._begun = True
        self._links.found(node.name)
        self._pauses.reset()
        self._hints.hint("watch", f"node {node.name} is watched")


def _worth_a_pass(event: WatchEvent) -> str:
    """Why a pass should look, or nothing."""
    if event.entry is not None and event.entry.kind in NEWS:
        return f"{event.entry.kind} {event.entry.subject}"
    if not changes_the_plan(event):
        return ""
    if event.shard is not None:
        return f"{event.shard.shard} is {event.shard.state}"
    if event.job is not None:
        return f"{event.job.job} is {event.job.state}"
    return "its stream was behind"
