"""What stands and what was: status and history in words and as JSON."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from llmgw.cli import output
from llmgw.cli.output import FORMAT_VERSION
from llmgw.controller.passes.prepare import Applied
from llmgw.controller.repo.records import HistoryEntry
from llmgw.core.amounts import at
from llmgw.core.show import render_status
from llmgw.core.show.newest import Newest
from llmgw.core.show.status import Status, status
from llmgw.model.report import Observed
from llmgw.wire.codec import to_json


def status_text(known: Applied, observed: Observed, now: datetime, newest: Newest | None) -> str:
    return render_status.status_text(_status(known, observed, now, newest), paint=output.paint)


def status_json(known: Applied, observed: Observed, now: datetime, newest: Newest | None) -> dict[str, Any]:
    return {"formatVersion": FORMAT_VERSION, **to_json(_status(known, observed, now, newest))}


def _status(known: Applied, observed: Observed, now: datetime, newest: Newest | None) -> Status:
    return status(known.record, observed, now=now, desired=known.desired, gate=known.gate, newest=newest)


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
    return render_status.history_text(rows[:limit])


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
