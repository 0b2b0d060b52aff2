"""When changes may be made: the sync windows of a Fleet on the clock of their time zones.

Several windows together: inside any deny window nothing is changed; where there are allow windows, only inside one of them.
A window opens by cron and stays open for its duration of elapsed time, so over a change of the clocks it ends an hour
earlier or later on the wall. An opening that falls into a gap of the clocks is at the gap's end, one that would come twice
is the first of the two.

Everything is compared in UTC: times of one zone compare by what the wall shows, which goes back once a year.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from cronsim import CronSim

from llmgw.model.manifest import FleetSpec, SyncWindow
from llmgw.model.plan import Gate

LOOKED_AHEAD = 100
"""Openings and ends that are looked at for the next change: a season of daily windows."""
CLOCKS_MOVE = timedelta(hours=3)
"""More than any zone's clock goes back at once."""


def gate(fleet: FleetSpec, now: datetime, *, suspended: str = "") -> Gate | None:
    """Whether changes may be made at ``now``; None: the fleet says nothing about it. ``suspended``: who has suspended it,
    as far as that is known."""
    if fleet.suspend:
        return Gate(open=False, text=f"suspended{f' by {suspended}' if suspended else ''}")
    return window(now, fleet.sync_windows)


def window(now: datetime, windows: tuple[SyncWindow, ...]) -> Gate | None:
    """What the sync windows say at ``now``, and until when; None without any."""
    if not windows:
        return None
    is_open = _is_open(now, windows)
    until, because = _next_change(now, windows, is_open=is_open)
    words = "open" if is_open else "closed"
    when = f"until {wall(until, because.time_zone)}" if until is not None else "with no change in sight"
    return Gate(open=is_open, text=f"{words} {when}: {_why(now, windows)}", until=until)


def wall(moment: datetime, zone: str) -> str:
    """``Mon 2026-03-02 17:00 Europe/Istanbul (14:00 UTC)``."""
    there, utc = moment.astimezone(ZoneInfo(zone)), moment.astimezone(timezone.utc)
    text = f"{there:%a %Y-%m-%d %H:%M} {zone}"
    if zone == "UTC":
        return text
    return f"{text} ({utc:%H:%M} UTC)" if there.date() == utc.date() else f"{text} ({utc:%Y-%m-%d %H:%M} UTC)"


def _is_open(now: datetime, windows: tuple[SyncWindow, ...]) -> bool:
    allowing = [each for each in windows if each.kind == "allow"]
    if any(_ends(each, now) for each in windows if each.kind == "deny"):
        return False
    return not allowing or any(_ends(each, now) for each in allowing)


def _why(now: datetime, windows: tuple[SyncWindow, ...]) -> str:
    inside = [each for each in windows if _ends(each, now)]
    denied = [each for each in inside if each.kind == "deny"]
    if denied or inside:
        each = (denied or inside)[0]
        return f'inside the {each.kind} window "{each.schedule}" {each.time_zone}'
    if any(each.kind == "allow" for each in windows):
        return "outside of every allow window"
    return "outside of every deny window"


def _next_change(
    now: datetime, windows: tuple[SyncWindow, ...], *, is_open: bool
) -> tuple[datetime | None, SyncWindow]:
    """When it opens or closes next, and by which window; None: not in sight."""
    moment = now
    for _ in range(LOOKED_AHEAD):
        coming = [
            (at, index)
            for index, each in enumerate(windows)
            if (at := _ends(each, moment) or next(_openings(each, moment), None)) is not None
        ]
        if not coming:
            break
        moment, index = min(coming)
        if _is_open(moment, windows) is not is_open:
            return moment, windows[index]
    return None, windows[0]


def _ends(each: SyncWindow, now: datetime) -> datetime | None:
    """When the window that is open at ``now`` ends; None: it is not open."""
    # Backwards from where the clocks can't have moved back any more: an hour that comes twice is told by its first time.
    later = now if each.time_zone == "UTC" else now + CLOCKS_MOVE
    begin = (later + timedelta(seconds=1)).astimezone(ZoneInfo(each.time_zone))
    backwards = CronSim(each.schedule, begin, reverse=True)
    opened = next((at for at in map(_utc, backwards) if at <= now), None)
    if opened is None or (ends := opened + timedelta(seconds=each.duration)) <= now:
        return None
    return ends


def _openings(each: SyncWindow, after: datetime) -> Iterator[datetime]:
    forwards = CronSim(each.schedule, after.astimezone(ZoneInfo(each.time_zone)))
    return (at for at in map(_utc, forwards) if at > after)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)
