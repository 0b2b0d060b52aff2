"""What jobs have brought to the node and whether anything here still refers to it; removes what nothing does. Whether the
fleet still needs it is the controller's to know: it names what may go.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from llmgw.agent.jobs.runner import Jobs
from llmgw.agent.seams import ANYTHING_STORED
from llmgw.model.ids import ShardId
from llmgw.model.problems import StalledError
from llmgw.model.report import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """``needs``: the digests that shards refer to, and by which."""

    jobs: Jobs
    needs: Callable[[], Mapping[str, ShardId]]

    async def stored(self) -> tuple[Stored, ...]:
        found = await asyncio.to_thread(self.jobs.targets.stored)
        return tuple(replace(one, held=self._held(one.name)) for one in found)

    async def collect(self, names: Iterable[str]) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
        """What was removed and what was kept; no job is ordered meanwhile. Raises StalledError when the disk refuses."""
        wanted = frozenset(names)
        async with self.jobs.resting():
            asked = [one for one in await self.stored() if one.name in wanted]
            going = [one for one in asked if not one.held]
            for one in going:
                await asyncio.to_thread(self._remove, one)
            return tuple(going), tuple(one for one in asked if one.held)

    def _remove(self, one: Stored) -> None:
        try:
            self.jobs.targets.remove(one.name)
        except OSError as wrong:
            raise StalledError(
                f"removing {one.description} at {one.path}: {wrong.strerror}: {wrong.filename}: see to its rights"
            ) from wrong

    def _held(self, name: str) -> str:
        """Why it stays; empty: nothing here refers to it."""
        kind, _, rest = name.partition("/")
        at_work = self.jobs.at_work()
        if kind == "half":
            job = rest.partition("/")[0]
            return f"{job} works on it" if job in at_work.values() else ""
        if kind == "tool":
            return f"{next(iter(at_work.values()))} may work with it" if at_work else ""
        if rest in at_work:
            return f"{at_work[rest]} works on it"
        needs = self.needs()
        if ANYTHING_STORED in needs:
            return f"the order of shard {needs[ANYTHING_STORED]} can't be read: forget that shard first"
        shard = needs.get(rest)
        return f"the order of shard {shard} refers to it" if shard is not None else ""
