"""What the state branch tells: for every commit a sentence that a person can read, details, and trailers.

``git log`` on that branch alone is the fleet's history; nothing here is read back to decide anything.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from llmgw.model.ids import Commit
from llmgw.model.plan import Action, Plan, Step, StepKind, StepOutcome, StepResult, sendable
from llmgw.model.record import Outcome, PassRecord, Record
from llmgw.model.report import JournalEntry, Observed
from llmgw.model.struct import Struct

SUBJECT_LENGTH = 120
LINE_LENGTH = 300
LINES = 60
"""Bounds of what one commit tells: a fleet of thousands must still have a log that people read."""

NEWS = frozenset({"agent-started", "shard-exit", "manual", "policy", "problem"})
"""Kinds of journal entries that happened by themselves; the others only echo what was commanded."""


class _Verb(Struct):
    now: str
    past: str
    noun: str  # of what is counted


_VERBS: Mapping[StepKind, _Verb] = {
    StepKind.START: _Verb(now="Start", past="Started", noun="replica"),
    StepKind.STOP: _Verb(now="Stop", past="Stopped", noun="replica"),
    StepKind.DRAIN: _Verb(now="Drain", past="Drained", noun="replica"),
    StepKind.ADAPTERS: _Verb(now="Change the adapters of", past="Changed the adapters of", noun="replica"),
    StepKind.PUBLISH: _Verb(now="Publish", past="Published", noun="replica"),
    StepKind.BOOTSTRAP: _Verb(now="Start the agent", past="Started the agent", noun=""),
    StepKind.INSTALL: _Verb(now="Install engines", past="Installed engines", noun=""),
    StepKind.FETCH: _Verb(now="Fetch weights", past="Fetched weights", noun=""),
    StepKind.FORGET: _Verb(now="Clean up after", past="Cleaned up after", noun="replica"),
    StepKind.CANCEL: _Verb(now="Drop failed jobs", past="Dropped failed jobs", noun=""),
    StepKind.COLLECT: _Verb(now="Remove unused files", past="Removed unused files", noun=""),
}
_SMALL = frozenset({StepKind.BOOTSTRAP, StepKind.INSTALL, StepKind.FETCH, StepKind.FORGET, StepKind.CANCEL})
"""Told only where nothing greater is."""


def sentence(steps: Iterable[Step], *, past: bool = False) -> str:
    """``Start 2 replicas of chat on gpu01 and gpu02; stop 1 replica of old on gpu03``."""
    told = [step for step in steps if step.kind in _VERBS]
    great = [step for step in told if not _is_small(step)]
    groups: defaultdict[tuple[StepKind, str], list[Step]] = defaultdict(list)
    for step in great or told:
        groups[step.kind, _about(step)].append(step)
    order = list(_VERBS)
    clauses = [
        _clause(kind, about, group, past=past)
        for (kind, about), group in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
    ]
    if not clauses:
        return ""
    text = "; ".join([clauses[0], *(lower(clause) for clause in clauses[1:])])
    return shortened(text, SUBJECT_LENGTH)


def _is_small(step: Step) -> bool:
    return step.kind in _SMALL or (step.kind is StepKind.PUBLISH and step.replica is None)


def _about(step: Step) -> str:
    """What a clause is about: a model, by its replicas or as such; nothing for what is only counted by node."""
    if not _VERBS[step.kind].noun:
        return ""
    if step.kind is StepKind.PUBLISH and step.replica is None:
        return step.id.removeprefix("publish ")
    return step.model or ""


def _clause(kind: StepKind, about: str, steps: Sequence[Step], *, past: bool) -> str:
    verb = _VERBS[kind]
    if kind is StepKind.PUBLISH and steps[0].replica is None:
        return f"{'Recorded' if past else 'Record'} {about.replace('/', ' ', 1)}"
    words = [verb.past if past else verb.now]
    if verb.noun:
        count = len({step.replica or step.shard for step in steps})
        words.append(f"{count} {verb.noun}{'s' * (count != 1)} of {about or 'a model that is gone'}")
    nodes = sorted({step.node for step in steps if step.node})
    if nodes:
        words.append(f"on {_enumerate(nodes)}")
    return " ".join(words)


def _enumerate(names: Sequence[str], most: int = 3) -> str:
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def shortened(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def intent_sentence(plan: Plan) -> str:
    """What a pass is about to do."""
    return sentence(_sent(plan)) or "Record what was found"


def intent_message(plan: Plan, passed: PassRecord, *, news: Sequence[str] = ()) -> str:
    """The commit before the first command."""
    return _message(intent_sentence(plan), _diverged(passed), _changes(plan), _since(news), passed=passed)


def _sent(plan: Plan) -> list[Step]:
    """What this pass itself carries out; the rest of the plan is left to later ones."""
    return list(sendable(plan.steps))


def outcome_message(
    plan: Plan, passed: PassRecord, results: Mapping[str, StepResult], *, news: Sequence[str] = ()
) -> str:
    """The commit after the last command."""
    done = [step for step in plan.commands if _is(results, step, StepOutcome.DONE)]
    wrong = [step for step in plan.commands if _is(results, step, StepOutcome.FAILED)]
    unknown = [step for step in plan.commands if _is(results, step, StepOutcome.UNKNOWN)]
    subject = sentence(done, past=True)
    if wrong:
        subject = (
            f"{subject}; not: {lower(sentence(wrong))}" if subject else f"Could not {lower(sentence(wrong))}"
        )
    if unknown:
        text = f"not known: {lower(sentence(unknown))}"
        subject = f"{subject}; {text}" if subject else f"N{text[1:]}"
    if passed.outcome is Outcome.INTERRUPTED:
        subject = f"Interrupted: {lower(subject) or 'nothing was commanded'}"
    if passed.outcome is Outcome.SUPERSEDED:
        subject = f"Superseded: {lower(subject) or 'nothing was commanded'}"
    errors = [f"- {error}" for error in passed.errors]
    return _message(
        subject or "Nothing was commanded", _diverged(passed), errors, _since(news), passed=passed
    )


def _diverged(passed: PassRecord) -> list[str]:
    if passed.diverged_from is None:
        return []
    old, new = passed.diverged_from[:12], passed.commit[:12]
    told = "history was rewritten, or this is another branch"
    return [f"Commit {new} does not come after {old}, which was applied before: {told}."]


def recovered_message(passed: PassRecord, plan: Plan | None, results: Mapping[str, StepResult]) -> str:
    """The commit that tells how a pass ended whose controller did not live to tell."""
    subject = f"Take over from serial {passed.serial} of {passed.holder}, which did not finish"
    lines = [
        f"- {step.id}{f' on {step.node}' if step.node else ''}: {_became(results.get(step.id))}"
        for step in (plan.commands if plan else ())
    ]
    return _message(subject, lines, passed=passed)


def _became(result: StepResult | None) -> str:
    match result.outcome if result else None:
        case StepOutcome.DONE:
            return "was carried out"
        case StepOutcome.UNKNOWN:
            return "unknown, the node does not answer"
        case _:
            return "was not carried out"


def news_message(news: Sequence[str], passed: PassRecord | None, *, ended: bool = False) -> str:
    """A commit by itself for what happened without anybody commanding it. ``ended``: with it, what the last pass had set
    going is done."""
    more = f" (and {len(news) - 1} more)" if len(news) > 1 else ""
    subject = f"{shortened(news[0], SUBJECT_LENGTH)}{more}" if news else "Note what was found"
    details = [f"- {line}" for line in news[:LINES]] if len(news) > 1 else []
    if ended:
        return _message(subject, details, passed=passed)
    return _message(subject, details, trailers_of=passed)


def recover_message(record: Record, *, left_alone: Sequence[str], unreachable: Mapping[str, str]) -> str:
    """The first commit of a record that was lost."""
    count = len(record.replicas)
    found = f"{count} replica{'s' * (count != 1)} on {len(record.nodes)} node{'s' * (len(record.nodes) != 1)}"
    return _message(
        f"Rebuild the record from the agents: {found}",
        [f"- {replica.id}: {replica.phase.value}" for replica in record.replicas.values()],
        [f"- left alone: {line}" for line in left_alone],
        [f"- not asked: {name}: {error}" for name, error in sorted(unreachable.items())],
        passed=record.last_pass,
    )


def happened(observed: Observed) -> tuple[str, ...]:
    """What the agents' journals tell that nobody commanded, since the record was written."""
    entries: list[tuple[str, JournalEntry]] = [
        (name, entry)
        for name, node in observed.nodes.items()
        if node.report is not None
        for entry in node.report.journal
        if entry.kind in NEWS and not entry.told
    ]
    entries.sort(key=lambda item: (item[1].at, item[0], item[1].number))
    return tuple(
        shortened(
            f"{entry.at:%Y-%m-%d %H:%M:%S} {name}: {_about_entry(name, entry)}{entry.text}", LINE_LENGTH
        )
        for name, entry in entries
    )


def _about_entry(node: str, entry: JournalEntry) -> str:
    return "" if entry.subject in ("", node) else f"{entry.subject}: "


def _changes(plan: Plan) -> list[str]:
    signs = [
        f"{change.action.value} {change.address}: {change.reason}"
        for change in plan.changes
        if change.action is not Action.BLOCKED
    ]
    blocked = [f"! {change.address}: {change.reason}" for change in plan.blocked]
    return [*signs, *blocked]


def _since(news: Sequence[str]) -> list[str]:
    return ["Since the last record:", *(f"- {line}" for line in news)] if news else []


def _message(
    subject: str,
    *paragraphs: Sequence[str],
    passed: PassRecord | None = None,
    trailers_of: PassRecord | None = None,
) -> str:
    blocks = [shortened(subject, SUBJECT_LENGTH * 2)]
    for lines in paragraphs:
        if lines:
            kept = [shortened(line, LINE_LENGTH) for line in lines[:LINES]]
            more = [f"… and {len(lines) - LINES} more"] if len(lines) > LINES else []
            blocks.append("\n".join([*kept, *more]))
    if passed is not None:
        blocks.append("\n".join(f"Llmgw-{name}: {value}" for name, value in trailers(passed)))
    elif trailers_of is not None:
        blocks.append(f"Llmgw-Serial: {trailers_of.serial}\nLlmgw-Manifests: {trailers_of.commit}")
    return "\n\n".join(blocks) + "\n"


def trailers(passed: PassRecord) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str | Commit]] = [
        ("Serial", str(passed.serial)),
        ("Manifests", passed.commit),
        ("Plan", passed.plan_digest[:12]),
        ("Trigger", passed.trigger),
        ("Actor", shortened(passed.actor, SUBJECT_LENGTH)),
    ]
    pairs += [("Signer", shortened(passed.signer, SUBJECT_LENGTH))] if passed.signer else []
    pairs += [("Diverged-From", passed.diverged_from)] if passed.diverged_from else []
    pairs += [("Targets", ", ".join(passed.targets))] if passed.targets else []
    pairs += [("Replaced", ", ".join(passed.replaced))] if passed.replaced else []
    pairs += [("Override", shortened(passed.override, SUBJECT_LENGTH))] if passed.override else []
    if passed.outcome is not None:
        pairs.append(("Outcome", passed.outcome.value))
    return [(name, str(value)) for name, value in pairs]


def _is(results: Mapping[str, StepResult], step: Step, *outcomes: StepOutcome) -> bool:
    result = results.get(step.id)
    return result is not None and result.outcome in outcomes


def lower(text: str) -> str:
    return text[:1].lower() + text[1:]
