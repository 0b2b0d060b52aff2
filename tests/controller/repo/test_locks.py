"""The kernel's lock, with a name on it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.repo.locks import FileLock
from llmgw.model.problems import HeldError, StalledError

HOLD = """
import asyncio, sys
from pathlib import Path
from llmgw.clock import SystemClock
from llmgw.controller.repo.locks import FileLock
async def main():
    async with FileLock(Path(sys.argv[1]), clock=SystemClock(), holder="bob@other", what="applying").held():
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


def lock(path: Path, clock: FakeClock) -> FileLock:
    return FileLock(path, clock=clock, holder="ann@box", what="applying fleet lab")


def other_process(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_who_holds_it_is_told_to_those_who_come(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "state" / "apply.lock"
    process = other_process(path)
    try:

        async def main() -> None:
            async with lock(path, clock).held():
                pytest.fail("two hold it at once")

        with pytest.raises(
            HeldError, match=rf"bob@other \(applying\), pid {process.pid}, since 20.*--lock-timeout"
        ):
            asyncio.run(main())
    finally:
        process.communicate("")


def test_it_is_free_when_its_holder_was_killed(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "apply.lock"
    process = other_process(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    async def main() -> None:
        async with lock(path, clock).held():
            holding = lock(path, clock).holding()
            assert holding is not None
            assert (holding.holder, holding.pid) == ("ann@box", os.getpid())

    asyncio.run(main())
    assert lock(path, clock).holding() is None


def test_waiting_ends_when_the_holder_lets_go(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "apply.lock"
    order: list[str] = []

    async def main() -> None:
        inside = asyncio.Event()

        async def first() -> None:
            async with lock(path, clock).held():
                inside.set()
                await asyncio.sleep(0.1)
                order.append("first")

        async def second() -> None:
            await inside.wait()
            async with lock(path, clock).held(timeout=10):
                order.append("second")

        await asyncio.gather(first(), second())

    asyncio.run(main())
    assert order == ["first", "second"]


def test_waiting_has_an_end(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "apply.lock"

    async def main() -> None:
        async with lock(path, clock).held():
            with pytest.raises(HeldError, match=r"after waiting 0:00:00\.2"):
                async with lock(path, clock).held(timeout=0.2):
                    pytest.fail("two hold it at once")

    asyncio.run(main())


def test_its_folders_are_private(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "a" / "b" / "apply.lock"

    async def main() -> None:
        async with lock(path, clock).held():
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
            assert path.parent.parent.stat().st_mode & 0o777 == 0o700

    asyncio.run(main())


def test_a_place_that_can_not_be_used_is_named(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        async with lock(tmp_path / "file" / "apply.lock", clock).held():
            pass

    with pytest.raises(StalledError, match=r"opening the lock file .*apply.lock.*--state-dir"):
        asyncio.run(main())


def test_a_damaged_note_hides_the_name_but_not_the_lock(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "apply.lock"

    async def main() -> None:
        async with lock(path, clock).held():
            path.write_bytes(b"\xff garbage")
            with pytest.raises(HeldError, match="not written down who it is"):
                async with lock(path, clock).held():
                    pytest.fail("two hold it at once")

    asyncio.run(main())


def test_a_full_disk_takes_the_name_from_a_lock_and_not_the_lock(tmp_path: Path) -> None:
    """It was told as a bug of llmgw's own, and no command of that state directory worked any more."""
    path = tmp_path / "apply.lock"
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", full + HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    held = process.stdout.readline()
    process.communicate("")
    assert (held, process.returncode) == ("held\n", 0)
