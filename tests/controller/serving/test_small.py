"""The small parts of the loop: hints that come to one, pauses, counts."""

import asyncio
from random import Random

from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.pauses import Pauses, first_of
from llmgw.controller.serving.snapshot import BOUNDS, Durations, Totals


def test_any_number_of_hints_comes_to_one_that_tells_the_first_few() -> None:
    async def main() -> None:
        hints = Hints()
        assert hints.take().heard == frozenset()
        for number in range(1000):
            hints.hint("watch", f"node gpu{number % 5}")
        assert hints.heard_only("watch")
        hints.hint("webhook", "webhook forge")
        assert not hints.heard_only("watch")
        await hints.wait(urgent=True)
        woken = hints.take()
        assert woken.heard == {"watch", "webhook"}
        assert woken.text.startswith("node gpu0, node gpu1, node gpu2 and ")
        assert hints.take().text == ""

    asyncio.run(main())


def test_what_nodes_tell_is_no_urgent_hint() -> None:
    async def main() -> None:
        hints = Hints()
        hints.hint("watch", "node gpu01")
        urgent = asyncio.create_task(hints.wait(urgent=True))
        await asyncio.sleep(0)
        assert not urgent.done()
        hints.hint("commit", "commit 1")
        await urgent

    asyncio.run(main())


def test_pauses_double_to_their_longest_and_a_half_of_each_is_chance() -> None:
    pauses = Pauses(1, 30, Random(1))
    drawn = [pauses.next() for _ in range(40)]
    for whole, pause in zip((1, 2, 4, 8, 16, *[30] * 35), drawn, strict=True):
        assert whole / 2 <= pause <= whole
    assert len(set(drawn)) == 40
    assert pauses.failing
    pauses.reset()
    assert pauses.next() <= 1


def test_of_what_was_not_first_nothing_is_left() -> None:
    async def main() -> None:
        never = asyncio.Event()
        before = asyncio.all_tasks()
        await first_of(never.wait(), asyncio.sleep(0))
        await first_of(never.wait(), timeout=0.001)
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_durations_fall_where_their_bounds_say_and_totals_only_grow() -> None:
    durations = Durations()
    for seconds in (0.01, BOUNDS[0], 0.11, 10_000):
        durations = durations.plus(seconds)
    assert durations.counts == (2, 1, *[0] * (len(BOUNDS) - 2), 1)
    assert round(durations.total, 2) == 10_000.22
    totals = Totals()
    for _ in range(2):
        totals = totals.plus(trigger="watch", ended="done", seconds=1, steps={("start", "done"): 3})
    assert totals.passes == {("watch", "done"): 2}
    assert totals.steps == {("start", "done"): 6}
