"""How a command ends that somebody interrupts."""

import asyncio
import os
import signal
import threading
import time

import pytest

from llmgw.cli import session
from llmgw.controller.passes.halt import Halt
from llmgw.model.record import Outcome


def send_from_a_thread(delay: float = 0.1) -> threading.Thread:
    """An interrupt that the kernel gives to another thread: the one that sleeps in the loop is not woken by it. The same
    happens to one that comes just before the loop falls asleep."""

    def send() -> None:
        time.sleep(delay)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.timeout(20)
def test_an_interrupt_is_heard_by_a_loop_that_has_nothing_to_wake_up_for() -> None:
    sender = send_from_a_thread()
    with pytest.raises(KeyboardInterrupt):
        session.run(sleep_for_ever())
    sender.join()


@pytest.mark.timeout(20)
def test_the_work_is_asked_to_end_and_after_it_an_interrupt_ends_the_command() -> None:
    halt = Halt()

    async def command() -> None:
        with session.interruptible(halt):
            os.kill(os.getpid(), signal.SIGTERM)
            assert await halt.sleep(10)
        sender = send_from_a_thread()
        try:
            await sleep_for_ever()
        finally:
            sender.join()

    with pytest.raises(KeyboardInterrupt):
        session.run(command())
    assert halt.outcome is Outcome.INTERRUPTED
