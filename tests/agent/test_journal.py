"""The journal is numbered, bounded, and survives restarts, torn lines and full disks."""

import os
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from llmgw.agent.journal import MAX_READ, FileJournalStore, Journal, MemoryJournalStore
from llmgw.clock import FakeClock
from llmgw.model.report import JournalEntry
from llmgw.wire.messages import NO_JOURNAL

CLOCK = FakeClock(datetime(2030, 1, 1, tzinfo=timezone.utc))


def journal_in(folder: Path, keep: int = 100) -> Journal:
    return Journal(store=FileJournalStore(folder / "journal.jsonl"), clock=CLOCK, keep=keep)


def numbers(entries: tuple[JournalEntry, ...]) -> list[int]:
    return [entry.number for entry in entries]


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    first.append("job", "a", "one", {"field": "value"})
    first.append("job", "a", "two")
    second = journal_in(tmp_path)
    assert second.after(0) == first.after(0)
    assert second.append("job", "a", "three").number == 3


def test_who_wants_no_entries_moves_no_number(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    journal.append("job", "a", "one")
    assert journal.after(NO_JOURNAL) == ()
    assert journal.append("job", "a", "two").number == 2


def test_the_file_is_only_the_owners(tmp_path: Path) -> None:
    journal_in(tmp_path).append("job", "a", "one")
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_last_line_that_a_crash_cut_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    journal_in(tmp_path).append("job", "a", "one")
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"number":2,"at":"2030-')
    again = journal_in(tmp_path)
    assert again.append("job", "a", "two").number == 2
    assert numbers(journal_in(tmp_path).after(0)) == [1, 2]


def test_a_broken_line_does_not_hide_the_others(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    journal.append("job", "a", "one")
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    journal.append("job", "a", "two")
    assert numbers(journal_in(tmp_path).after(0)) == [1, 2]


def test_only_the_newest_entries_are_kept_in_memory_and_on_disk(tmp_path: Path) -> None:
    journal = journal_in(tmp_path, keep=5)
    for count in range(23):
        journal.append("job", "a", str(count))
    assert numbers(journal.after(0)) == [19, 20, 21, 22, 23]
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) <= 10
    assert journal_in(tmp_path, keep=5).last == 23


def test_a_reader_who_knows_more_makes_the_numbers_go_on_above_it(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    journal.append("job", "a", "one")
    assert journal.after(40) == ()
    assert journal.append("job", "a", "two").number == 41


def test_a_read_is_bounded_and_goes_on_where_it_ended() -> None:
    journal = Journal(store=MemoryJournalStore(), clock=CLOCK)
    for _ in range(MAX_READ + 10):
        journal.append("job", "a", "x")
    first = journal.after(0)
    assert len(first) == MAX_READ
    assert numbers(journal.after(first[-1].number))[-1] == MAX_READ + 10


def test_long_texts_bound_a_read_by_size() -> None:
    journal = Journal(store=MemoryJournalStore(), clock=CLOCK)
    for _ in range(1_000):
        journal.append("job", "a", "x" * 100_000)
    assert sum(len(entry.text) for entry in journal.after(0)) <= 512 * 1024


class _FullDisk(MemoryJournalStore):
    full = True

    def append(self, line: bytes) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))
        super().append(line)

    def replace(self, lines: Iterable[bytes]) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))
        super().replace(lines)


def test_a_full_disk_is_a_problem_told_and_nothing_is_lost_when_it_ends() -> None:
    store = _FullDisk()
    journal = Journal(store=store, clock=CLOCK)
    heard: list[int] = []
    journal.listen(lambda entry: heard.append(entry.number))
    journal.append("job", "a", "one")
    assert "No space left" in journal.problem
    assert heard == [1]
    store.full = False
    journal.append("job", "a", "two")
    assert journal.problem == ""
    assert numbers(Journal(store=store, clock=CLOCK).after(0)) == [1, 2]
