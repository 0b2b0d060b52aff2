"""What is wrong with the settings of the whole fleet beyond what the schema can say: zones, schedules, versions."""

import difflib
from collections.abc import Iterator
from datetime import datetime, timezone
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from llmgw.model.manifest import FleetSpec, Manifest, SyncWindow
from llmgw.model.problems import Problem

_ANY_DAY = datetime(2024, 1, 1, tzinfo=timezone.utc)  # whether a schedule is one does not depend on it
LONGEST = 366 * 86400.0
"""Seconds. Whoever wants longer wants ``suspend``."""


def problems(manifest: Manifest | None) -> Iterator[Problem]:
    if manifest is None or not isinstance(manifest.spec, FleetSpec):
        return
    for index, window in enumerate(manifest.spec.sync_windows):
        path = f"spec.syncWindows[{index}]"
        yield from _zone(manifest, f"{path}.timeZone", window)
        yield from _schedule(manifest, f"{path}.schedule", window)
        if window.duration > LONGEST:
            yield Problem(
                what=f"{path}.duration is longer than a year",
                instead="write a shorter one, or suspend: true",
                where=manifest.at(f"{path}.duration"),
            )
    version = manifest.spec.agent.version
    if version is not None and not all(part.isdecimal() for part in version.split(".")):
        yield Problem(
            what=f"spec.agent.version {version} is no version that can be compared",
            instead='write numbers such as "0.4.0"',
            where=manifest.at("spec.agent.version"),
        )


def _zone(manifest: Manifest, path: str, window: SyncWindow) -> Iterator[Problem]:
    if is_zone(window.time_zone):
        return
    known = {name.lower(): name for name in available_timezones()}
    near = difflib.get_close_matches(window.time_zone.lower(), known, n=1)
    yield Problem(
        what=f"{path}: there is no time zone {window.time_zone:.80}",
        instead=f"did you mean {known[near[0]]}?"
        if near
        else "write an IANA name such as Europe/Istanbul, or UTC",
        where=manifest.at(path),
    )


def is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # KeyError: not found; OSError: the name of a folder of zones
        return False
    return True


def _schedule(manifest: Manifest, path: str, window: SyncWindow) -> Iterator[Problem]:
    instead = 'write minute, hour, day, month and weekday, such as "0 9 * * 1-5"'
    try:
        CronSim(window.schedule, _ANY_DAY)
    except CronSimError as wrong:
        told = str(wrong)
        what = f'{path} "{window.schedule}" is no cron schedule: {told[:1].lower()}{told[1:]}'
        yield Problem(what=what, instead=instead, where=manifest.at(path))
