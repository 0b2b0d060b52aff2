"""A step of the plan as a message to an agent. The command id is the serial and the step's id, so that a repeated
command is the same command."""

from collections.abc import Mapping
from typing import Any

from llmgw.model.ids import Fence, ShardId
from llmgw.model.plan import Step, StepKind
from llmgw.wire.messages import (
    AdaptersParams,
    CancelParams,
    CollectParams,
    Command,
    DrainParams,
    FetchParams,
    ForgetParams,
    InstallParams,
    StartParams,
    StopParams,
)


class UnfinishedStepError(ValueError):
    """A step that does not hold what its kind needs: a plan that no planner of this version made."""


def command_of(step: Step, fence: Fence) -> Command:
    return Command(id=f"{fence.serial}-{step.id}", fence=fence)


def message_of(  # noqa: PLR0911 - a table: one answer a kind of step
    step: Step, fence: Fence, *, secrets: Mapping[str, str]
) -> tuple[str, Any]:
    """Method and parameters of a step that is sent to an agent."""
    command = command_of(step, fence)
    match step.kind:
        case StepKind.INSTALL if step.install is not None:
            return "install", InstallParams(command=command, spec=step.install)
        case StepKind.FETCH if step.fetch is not None:
            return "fetch", FetchParams(command=command, spec=step.fetch, secrets=secrets)
        case StepKind.START if step.launch is not None:
            return "start", StartParams(command=command, spec=step.launch, secrets=secrets)
        case StepKind.DRAIN if step.drain_timeout is not None:
            return "drain", DrainParams(command=command, shard=_shard(step), timeout=step.drain_timeout)
        case StepKind.STOP:
            return "stop", StopParams(command=command, shard=_shard(step), reason=step.reason)
        case StepKind.ADAPTERS if step.adapters is not None:
            return "adapters", AdaptersParams(command=command, shard=_shard(step), adapters=step.adapters)
        case StepKind.COLLECT if step.collect:
            return "collect", CollectParams(command=command, names=step.collect)
        case StepKind.CANCEL if step.job is not None:
            return "cancel", CancelParams(command=command, job=step.job)
        case StepKind.FORGET:
            return "forget", ForgetParams(command=command, shard=_shard(step))
        case _:
            raise UnfinishedStepError(
                f"step {step.id} ({step.kind.value}) lacks what it needs to be sent: make the plan again"
            )


def _shard(step: Step) -> ShardId:
    if step.shard is None:
        raise UnfinishedStepError(f"step {step.id} names no shard: make the plan again")
    return ShardId(step.shard)
