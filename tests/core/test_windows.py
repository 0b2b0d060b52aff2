"""Sync windows: when changes may be made, by the clocks of their zones."""

from datetime import datetime, timedelta, timezone

import pytest

from llmgw.core.windows import gate, wall, window
from llmgw.model.manifest import Duration, FleetSpec, SyncWindow
from llmgw.model.plan import Gate

UTC = timezone.utc


def deny(schedule: str, hours: float, zone: str = "UTC") -> SyncWindow:
    return SyncWindow(kind="deny", schedule=schedule, duration=Duration(hours * 3600), time_zone=zone)


def allow(schedule: str, hours: float, zone: str = "UTC") -> SyncWindow:
    return SyncWindow(kind="allow", schedule=schedule, duration=Duration(hours * 3600), time_zone=zone)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def told(moment: str, *windows: SyncWindow) -> Gate:
    found = window(at(moment), windows)
    assert found is not None
    return found


OFFICE = deny("0 9 * * 1-5", 8, "Europe/Istanbul")
NIGHT = allow("0 22 * * *", 6, "America/New_York")


def test_without_windows_nothing_is_said() -> None:
    assert window(at("2026-03-02T10:00"), ()) is None
    assert gate(FleetSpec(), at("2026-03-02T10:00")) is None


def test_inside_a_deny_window_changes_wait_and_the_text_says_until_when_in_both_clocks() -> None:
    found = told("2026-03-02T10:00", OFFICE)
    assert not found.open
    assert found.until == at("2026-03-02T14:00")
    assert found.text == (
        "closed until Mon 2026-03-02 17:00 Europe/Istanbul (14:00 UTC): inside the deny window "
        '"0 9 * * 1-5" Europe/Istanbul'
    )


@pytest.mark.parametrize(
    ("moment", "is_open", "until"),
    [
        ("2026-03-02T05:59:59", True, "2026-03-02T06:00"),
        ("2026-03-02T06:00", False, "2026-03-02T14:00"),
        ("2026-03-02T13:59:59", False, "2026-03-02T14:00"),
        ("2026-03-02T14:00", True, "2026-03-03T06:00"),
        ("2026-03-06T14:00", True, "2026-03-09T06:00"),  # over the weekend
    ],
)
def test_a_window_is_open_from_its_first_moment_to_before_its_end(
    moment: str, *, is_open: bool, until: str
) -> None:
    found = told(moment, OFFICE)
    assert (found.open, found.until) == (is_open, at(until))


def test_with_an_allow_window_changes_are_made_only_inside_it() -> None:
    assert told("2026-03-02T15:00", NIGHT).until == at("2026-03-03T03:00")
    assert "outside of every allow window" in told("2026-03-02T15:00", NIGHT).text
    assert told("2026-03-03T03:00", NIGHT).open


def test_deny_wins_over_allow_and_the_later_end_counts() -> None:
    sunday = deny("0 0 * * 0", 24)
    assert not told("2026-03-01T04:00", NIGHT, sunday).open
    assert told("2026-03-01T04:00", NIGHT, sunday).until == at("2026-03-02T03:00")


def test_windows_that_overlap_end_together() -> None:
    found = told("2026-03-02T10:00", deny("0 9 * * *", 2), deny("30 10 * * *", 3))
    assert found.until == at("2026-03-02T13:30")


def test_a_window_that_never_ends_says_so() -> None:
    found = told("2026-03-02T10:00", deny("* * * * *", 2))
    assert not found.open
    assert found.until is None
    assert "closed with no change in sight" in found.text


def test_an_opening_in_a_gap_of_the_clocks_is_at_its_end() -> None:
    night = deny("30 2 * * *", 1, "Europe/Berlin")  # on this night 02:00 is followed by 03:00
    assert told("2026-03-29T00:59", night).until == at("2026-03-29T01:00")
    assert [told(f"2026-03-29T{time}", night).open for time in ("01:00", "01:59", "02:00")] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("minutes", range(0, 120, 5))
def test_an_opening_that_would_come_twice_is_the_first_of_the_two(minutes: int) -> None:
    night = deny("30 2 * * *", 1, "Europe/Berlin")  # on this night 02:30 is at 00:30 and at 01:30 UTC
    moment = at("2026-10-25T00:00") + timedelta(minutes=minutes)
    found = window(moment, (night,))
    assert found is not None
    assert found.open is not (30 <= minutes < 90)


def test_a_duration_is_elapsed_time_over_a_change_of_the_clocks() -> None:
    assert told("2026-03-29T00:00", deny("0 0 * * *", 8, "Europe/Berlin")).until == at("2026-03-29T07:00")


def test_an_hour_that_comes_twice_is_told_apart_by_utc() -> None:
    assert [wall(at(f"2026-10-25T{time}"), "Europe/Berlin") for time in ("00:30", "01:30")] == [
        "Sun 2026-10-25 02:30 Europe/Berlin (00:30 UTC)",
        "Sun 2026-10-25 02:30 Europe/Berlin (01:30 UTC)",
    ]
    assert wall(at("2026-10-25T23:30"), "Europe/Berlin") == (
        "Mon 2026-10-26 00:30 Europe/Berlin (2026-10-25 23:30 UTC)"
    )


@pytest.mark.parametrize("windows", [(OFFICE,), (NIGHT, OFFICE), (deny("15 */6 * * *", 1, "Asia/Kolkata"),)])
def test_the_next_change_is_the_first_one(windows: tuple[SyncWindow, ...]) -> None:
    """Against minute by minute."""
    moment = at("2026-03-07T00:00")
    found = window(moment, windows)
    assert found is not None
    assert found.until is not None
    steps = (moment + timedelta(minutes=each) for each in range(5 * 24 * 60))
    states = ((each, window(each, windows)) for each in steps)
    changed = next(each for each, state in states if state is not None and state.open is not found.open)
    assert changed == found.until


def test_suspend_goes_before_windows_and_names_who_did_it() -> None:
    found = gate(
        FleetSpec(suspend=True, sync_windows=(NIGHT,)), at("2026-03-03T03:00"), suspended="commit 1f by Ann"
    )
    assert found == Gate(open=False, text="suspended by commit 1f by Ann")
