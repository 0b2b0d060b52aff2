"""What was begun beside something that fails comes to its end before anybody hears of the failure."""

import asyncio

import pytest

from llmgw.controller.together import both
from llmgw.model.problems import StalledError


def test_the_other_ends_before_a_failure_is_told() -> None:
    ended: list[str] = []

    async def fails() -> str:
        raise StalledError("the record is gone")

    async def takes_longer() -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append("read")
        return 7

    async def story() -> None:
        for several in ((fails, takes_longer), (takes_longer, fails)):
            with pytest.raises(StalledError, match="the record is gone"):
                await both(several[0](), several[1]())
            assert len(asyncio.all_tasks()) == 1, "nothing is left alone"

    asyncio.run(story())
    assert ended == ["read", "read"]


def test_both_answers_come_in_their_order() -> None:
    async def one() -> int:
        await asyncio.sleep(0)
        return 1

    async def two() -> str:
        return "two"

    async def story() -> tuple[int, str]:
        return await both(one(), two())

    assert asyncio.run(story()) == (1, "two")
