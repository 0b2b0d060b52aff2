"""Steps that say all there is to say by themselves: setting up an agent, stopping a shard, dropping its order. Plans of Git and those
that a person asks for beside them send the same."""

from collections.abc import Iterable

from llmgw.model.ids import ShardId
from llmgw.model.plan import Step, StepKind

BOOTSTRAP_WITHIN = 600.0
"""Seconds to install and start an agent: uploading some 30 MB over a slow line."""
COMMAND_WITHIN = 30.0
"""Seconds for an agent to answer a command; what the command sets going takes its own time."""


def bootstrap(node: str, reason: str) -> Step:
    return Step(
        id=f"bootstrap {node}", kind=StepKind.BOOTSTRAP, node=node, reason=reason, timeout=BOOTSTRAP_WITHIN
    )


def stop(
    shard: ShardId,
    node: str,
    reason: str,
    *,
    model: str,
    replica: str | None = None,
    after: Iterable[str] = (),
) -> Step:
    """``replica`` None: the record does not know it."""
    return Step(
        id=f"stop {shard}",
        kind=StepKind.STOP,
        node=node,
        model=model,
        replica=replica,
        shard=shard,
        reason=reason,
        after=tuple(after),
        timeout=COMMAND_WITHIN,
    )


def forget(shard: ShardId, node: str, reason: str) -> Step:
    return Step(
        id=f"forget {shard}",
        kind=StepKind.FORGET,
        node=node,
        shard=shard,
        reason=reason,
        timeout=COMMAND_WITHIN,
    )
