"""Whether an engine that answers its health question still does any work. What answers may not be what computes: a server's
front goes on saying 200 while the process behind it is gone or waits for ever."""

import asyncio

from llmgw.agent.seams import Answer
from llmgw.agent.shards import progress
from llmgw.agent.shards.progress import Look
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.model.launch import LaunchSpec

EVERY = 60.0
"""Seconds between two looks: a page of numbers, and while requests are in flight a search of /proc."""
UNIT_WITHIN = 120.0
"""Seconds for one unit of work: as long as the very first may take."""
SERVERS_FAULT = 500
"""Below that an answer is about the question, a key that is missing for one, and says that somebody is there."""


class Standstill:
    """Asks for a unit of work where requests stand still and nothing computes, and never otherwise: it would stand in the
    queue of those that do."""

    def __init__(self, spec: LaunchSpec, around: Surroundings, key: str | None) -> None:
        self._spec = spec
        self._around = around
        self._key = key
        self._before: Look | None = None
        self._next = 0.0

    async def found(self) -> str | None:
        """Why it counts as dead; None: it works, has nothing to do, or nobody can tell."""
        now = asyncio.get_running_loop().time()
        if now < self._next or self._spec.probes.token is None:
            return None
        self._next = now + EVERY
        look = await self._look()
        before, self._before = self._before, look
        if look is None or before is None or progress.between(before, before, look):
            return None
        if 0 < (answer := await self._unit()).status < SERVERS_FAULT:
            return None
        after = await self._look()
        if after is None or progress.between(look, look, after):
            return None
        silence = answer.text if answer.status == 0 else f"answered {answer.status}"
        return f"{look.in_flight:.0f} requests stand still, nothing computes, and one more: {silence}"

    async def _look(self) -> Look | None:
        """None where no request is in flight."""
        probes = self._spec.probes
        if probes.in_flight is None or probes.port is None:
            return None
        count = await self._around.probe.in_flight(
            probes.host,
            probes.port,
            probes.in_flight,
            key=self._key,
            timeout=self._spec.timeouts.health_request,
        )
        return await progress.look(self._spec, self._around, self._key) if count else None

    async def _unit(self) -> Answer:
        probes = self._spec.probes
        assert probes.token is not None
        return await self._around.probe.ask(
            probes.host, probes.port or 0, probes.token, key=self._key, timeout=UNIT_WITHIN
        )
