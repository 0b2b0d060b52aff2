"""A recorded replica and how it is doing; which of several copies of one ordinal counts."""

from collections.abc import Iterable

from llmgw.core.seen.condition import Condition, Health
from llmgw.model.record import ReplicaPhase, ReplicaRecord
from llmgw.model.struct import Struct


class Copy(Struct):
    """A recorded replica and how it is doing."""

    replica: ReplicaRecord
    state: Condition

    @property
    def leaving(self) -> bool:
        return self.replica.phase in (ReplicaPhase.DRAINING, ReplicaPhase.STOPPING)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rank.node for rank in self.replica.ranks))

    @property
    def address(self) -> str:
        return f"model/{self.replica.model}/{self.replica.ordinal}"


def serves(copy: Copy) -> bool:
    """Also a gang whose leader answers while a node of another rank has been silent for too long: for all that is known."""
    leader = copy.state.leader
    by_leader = copy.state.given_up and leader is not None and leader.state == Health.READY.value
    answers = by_leader and copy.replica.ranks[0].node not in copy.state.unknown_nodes
    return (copy.state.health is Health.READY or answers) and not copy.leaving


def broken(copy: Copy) -> bool:
    """Whether it is a gang that has lost a rank: nothing on its nodes starts it again, and all of it must go."""
    return len(copy.replica.ranks) > 1 and copy.state.health is Health.FAILED and not copy.state.lost


def best_current(copies: Iterable[Copy]) -> Copy | None:
    """Of several that are what is asked for, as when a node comes back after its replicas were started elsewhere."""
    return max(copies, key=lambda copy: (serves(copy), copy.replica.n), default=None)


def best_old(copies: list[Copy]) -> Copy | None:
    """The one to keep until its successor is ready: ready before not, newer before older."""
    served = [copy for copy in copies if copy.replica.phase is ReplicaPhase.SERVING]
    alive = [copy for copy in served if serves(copy) or copy.state.health is Health.COMING]
    return max(alive, key=lambda copy: (serves(copy), copy.replica.n), default=None)
