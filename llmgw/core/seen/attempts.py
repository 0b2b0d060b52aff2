"""When what has failed is tried again, by what the reconciler has counted of it. Never is it given up for good: a spec that once
served may serve again, elsewhere or later.

A single shard is started again on its node by its agent, and a gang by the reconciler, ``giveUpAfter`` times, after pauses that
double up to ``maxBackoff``. Then it is *given up*: a single shard is started elsewhere at once for the first time; after that
both rest for ``maxBackoff``, doubled each time, an hour at most.
"""

from datetime import datetime, timedelta

from llmgw.model.launch import RestartPolicy
from llmgw.model.manifest import ProfileSpec
from llmgw.model.record import Attempts, ModelRecord, ReplicaPhase, ReplicaRecord

UP_FOR_LONG = timedelta(seconds=RestartPolicy().reset_after)
"""What served so long fails for the first time again, as a single shard does on its node."""
LONGEST_REST = 3600.0
"""Seconds: seldom enough to cost a fleet nothing, often enough that what mends itself overnight serves in the morning."""
MOST_DOUBLINGS = 30
"""Doublings of a pause, beyond any maximum: the bound keeps the power small."""


def has_served(replica: ReplicaRecord, model: ModelRecord | None) -> bool:
    """Whether this copy has, or another of its spec: then whatever is wrong with it, the spec may serve."""
    again = model is not None and model.last_good == replica.spec_digest
    return again or replica.phase is not ReplicaPhase.STARTING


def times_given_up(failed: Attempts, profile: ProfileSpec) -> int:
    """How often in a row. A single shard's failures are counted by its agent: each that is counted here is a giving up."""
    earlier = 0 if profile.nodes == 1 else profile.restart.give_up_after - 1
    return max(failed.count - earlier, 0)


def rest(failed: Attempts, profile: ProfileSpec) -> timedelta:
    """The pause before it is tried again, from the moment when the last failure was seen. A single shard whose node was not as
    planned has its second try at once, elsewhere perhaps: only what is refused time and again waits."""
    restart, alone = profile.restart, profile.nodes == 1
    given_up = times_given_up(failed, profile)
    if given_up and not failed.refused:
        rests = given_up - 1 if alone else given_up
        longest = max(LONGEST_REST, restart.max_backoff)
        return timedelta(seconds=_doubled(restart.max_backoff, rests - 1, longest) if rests else 0)
    if alone and failed.refused <= 1:
        return timedelta(0)
    return timedelta(
        seconds=_doubled(restart.backoff, failed.count + failed.refused - 1, restart.max_backoff)
    )


def tried_again(failed: Attempts, profile: ProfileSpec) -> datetime:
    return failed.at + rest(failed, profile)


def _doubled(first: float, times: int, longest: float) -> float:
    doubled: float = first * 2 ** min(max(times, 0), MOST_DOUBLINGS)
    return min(doubled, longest)
