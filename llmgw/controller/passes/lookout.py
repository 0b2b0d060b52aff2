"""Questions to nodes that kept the pass before waiting: they go on beside the passes that come, and hold none of these up.

A machine that is down refuses at once. One that takes a connection and then says nothing costs a pass all the time that a node may
have; the passes after it only listen whether the answer has come meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from llmgw.model.report import NodeObservation, Reach
from llmgw.model.struct import Struct

PATIENCE = 2.0
"""Seconds that a pass gives a node that kept the one before waiting: a healthy one needs less than one."""
FRESH = 20.0
"""Seconds for which an answer that came between two passes counts: as old as one that a pass itself waited for may be."""

Question = Callable[[], Coroutine[Any, Any, NodeObservation]]


class _Late(Struct, kw_only=False):
    """``last``: what the question before this one came to."""

    asking: asyncio.Task[tuple[NodeObservation, float]]
    last: NodeObservation


class Lookout:
    """Nodes by name, each asked once at a time."""

    def __init__(self) -> None:
        self._late: dict[str, _Late] = {}

    async def ask(self, node: str, question: Question) -> NodeObservation:
        """``question`` bounds itself and raises nothing. Of a late node whose answer is still out, what was known before."""
        late = self._late.pop(node, None)
        if late is None:
            return await self._first(node, question)
        if late.asking.done():
            observation, at = late.asking.result()
            if observation.reach is not Reach.UNREACHABLE and _now() - at <= FRESH:
                return observation
            late = _Late(asyncio.create_task(_timed(question), name=f"lookout {node}"), observation)
        self._late[node] = late
        await asyncio.wait({late.asking}, timeout=PATIENCE)
        if not late.asking.done():
            return late.last
        observation, _ = late.asking.result()
        if observation.reach is not Reach.UNREACHABLE:
            del self._late[node]
        return observation

    async def _first(self, node: str, question: Question) -> NodeObservation:
        begun = _now()
        asking = asyncio.create_task(_timed(question), name=f"ask {node}")
        try:
            observation, at = await asking
        finally:
            asking.cancel()
        if observation.reach is Reach.UNREACHABLE and at - begun >= PATIENCE:
            self._late[node] = _Late(asking, observation)
        return observation

    async def close(self) -> None:
        late, self._late = tuple(self._late.values()), {}
        for each in late:
            each.asking.cancel()
        await asyncio.gather(*(each.asking for each in late), return_exceptions=True)


async def _timed(question: Question) -> tuple[NodeObservation, float]:
    return await question(), _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
