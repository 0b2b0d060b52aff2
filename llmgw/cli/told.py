"""Plans and outcomes in the words of the command line."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from llmgw.cli import output
from llmgw.controller.passes.prepare import Applied
from llmgw.controller.passes.settle import Settled
from llmgw.controller.passes.story import lower, sentence
from llmgw.controller.passes.verdict import Verdict
from llmgw.controller.repo.records import HistoryEntry
from llmgw.core.amounts import at, names
from llmgw.core.show import render
from llmgw.core.show.status import Status, status
from llmgw.model.desired import Desired
from llmgw.model.ids import digest
from llmgw.model.plan import Plan, StepResult
from llmgw.model.record import Outcome
from llmgw.model.report import Observed
from llmgw.wire.codec import to_json

FORMAT_VERSION = 1


def plan_text(plan: Plan, *, show_commands: bool = False) -> str:
    return render.plan_text(plan, show_commands=show_commands, paint=output.paint)


def nothing_asked(desired: Desired) -> str:
    """A note for a commit without any node and model: mostly one whose manifests lie elsewhere. Else nothing."""
    if desired.nodes or desired.models:
        return ""
    asked = f"commit {desired.commit[:10]}" if desired.commit is not None else "the work tree"
    return (
        f"Note: {asked} has no manifest of a node or a model where they are looked for. Manifests elsewhere are named by "
        "--path; `llmgw init DIR` writes a first set"
    )


def plan_key(plan: Plan) -> str:
    """The same for two plans that do the same for the same reasons, whenever they were made."""
    return digest(to_json((plan.changes, plan.steps)))


def summary(settled: Settled, ended: Verdict) -> str:
    """The last words of an apply."""
    last = settled.last
    commit = (last.prepared.desired.commit or "")[:10]
    if not settled.worked:
        if ended.code == output.DONE:
            waits = f"; on its way: {'; '.join(last.plan.waiting)}" if last.plan.waiting else ""
            return f"Nothing to do: the fleet is what {commit} asks for{waits}."
        return "Nothing was done."
    serial = f"serial {last.record.serial}"
    if last.plan.targets and ended.code == output.DONE:
        commit = f"{names(last.plan.targets)} of {commit}"
    if ended.code != output.DONE:
        return f"Applied {commit} in part ({serial}). What is left is above; llmgw status shows the rest."
    if last.outcome is Outcome.ACCEPTED:
        sent = lower(sentence((step for step in last.plan.commands if step.id in last.done), past=True))
        return f"Commands for {commit} are accepted ({serial}): {sent}. See llmgw status for how it goes on."
    serving = [f"  {it.served_name}: {it.url}" for it in last.record.endpoints if it.state == "ready"]
    models = "\n".join(["Serving:", *serving, "Keys: llmgw endpoints"]) if serving else "Nothing is served."
    return f"Applied {commit} ({serial}).\n{models}"


def as_json(settled: Settled, ended: Verdict) -> dict[str, Any]:
    """The last pass, and below ``earlier`` what those before it did."""
    last = settled.last
    return {
        "formatVersion": FORMAT_VERSION,
        "exitCode": ended.code,
        "commit": last.prepared.desired.commit,
        "serial": last.record.serial,
        "outcome": last.outcome.value if last.outcome else None,
        "worked": settled.worked,
        "passes": settled.passes,
        "errors": list(ended.errors),
        "halted": last.halted or None,
        "steps": _steps(last.results),
        "earlier": [
            {"serial": it.serial, "outcome": it.outcome.value, "steps": _steps(it.results)}
            for it in settled.earlier
        ],
        "blocked": [
            {"address": change.address, "keyword": change.keyword, "reason": change.reason}
            for change in last.plan.blocked
        ],
        "waiting": list(last.plan.waiting),
    }


def _steps(results: Mapping[str, StepResult]) -> dict[str, Any]:
    return {
        name: {"outcome": result.outcome.value, "error": result.error or None}
        for name, result in results.items()
    }


def status_text(known: Applied, observed: Observed, now: datetime) -> str:
    return render.status_text(_status(known, observed, now), paint=output.paint)


def status_json(known: Applied, observed: Observed, now: datetime) -> dict[str, Any]:
    return {"formatVersion": FORMAT_VERSION, **to_json(_status(known, observed, now))}


def _status(known: Applied, observed: Observed, now: datetime) -> Status:
    return status(known.record, observed, now=now, desired=known.desired, gate=known.gate)


def history_rows(entries: Sequence[HistoryEntry], limit: int) -> str:
    """One row a serial: what was commanded, and the last word on how it ended. What happened by itself has rows of its
    own."""
    rows: list[_Row] = []
    place: dict[str, int] = {}
    for entry in entries:  # newest first
        trailers = dict(entry.trailers)
        serial, outcome = trailers.get("Llmgw-Serial", ""), trailers.get("Llmgw-Outcome", "")
        commit = trailers.get("Llmgw-Manifests", "")[:10]
        if "Llmgw-Plan" not in trailers:
            rows.append((serial, _moment(entry.at), "", commit, "", entry.subject))
        elif serial not in place:
            place[serial] = len(rows)
            ended = outcome or "not ended"
            rows.append((serial, _moment(entry.at), _by(trailers), commit, ended, _row_subject(entry)))
        elif outcome:  # the commit that tells what was commanded, older than the one that tells its end
            rows[place[serial]] = (*rows[place[serial]][:5], _row_subject(entry))
    return render.history_text(rows[:limit])


_Row = tuple[str, str, str, str, str, str]


def _by(trailers: Mapping[str, str]) -> str:
    """Who, and what set it off where that was no person."""
    trigger = trailers.get("Llmgw-Trigger", "manual")
    return trailers.get("Llmgw-Actor", "") + (f" ({trigger})" if trigger != "manual" else "")


def _row_subject(entry: HistoryEntry) -> str:
    left = dict(entry.trailers).get("Llmgw-Diverged-From")
    return f"{entry.subject} (history diverged from {left[:10]})" if left else entry.subject


def _moment(iso: str) -> str:
    return at(datetime.fromisoformat(iso)) if iso else ""
