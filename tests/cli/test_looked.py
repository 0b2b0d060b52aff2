"""What an apply has done, and history as people read it: a row for what was commanded and how it ended, and rows for what
just happened."""

import re

from llmgw.cli.ended import summary
from llmgw.cli.looked import history_rows
from llmgw.controller.passes.settle import Settled
from llmgw.controller.passes.verdict import verdict
from llmgw.controller.repo.records import HistoryEntry
from llmgw.model.ids import Commit
from llmgw.model.record import Outcome
from tests.controller.passes.pretend import World
from tests.sim.loop import VirtualLoop
from tests.sim.loop import run as run_virtual


def entry(serial: int, subject: str, *, outcome: str = "", news: bool = False) -> HistoryEntry:
    trailers = [("Llmgw-Serial", str(serial)), ("Llmgw-Manifests", "b" * 40)]
    if not news:
        trailers += [("Llmgw-Plan", "abc"), ("Llmgw-Trigger", "cron"), ("Llmgw-Actor", "ann@desk")]
    if outcome:
        trailers.append(("Llmgw-Outcome", outcome))
    return HistoryEntry(
        version=Commit("c" * 40),
        at="2030-01-01T12:00:00+00:00",
        subject=subject,
        body="",
        trailers=tuple(trailers),
    )


def rows(*entries: HistoryEntry, limit: int = 20) -> list[list[str]]:
    lines = history_rows(entries, limit).splitlines()[1:]
    return [re.split(r" {2,}", line) for line in lines]


def test_a_serial_is_one_row_with_its_last_outcome_and_what_was_commanded() -> None:
    told = rows(
        entry(2, "chat/0 is ready", outcome="done"),
        entry(2, "Started 1 replica of chat", outcome="accepted"),
        entry(2, "Start 1 replica of chat"),
    )
    ((serial, _, *rest),) = told
    assert (serial, *rest) == ("2", "ann@desk (cron)", "b" * 10, "done", "Started 1 replica of chat")


def test_an_intent_without_an_outcome_has_not_ended() -> None:
    ((*_, ended, subject),) = rows(entry(3, "Start 1 replica of chat"))
    assert (ended, subject) == ("not ended", "Start 1 replica of chat")


def test_what_happened_by_itself_has_a_row_of_its_own() -> None:
    told = rows(entry(2, "gpu01 was rebooted", news=True), entry(2, "Started", outcome="done"))
    assert [row[0] for row in told] == ["2", "2"]
    assert told[0][-1] == "gpu01 was rebooted"


def test_no_more_rows_than_asked_for() -> None:
    entries = [entry(n, f"Pass {n}", outcome="done") for n in range(30, 0, -1)]
    assert len(rows(*entries, limit=5)) == 5


def test_nothing_applied_yet_is_said() -> None:
    assert "Nothing" in history_rows((), 5)


def test_of_a_rollout_that_nobody_waits_for_only_what_was_sent_is_told_as_done() -> None:
    async def main() -> None:
        world = World()
        sent = await world.apply()
        assert sent.outcome is Outcome.ACCEPTED
        settled = Settled(last=sent, passes=1, worked=True)
        told = summary(settled, verdict(settled))
        assert ": installed engines" in told or ": started" in told
        assert "published" not in told

    run_virtual(main(), VirtualLoop())
