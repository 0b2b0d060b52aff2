"""A plan as text. Reads the same plan that JSON is made from and decides nothing.

``paint(text, sign)`` may colour a line by its sign; without one the text is plain. What exceeds a screen is counted,
never left out in silence.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from llmgw.core.amounts import at, names, plural, size
from llmgw.model.launch import LaunchSpec, Process
from llmgw.model.plan import Action, Change, Decision, FieldChange, Origin, Plan, Rejection, Step
from llmgw.model.record import RankPlacement

Paint = Callable[[str, str], str]
"""(text, sign) -> text; the sign is an :class:`Action`'s value, or empty."""

LEGEND = {
    Action.CREATE: "create",
    Action.UPDATE: "change in place",
    Action.REMOVE: "remove",
    Action.CREATE_BEFORE_DESTROY: "create before destroy",
    Action.DESTROY_BEFORE_CREATE: "destroy before create",
    Action.MOVE: "move",
    Action.BLOCKED: "blocked",
}
STEPS_SHOWN = 40
"""Steps that are listed one by one; a longer plan is told in numbers, wave by wave."""
REJECTIONS_SHOWN = 12
VALUE_SHOWN = 400
COMMANDS = (
    "Commands (values that only the node or the sender knows are shown as ${…}; a variable for which nobody is named is the "
    "engine's own):"
)
_SAFE = re.compile(r"^[\w@%+=:,./${}-]+$")


def plain(text: str, sign: str) -> str:
    del sign
    return text


def plan_text(plan: Plan, *, show_commands: bool = False, paint: Paint = plain) -> str:
    """The whole plan for people, ended by a line break."""
    lines = [_title(plan), *_freedom(plan)]
    lines += _drift(plan, paint)
    lines += _changes(plan, paint)
    lines += _section(
        "Left out",
        (f"{it.action.value:>3} {it.address}  {it.keyword}: {it.reason}" for it in plan.left_out),
    )
    lines += _section("On its way", plan.waiting)
    lines += _section(
        "Warnings", (f"{note.where}: {note.text}" if note.where else note.text for note in plan.warnings)
    )
    lines += _steps(plan)
    if show_commands:
        lines += _commands(plan)
    lines += ["", summary(plan)]
    return "\n".join(lines) + "\n"


def _title(plan: Plan) -> str:
    basis = plan.basis
    asked = f"commit {basis.commit[:10]}" if basis.commit is not None else "the work tree"
    asked = f"{asked}, signed by {basis.signer}," if basis.signer else asked
    base = f"serial {basis.serial}" if basis.serial else "an empty record"
    if basis.offline:
        when = f", {at(basis.record_at)}" if basis.record_at is not None else ""
        return f"Plan for {asked}, offline: as of {base}{when}. Nodes were not asked; it can't be applied."
    return f"Plan for {asked} on {base}."


def _freedom(plan: Plan) -> list[str]:
    """Whether changes may be made now, and which this plan is about."""
    lines = [f"Changes: {plan.gate.text}."] if plan.gate is not None else []
    lines += [f"Made all the same: {plan.override}."] if plan.override else []
    return lines + ([f"Only {names(plan.targets)}, and what that needs."] if plan.targets else [])


def _section(title: str, entries: Iterable[str]) -> list[str]:
    listed = list(entries)
    return ["", f"{title}:", *(f"  {entry}" for entry in listed)] if listed else []


def _drift(plan: Plan, paint: Paint) -> list[str]:
    entries = [
        paint(f"{drift.address}  {drift.keyword}: {drift.text}", Action.UPDATE.value) for drift in plan.drift
    ]
    return _section("Changed outside of llmgw", entries)


# ---- changes -----------------------------------------------------------------------------------------


def _changes(plan: Plan, paint: Paint) -> list[str]:
    if not plan.changes:
        return []
    used = {change.action for change in plan.changes}
    legend = "   ".join(f"{action.value} {word}" for action, word in LEGEND.items() if action in used)
    lines = ["", f"Legend:  {legend}"]
    for change in plan.changes:
        lines += ["", *_change(change, paint)]
    return lines


def _change(change: Change, paint: Paint) -> Iterator[str]:
    sign = change.action.value
    first, *more = change.reason.split("\n")
    yield paint(f"{sign:>3} {change.address}  {change.keyword}: {first}", sign)
    yield from (f"      | {line}" for line in more)
    if change.would is not None:
        yield _entry("would", f"{change.would.value} {LEGEND[change.would]}")
    if change.replica or change.previous:
        yield _entry("replica", _who(change))
    yield from (_entry("evicts", replica) for replica in change.evicts)
    yield from (_field(each) for each in change.fields)
    if change.placement is not None:
        yield from _placement(change.placement)
    if change.outage:
        yield _entry("outage", change.outage)
    if change.where is not None:
        yield _entry("from", str(change.where))


def _entry(title: str, text: str) -> str:
    return f"      {title:<9}{text}"


def _who(change: Change) -> str:
    if change.previous and change.replica:
        return f"{change.previous} -> {change.replica}"
    return change.replica or change.previous or ""


def _field(change: FieldChange) -> str:
    mark = "   # forces replacement" if change.forces_replacement else ""
    return _entry("field", f"{change.path}: {_value(change.old)} -> {_value(change.new)}{mark}")


def _value(text: str | None) -> str:
    if text is None:
        return "(not set)"
    return text if len(text) <= VALUE_SHOWN else f"{text[:VALUE_SHOWN]}… ({len(text)} characters)"


def _placement(decision: Decision) -> Iterator[str]:
    for rank in decision.ranks:
        yield _entry("place", _rank(rank, alone=len(decision.ranks) == 1))
    yield from (_entry("because", reason) for reason in decision.reasons)
    shown = decision.rejections[:REJECTIONS_SHOWN]
    yield from (_entry("not on", _rejection(each)) for each in shown)
    if hidden := len(decision.rejections) - len(shown):
        yield _entry("", f"and {hidden} more; --json tells all of them")


def _rank(rank: RankPlacement, *, alone: bool) -> str:
    parts = [rank.node if alone else f"rank {rank.rank} on {rank.node}"]
    parts += [gpu.uuid if gpu.memory is None else f"{size(gpu.memory)} of {gpu.uuid}" for gpu in rank.gpus]
    if not rank.gpus:
        parts.append("CPU")
    if rank.memory:
        parts.append(f"{size(rank.memory)} of memory")
    if rank.ports:
        parts.append(f"{'port' if len(rank.ports) == 1 else 'ports'} {names(map(str, rank.ports))}")
    return ", ".join(parts)


def _rejection(rejection: Rejection) -> str:
    need = f"; needs {rejection.need}" if rejection.need else ""
    have = f"; {rejection.have}" if rejection.have else ""
    return f"{rejection.node}: {rejection.reason}{need}{have}"


# ---- steps -------------------------------------------------------------------------------------------


def _steps(plan: Plan) -> list[str]:
    if not plan.steps:
        return []
    if len(plan.steps) <= STEPS_SHOWN:
        return ["", "Steps:", *(f"  {step.wave + 1:>2}. {_step(step)}" for step in plan.steps)]
    counts: dict[int, Counter[str]] = {}
    for step in plan.steps:
        counts.setdefault(step.wave, Counter())[step.kind.value] += 1
    told = (
        f"{wave + 1:>2}. " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        for wave, kinds in sorted(counts.items())
    )
    return ["", f"Steps ({len(plan.steps)}; --json tells each):", *(f"  {line}" for line in told)]


def _step(step: Step) -> str:
    where = f" on {step.node}" if step.node is not None and not step.id.endswith(step.node) else ""
    return f"{step.id}{where}  ({step.reason})"


def summary(plan: Plan) -> str:
    """The last line: how much of what."""
    counts = Counter(change.action for change in plan.changes)
    replaced = counts[Action.CREATE_BEFORE_DESTROY] + counts[Action.DESTROY_BEFORE_CREATE]
    told = [
        f"{count} to {word}"
        for count, word in (
            (counts[Action.CREATE], "create"),
            (counts[Action.UPDATE], "change in place"),
            (replaced, "replace"),
            (counts[Action.MOVE], "move"),
            (counts[Action.REMOVE], "remove"),
        )
        if count
    ]
    told += [f"{counts[Action.BLOCKED]} blocked"] if counts[Action.BLOCKED] else []
    same = f"{plural(plan.unchanged, 'replica')} unchanged" if plan.unchanged else ""
    if told:
        return f"Plan: {', '.join(told)}." + (f" {same}." if same else "")
    if plan.steps or plan.waiting:
        return f"No changes; {plural(len(plan.waiting), 'thing')} on its way." + (f" {same}." if same else "")
    asked = plan.basis.commit[:10] if plan.basis.commit is not None else "the work tree"
    return f"No changes. The fleet is what {asked} asks for." + (f" {same}." if same else "")


# ---- commands ----------------------------------------------------------------------------------------


def _commands(plan: Plan) -> list[str]:
    lines: list[str] = []
    for step in plan.steps:
        if step.install is not None:
            packages = " ".join(step.install.requirements) or "no packages"
            programs = ", ".join(program.install_as for program in step.install.programs)
            lines += ["", f"{step.id}:", f"  {packages}" + (f"; programs {programs}" if programs else "")]
        elif step.fetch is not None:
            lines += ["", f"{step.id}:", f"  {step.fetch.description}"]
        elif step.launch is not None:
            lines += ["", f"{step.id} on {step.node}:", *_launch(step.launch, step.origins)]
    return ["", COMMANDS, *lines] if lines else []


def _launch(spec: LaunchSpec, origins: tuple[Origin, ...]) -> Iterator[str]:
    for process in spec.processes:
        own = tuple(origin for origin in origins if origin.process == process.name)
        yield from _process(process, own, alone=len(spec.processes) == 1)


def _process(process: Process, origins: tuple[Origin, ...], *, alone: bool) -> Iterator[str]:
    if not alone:
        yield f"  # {process.name}{' (optional)' if process.optional else ''}"
    if process.wait_for is not None:
        yield f"  # waits for {process.wait_for.host}:{process.wait_for.port}"
    for file in process.files:
        yield f"  # file {file.path}, {plural(len(file.content), 'character')}:"
        yield from (f"  #   {_value(line)}" for line in file.content.replace("$$", "$").splitlines())
    yield from (f"  # {_origin(origin)}" for origin in origins)
    yield from (f"  {name}={quoted(value)} \\" for name, value in sorted(process.env.items()))
    yield f"  {' '.join(quoted(word) for word in process.argv)}"


def _origin(origin: Origin) -> str:
    """Whose word a variable is. Those that are the engine's own are not told."""
    over = f"; over {', '.join(origin.over)}" if origin.over else ""
    return f"{origin.name}: {origin.source}, {origin.reason}{over}"


def quoted(word: str) -> str:
    """As a shell would need it, but late values stay readable: they are filled in before any shell could see them. A dollar
    sign that stays one is shown as the one that the process gets."""
    if "$$" not in word and _SAFE.match(word):
        return word
    return "'" + word.replace("$$", "$").replace("'", "'\"'\"'") + "'"
