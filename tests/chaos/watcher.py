"""Looks at all hosts twenty times a second, from the first fault to the last: what must never be, at any moment, is found
when it is, and what has ended is asked why."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw.model.ids import ShardId, parse_shard_id
from tests.chaos.excuses import Excuses
from tests.chaos.seen import Seen, alive
from tests.chaos.story import Story

EVERY: Final = 0.05
SETTLED: Final = 3.0
"""Seconds after which an engine has started; what ends earlier has not, for which there may be a reason of its own."""
ONE_AGENT: Final = 20.0
"""Seconds that two agents may seem to live on a host: one that is told to end has 10, then it is killed."""
Place = tuple[str, int]
"""A host and an instance on it."""


@dataclass(slots=True)
class Instance:
    """One start of one process of a shard, with all that it forks."""

    first: Seen
    shard: str
    begun: float
    members: dict[int, Seen] = field(default_factory=dict)


class Watcher:
    """``look_at`` tells all processes of the hosts that live. ``broken`` holds what should never have been."""

    def __init__(
        self,
        look_at: Callable[[], Sequence[Seen]],
        excuses: Excuses,
        story: Story,
        *,
        settled: float = SETTLED,
    ) -> None:
        self._look_at = look_at
        self._settled = settled
        self._excuses = excuses
        self._story = story
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._instances: dict[Place, Instance] = {}
        self._agents: dict[str, float] = {}
        self._lock = threading.Lock()
        self.broken: list[str] = []
        self.looks = 0
        self.longest = 0.0
        self._thread = threading.Thread(target=self._run, name="watching the hosts")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def instances(self) -> Mapping[Place, Instance]:
        """What lives of shards, as last seen."""
        with self._lock:
            return dict(self._instances)

    def _run(self) -> None:
        try:
            while not self._over.wait(EVERY):
                began = time.monotonic()
                self.look()
                self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as wrong:  # noqa: BLE001 - told where it is waited for
            self._failure = wrong

    def look(self) -> None:
        found = self._look_at()
        now = time.monotonic()
        grouped = self._group(found, now)
        with self._lock:
            before, self._instances = self._instances, grouped
        for place in grouped.keys() - before.keys():
            one = grouped[place]
            self._story.tell(f"{one.first.host}: {_name(one)} lives, pid {one.first.pid}")
        for place in before.keys() - grouped.keys():
            self._ended(before[place], now)
        self._held_twice(grouped)
        self._two_agents(found, now)
        self.looks += 1

    def _group(self, found: Sequence[Seen], now: float) -> dict[Place, Instance]:
        grouped: dict[Place, Instance] = {}
        for one in sorted(found, key=lambda seen: (seen.start, seen.pid)):
            place = (one.host, one.instance)
            known = self._instances.get(place)
            if not (one.shard or known) or one.shim:
                continue
            if place not in grouped:
                first = known.first if known is not None else one
                begun = known.begun if known is not None else now
                shard = known.shard if known is not None else one.shard
                grouped[place] = Instance(first=first, shard=shard, begun=begun)
            grouped[place].members[one.pid] = one
        return grouped

    # ---- what must never be ------------------------------------------------------------------------

    def _held_twice(self, grouped: Mapping[Place, Instance]) -> None:
        holders: dict[str, list[Instance]] = {}
        for one in grouped.values():
            for thing in _held(one):
                holders.setdefault(thing, []).append(one)
        for thing, several in holders.items():
            # Not all were looked at in one moment: who lives at both ends of a second look lived at once.
            if len(several) > 1 and all(any(map(alive, one.members.values())) for one in several):
                who = " and ".join(f"{_name(one)} (pid {min(one.members)})" for one in several)
                self._break(f"{thing} is held twice: {who}")

    def _two_agents(self, found: Sequence[Seen], now: float) -> None:
        counts: dict[str, int] = {}
        for one in found:
            counts[one.host] = counts.get(one.host, 0) + one.agent
        for host, count in counts.items():
            if count < 2:
                self._agents.pop(host, None)
            elif now - self._agents.setdefault(host, now) > ONE_AGENT:
                self._agents[host] = now
                self._break(f"{host} has had {count} agents for {ONE_AGENT:.0f} s")

    def _ended(self, one: Instance, now: float) -> None:
        why = self._excuses.of(one.first, shard=one.shard, begun=one.begun)
        if not why and parse_shard_id(ShardId(one.shard)) is None:
            why = "its work has an end"  # a job's: how it ended, the pass that waits for it tells
        if not why and now - one.begun < self._settled:
            why = "it had not settled"
        self._story.tell(f"{one.first.host}: {_name(one)} is gone, pid {one.first.pid}: {why or 'NO REASON'}")
        if not why:
            self._break(
                f"{_name(one)} on {one.first.host} (pid {one.first.pid}) has ended, and nobody had done anything to it"
            )

    def _break(self, what: str) -> None:
        if what not in self.broken:
            self._story.tell(f"BROKEN: {what}")
            self.broken.append(what)


def _name(one: Instance) -> str:
    return f"{one.shard} {'sidecar' if one.first.sidecar else 'engine'}"


def _held(one: Instance) -> set[str]:
    """A sidecar shares its engine's GPUs. The name of a process can have one instance at a time."""
    host = one.first.host
    found = {f"{host}: port {port}" for port in one.first.ports}
    found.add(f"{host}: {_name(one)}")
    if not one.first.sidecar:
        found |= {f"{host}: GPU {number}" for number in one.first.gpus}
    return found
