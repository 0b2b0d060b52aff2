"""The pretended clock itself."""

import asyncio
from datetime import timedelta

import pytest

from tests.sim.loop import START, DeadlockError, LoopClock, VirtualLoop, run


def test_an_hour_passes_in_no_time_and_in_order() -> None:
    loop = VirtualLoop()
    clock = LoopClock(loop)
    seen: list[str] = []

    async def after(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        seen.append(name)

    async def main() -> None:
        await asyncio.gather(after(3600, "late"), after(1, "early"), after(60, "middle"))

    run(main(), loop)
    assert seen == ["early", "middle", "late"]
    assert clock.now() == START + timedelta(hours=1)


def test_timeouts_use_the_pretended_time() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(31)

    loop = VirtualLoop()
    run(main(), loop)
    assert loop.elapsed == 30


def test_a_lost_wake_up_is_told_and_not_waited_for() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(main(), VirtualLoop())
