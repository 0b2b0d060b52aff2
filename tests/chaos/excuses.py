"""Why a process of a shard may end: each thing that was done to one is noted before it is done."""

import threading
import time
from typing import Final

from llmgw.model.ids import ShardId, parse_shard_id
from llmgw.model.struct import Struct
from tests.chaos.seen import Seen

ALWAYS: Final = frozenset({"flaky"})
"""Models whose engines end by themselves."""


class Deed(Struct):
    """``shard`` empty: to the whole host. ``pid`` 0: to all of the shard."""

    at: float
    what: str
    host: str
    shard: str = ""
    pid: int = 0


class Excuses:
    """Written by who does harm, read by who watches."""

    def __init__(self) -> None:
        self._deeds: list[Deed] = []
        self._ending: set[str] = set()
        self._lock = threading.Lock()

    def note(self, what: str, *, host: str, shard: str = "", pid: int = 0) -> None:
        with self._lock:
            self._deeds.append(Deed(at=time.monotonic(), what=what, host=host, shard=shard, pid=pid))

    def everything_may_end(self) -> None:
        """Git asks for nothing any more."""
        with self._lock:
            self._ending.add("Git asks for it no more")

    def of(self, one: Seen, *, shard: str, begun: float) -> str:
        """Why it may have ended; empty: there is no reason. What was done before it began is none."""
        with self._lock:
            deeds = [deed for deed in self._deeds if deed.at >= begun]
            if self._ending:
                return next(iter(self._ending))
        if _model(shard) in ALWAYS:
            return "its engine ends by itself"
        for deed in reversed(deeds):
            if deed.host == one.host and not deed.shard:
                return deed.what
            if deed.host == one.host and deed.shard == shard and deed.pid in (0, one.pid):
                return deed.what
            if _same_gang(deed, shard):
                return f"{deed.what}, to another rank of its replica"
        return ""

    def ranks_on(self, host: str, shards: set[str], what: str) -> None:
        """What is done to a host is done to each of its shards, so that the other ranks of their replicas may end."""
        for shard in sorted(shards):
            self.note(what, host=host, shard=shard)


def _model(shard: str) -> str:
    return shard.partition("-")[0]


def _same_gang(deed: Deed, shard: str) -> bool:
    mine, other = parse_shard_id(ShardId(shard)), parse_shard_id(ShardId(deed.shard))
    return mine is not None and other is not None and mine[0] == other[0] and mine[1] != other[1]
