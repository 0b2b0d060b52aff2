"""What jobs have brought to the node and whether anything here still refers to it; removes what nothing does. Whether the
fleet still needs it is the controller's to know: it names what may go.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from llmgw.agent.jobs.runner import Jobs
from llmgw.agent.seams import ANYTHING_STORED
from llmgw.model.ids import ShardId
from llmgw.model.problems import StalledError
from llmgw.model.report import Stored
from llmgw.model.struct import Struct, replace


class Storage(Struct):
    """``needs``: the digests that shards refer to, and by which."""

    jobs: Jobs
    needs: Callable[[], Mapping[str, tuple[ShardId, ...]]]

    async def stored(self) -> tuple[Stored, ...]:
        found = await asyncio.to_thread(self.jobs.targets.stored)
        return tuple(self._with_reasons(one) for one in found)

    async def collect(self, names: Iterable[str]) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
        """What was removed and what was kept; no job is ordered meanwhile. Removing takes long, and shards are ordered meanwhile:
        each is asked for once more when its turn comes. Raises StalledError when the disk refuses."""
        wanted = frozenset(names)
        async with self.jobs.resting():
            asked = [one for one in await self.stored() if one.name in wanted]
            removed, kept = [], []
            for one in map(self._with_reasons, asked):
                if one.held:
                    kept.append(one)
                else:
                    await asyncio.to_thread(self._remove, one)
                    removed.append(one)
            return tuple(removed), tuple(kept)

    def _remove(self, one: Stored) -> None:
        try:
            self.jobs.targets.remove(one.name)
        except OSError as wrong:
            raise StalledError(
                f"removing {one.description} at {one.path}: {wrong.strerror}: {wrong.filename}: see to its rights"
            ) from wrong

    def _with_reasons(self, one: Stored) -> Stored:
        kind, _, rest = one.name.partition("/")
        if working := self._worked_on(kind, rest):
            return replace(one, held=working)
        if kind not in ("engine", "weights"):
            return one
        needs = self.needs()
        if broken := needs.get(ANYTHING_STORED):
            return replace(one, held=f"the order of shard {broken[0]} can't be read: forget that shard first")
        shards = needs.get(rest, ())
        return replace(one, shards=shards, held=_referred_to(shards))

    def _worked_on(self, kind: str, rest: str) -> str:
        at_work = self.jobs.at_work()
        if kind == "half":
            job = rest.partition("/")[0]
            return f"{job} works on it" if job in at_work.values() else ""
        if kind == "tool":
            return f"{next(iter(at_work.values()))} may work with it" if at_work else ""
        return f"{at_work[rest]} works on it" if rest in at_work else ""


def _referred_to(shards: Sequence[str]) -> str:
    if len(shards) > 1:
        return f"shards {', '.join(shards)} refer to it"
    return f"shard {shards[0]} refers to it" if shards else ""
