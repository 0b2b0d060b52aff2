"""A plan made smaller: to what may be done while changes are frozen, or to the addresses that somebody named.

Frozen, nothing is begun. What was begun is ended, so that a freeze leaves nothing half done: a copy that was told to go
goes, and what was stopped to make room comes, as long as Git's commit is the one that it was stopped for. Engines that
crash are restarted by their agents, which nobody has to command. Everything else waits, told as what it would be.

With targets, the changes of the addresses named are made, and whatever they need of others: installs, downloads, agents,
and what must go first to make room. The rest is told as left out.
"""

from collections.abc import Iterable, Mapping

from llmgw.core.amounts import names
from llmgw.model.addresses import covers, replica_address
from llmgw.model.plan import AWAITS, Action, Change, Gate, Plan, Step, StepKind, sendable
from llmgw.model.problems import StalledError
from llmgw.model.record import Record, ReplicaPhase
from llmgw.model.struct import replace

UNFINISHED = "missing"
"""The keyword of a change that only brings back what was stopped for it: an ordinal that had copies and has none."""

_GOING = frozenset({ReplicaPhase.DRAINING, ReplicaPhase.STOPPING})
_DEPARTURE = AWAITS | {StepKind.DRAIN, StepKind.STOP}
_JOBS = frozenset({StepKind.INSTALL, StepKind.FETCH})


# ---- freezes ---------------------------------------------------------------------------------------


def freeze(made: Plan, gate: Gate, record: Record) -> Plan:
    """``record`` is the one that the plan was made from: what it says is going, is half done."""
    same_commit = made.basis.commit is not None and made.basis.commit == record.commit
    unfinished = {
        change.replica
        for change in made.changes
        if same_commit and change.keyword == UNFINISHED and change.action is Action.CREATE and change.replica
    }
    steps = {step.id: step for step in made.steps}
    seeds = [step for step in made.steps if step.replica in unfinished or _ends_what_goes(step, record)]
    kept: dict[str, Step] = {}
    for step in seeds:
        needed = _needed((step,), steps)
        if step.replica in unfinished or all(each.kind in _DEPARTURE for each in needed.values()):
            kept |= needed
    replicas = {step.replica for step in kept.values() if step.replica}
    changes = tuple(_frozen(change, gate, replicas) for change in made.changes)
    held = {change.address for change in changes if change.would is not None}
    return replace(
        made,
        frozen=True,
        changes=changes,
        steps=_runnable(made, kept),
        waiting=tuple(line for line in made.waiting if about(line) not in held),
        due=None,
    )


def _ends_what_goes(step: Step, record: Record) -> bool:
    replica = record.replicas.get(step.replica or "")
    return (
        replica is not None
        and replica.phase in _GOING
        and (step.kind is StepKind.STOP or step.kind is StepKind.DRAIN)
    )


def _frozen(change: Change, gate: Gate, going_on: set[str]) -> Change:
    goes_on = (change.action is Action.REMOVE and change.previous in going_on) or change.replica in going_on
    if change.action is Action.BLOCKED or goes_on:
        return change
    return replace(
        change,
        action=Action.BLOCKED,
        would=change.action,
        keyword="frozen",
        reason=f"changes are frozen, {gate.text}; else {change.keyword}: {change.reason}",
    )


# ---- targets ---------------------------------------------------------------------------------------


def target(made: Plan, targets: tuple[str, ...]) -> Plan:
    """The changes of these addresses alone, and what they need."""
    steps = {step.id: step for step in made.steps}
    kept = _needed((step for step in made.steps if _is_of(step, targets)), steps)
    involved = {step_address(step) for step in kept.values() if step.kind not in _JOBS}
    left_out: list[Change] = []
    changes: list[Change] = []
    for change in made.changes:
        named = any(covers(each, change.address) for each in targets)
        needed = change.address in involved and change.address != f"model/{change.model}"
        (changes if named or needed else left_out).append(change)
    addresses = {change.address for change in changes} | involved
    return replace(
        made,
        targets=targets,
        changes=tuple(changes),
        left_out=tuple(left_out),
        steps=_runnable(made, kept),
        waiting=tuple(
            line
            for line in made.waiting
            if about(line) in addresses or any(covers(each, about(line)) for each in targets)
        ),
    )


def require_known(targets: Iterable[str], known: Iterable[str]) -> None:
    """StalledError for a target that nothing answers to: a slip of the keyboard must not look like nothing to do."""
    there = sorted(known)
    for each in targets:
        if not any(covers(each, other) for other in there):
            kind = each.partition("/")[0]
            alike = [other for other in there if other.startswith(f"{kind}/") and other.count("/") == 1]
            raise StalledError(
                f"{each} is neither in Git nor in the record; there is {names(alike) if alike else f'no {kind} at all'}"
            )


def _is_of(step: Step, targets: tuple[str, ...]) -> bool:
    address = step_address(step)
    # What is fetched ahead for a model, without a start that waits for it, is of the model as a whole.
    return any(covers(each, address) for each in targets) and step.kind is not StepKind.FORGET


# ---- both ------------------------------------------------------------------------------------------


def step_address(step: Step) -> str:
    """The address of the change that a step is made for."""
    if step.model is not None:
        return replica_address(step.model, step.replica) if step.replica else f"model/{step.model}"
    return f"node/{step.node}" if step.node is not None else step.id.removeprefix("publish ")


def about(line: str) -> str:
    """The address that a line of ``Plan.waiting`` is about: each begins with it."""
    return line.partition(" ")[0].rstrip(":")


def _needed(seeds: Iterable[Step], steps: Mapping[str, Step]) -> dict[str, Step]:
    """The steps and everything that comes before them."""
    found: dict[str, Step] = {}
    todo = list(seeds)
    while todo:
        step = todo.pop()
        if step.id not in found:
            found[step.id] = step
            todo += [steps[name] for name in step.after if name in steps]
    return found


def _runnable(made: Plan, kept: Mapping[str, Step]) -> tuple[Step, ...]:
    """In the plan's order; none when nothing could be done now."""
    steps = tuple(step for step in made.steps if step.id in kept)
    return steps if sendable(steps) else ()
