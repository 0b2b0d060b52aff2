"""What an apply came to: an exit code, and what people are told about what went wrong."""

from collections.abc import Sequence

from llmgw.controller.passes.settle import Settled
from llmgw.controller.passes.values import PassResult
from llmgw.model.exitcode import BLOCKED, CHANGES, ERROR, PART, worst
from llmgw.model.plan import Change, StepKind, StepOutcome
from llmgw.model.struct import Struct

REJECTIONS = 6
OUTPUT_LINES = 20


class Verdict(Struct):
    """``errors`` are complete messages, the most important first."""

    code: int
    errors: tuple[str, ...] = ()


def verdict(settled: Settled) -> Verdict:
    """0 done; 1 nothing could be done; 2 a saved plan's first wave is done, plan again; 5 done in part; 6 all that
    was left is blocked. Where several hold, the worst counts, and all are told."""
    last = settled.last
    blocked = last.plan.blocked
    errors = [*([last.unrecorded] if last.unrecorded else []), *_troubles(last)]
    errors += [_blocked(change, last) for change in blocked]
    codes = set()
    if last.unrecorded:
        codes.add(ERROR)
    if last.errors or last.halted:
        codes.add(PART if settled.worked or _may_have_worked(last) else ERROR)
    if blocked:
        codes.add(PART if settled.worked else BLOCKED)
    if not codes and settled.early and _plan_again(last):
        codes.add(CHANGES)
        errors.append(
            "the nodes' agents are up now, and what they can take is known: plan again for the rest"
        )
    return Verdict(code=worst(codes), errors=tuple(errors))


def _troubles(last: PassResult) -> Sequence[str]:
    told = list(last.errors)
    if last.halted:
        told.insert(0, last.halted)
    return told


def _may_have_worked(last: PassResult) -> bool:
    """Something was sent, and nobody heard what became of it."""
    return any(it.outcome is StepOutcome.UNKNOWN for it in last.results.values())


def _plan_again(last: PassResult) -> bool:
    """Nodes had no agent: what follows could not be known when the plan was made."""
    started = {step.node for step in last.plan.steps if step.kind is StepKind.START}
    bootstrapped = {step.node for step in last.plan.steps if step.kind is StepKind.BOOTSTRAP}
    return bool(bootstrapped - started)


def _blocked(change: Change, last: PassResult) -> str:
    """With the numbers: where it does not fit, or what the replica wrote before it failed."""
    reason, *lines = change.reason.split("\n")
    text = f"{change.address} is blocked: {reason.removesuffix(':')}"
    if change.where is not None:
        text = f"{change.where}: {text}"
    rejections = change.placement.rejections if change.placement is not None else ()
    for it in rejections[:REJECTIONS]:
        numbers = "".join(f"; {part}" for part in (it.need and f"needs {it.need}", it.have) if part)
        text += f"\n    not on {it.node}: {it.reason}{numbers}"
    if len(rejections) > REJECTIONS:
        text += f"\n    and not on {len(rejections) - REJECTIONS} more; llmgw plan --json tells all of them"
    output = lines or _output(change, last)
    if output:
        text += "\nThe last lines of its output:" + "".join(
            f"\n    {line}" for line in output[-OUTPUT_LINES:]
        )
    return text


def _output(change: Change, last: PassResult) -> list[str]:
    model = last.record.models.get(change.model or "")
    return list(model.held.last_lines) if model is not None and model.held is not None else []
