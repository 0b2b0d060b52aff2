import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest

from llmgw.agent.shards import emptying
from llmgw.agent.shards.logs import AGENT, MAX_LINE, MAX_SENT, LogBook
from llmgw.wire import rpc
from llmgw.wire.messages import LogLine

WRITER = """
import os, sys, time
path, lines, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
begun, slowest = time.monotonic(), 0.0
for number in range(lines):
    while rate and number > rate * (time.monotonic() - begun):
        time.sleep(0.001)
    before = time.monotonic()
    os.write(file, b"%08d %s\\n" % (number, b"x" * 60))
    slowest = max(slowest, time.monotonic() - before)
print(slowest)
"""


def book(folder: Path, **texts: str) -> LogBook:
    (folder / "s").mkdir(exist_ok=True)
    for process, text in texts.items():
        (folder / "s" / f"{process}.log").write_text(text)
    return LogBook(folder)


def test_the_last_lines_come_by_process_and_a_missing_file_is_empty(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="a\nb\nc\nunfinished", ray="r\n")
    assert [line.text for line in logs.tail("s", ("engine",), 2)] == ["c", "unfinished"]
    assert [(line.process, line.text) for line in logs.tail("s", ("ray", "engine"), 1)] == [
        ("ray", "r"),
        ("engine", "unfinished"),
    ]
    assert logs.tail("s", ("none",), 5) == []
    assert logs.tail("s", ("engine",), 0) == []
    assert logs.last_line("s", "engine") == "unfinished"


def test_following_neither_repeats_nor_loses_a_line_over_an_emptying(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="1\n2\n")
    path = logs.path("s", "engine")

    async def story() -> list[str]:
        seen: list[str] = []
        async with aclosing(logs.follow("s", ("engine",), 1)) as lines:  # type: ignore[type-var] # a generator
            async for line in lines:
                seen.append(line.text)
                if line.text == "2":
                    with path.open("a") as file:
                        file.write("3\n4")
                elif line.text == "3":
                    with path.open("a") as file:
                        file.write("4\n")
                elif line.text == "44":
                    path.write_text("5\n")
                elif line.text == "5":
                    return seen
        return seen

    assert asyncio.run(asyncio.wait_for(story(), 20)) == ["2", "3", "44", "5"]


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="x" * (MAX_LINE + 10))
    assert len(logs.tail("s", ("engine",), 1)[0].text) == MAX_LINE


@pytest.mark.parametrize("cut", [True, False])
def test_a_large_log_is_emptied_in_place_and_one_previous_kept(tmp_path: Path, *, cut: bool) -> None:
    logs = book(tmp_path, engine="old\n" * 5000)
    path = logs.path("s", "engine")
    with path.open("a") as engine:
        done = asyncio.run(emptying.empty(path, keep=10**6, cut=cut))
        assert done is not None
        assert path.stat().st_size == 20_000 - done.removed < 4096
        engine.write("new\n")
    assert path.read_text().endswith("new\n")
    previous = path.with_name("engine.log.1")
    assert previous.read_text() + path.read_text() == "old\n" * 5000 + "new\n"
    assert oct(previous.stat().st_mode & 0o777) == "0o600"


def test_a_small_log_is_left_alone_and_only_so_much_of_a_huge_one_is_kept(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="12345678\n" * 10_000)
    path = logs.path("s", "engine")
    asyncio.run(logs.empty_large("s", ("engine", "none"), above=10**6))
    assert path.stat().st_size == 90_000
    asyncio.run(logs.empty_large("s", ("engine", "none"), above=10_000))
    assert path.stat().st_size < 4096
    assert path.with_name("engine.log.1").stat().st_size <= 10_000 + 4096


def test_the_last_lines_are_there_after_an_emptying_and_for_the_next_agent_too(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="".join(f"{number}\n" for number in range(5000)))
    asyncio.run(logs.empty_large("s", ("engine",), above=20_000))
    with logs.path("s", "engine").open("a") as engine:
        engine.write("new\n")
    wanted = [*(str(number) for number in range(4489, 5000)), "new"]
    for one in (logs, LogBook(tmp_path)):
        assert [line.text for line in one.tail("s", ("engine",), 512)] == wanted
        assert one.since("s", "engine", 0, most=9) == "4999\nnew\n"


def test_what_was_written_since_a_start_is_found_over_an_emptying(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="earlier\n" * 1000)
    place = logs.place("s", "engine")
    path = logs.path("s", "engine")
    with path.open("a") as engine:
        engine.write("Traceback\n" + "this one\n" * 1000)
    asyncio.run(logs.empty_large("s", ("engine",), above=16_000))
    with path.open("a") as engine:
        engine.write("the end\n")
    text = logs.since("s", "engine", place, most=10**6)
    assert text == "Traceback\n" + "this one\n" * 1000 + "the end\n"


def following(logs: LogBook, lines: int = 0) -> AsyncGenerator[LogLine, None]:
    return cast("AsyncGenerator[LogLine, None]", logs.follow("s", ("engine",), lines))


async def written(path: Path, lines: int, rate: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), str(lines), str(rate), stdout=asyncio.subprocess.PIPE
    )


def can_cut(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(b"x" * 20_000)
    done = asyncio.run(emptying.empty(probe, keep=0))
    return done is not None and probe.stat().st_size > 0


def test_ten_thousand_lines_a_second_are_followed_without_loss_while_the_log_is_emptied(
    tmp_path: Path,
) -> None:
    lines, above = 25_000, 256 * 1024
    lossless = can_cut(tmp_path)
    logs = book(tmp_path, engine="")
    path = logs.path("s", "engine")
    emptied = 0

    async def story() -> list[int]:
        nonlocal emptied
        writer = await written(path, lines, 10_000)

        async def housekeeping() -> None:
            nonlocal emptied
            while writer.returncode is None:
                before = logs.place("s", "engine") - logs.size("s", "engine")
                await logs.empty_large("s", ("engine",), above=above)
                emptied += logs.place("s", "engine") - logs.size("s", "engine") > before
                await asyncio.sleep(0.2)

        house = asyncio.ensure_future(housekeeping())
        seen: list[int] = []
        try:
            async with aclosing(following(logs)) as stream:
                async for line in stream:
                    assert len(line.text) == 69
                    seen.append(int(line.text[:8]))
                    if seen[-1] == lines - 1:
                        break
        finally:
            if writer.returncode is None:
                writer.kill()
            await writer.wait()
            await house
        return seen

    seen = asyncio.run(asyncio.wait_for(story(), 60))
    assert emptied >= 3
    assert seen == sorted(set(seen))
    lost = lines - len(seen)
    assert lost == 0 if lossless else lost <= 2 * emptied


def test_a_reader_that_is_slower_by_more_than_is_kept_goes_on_with_whole_lines(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="")
    path = logs.path("s", "engine")

    async def story() -> None:
        async with aclosing(following(logs)) as stream:
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            with path.open("a") as engine:
                for chunk in range(6):
                    engine.writelines(f"{chunk:04}{number:06}\n" for number in range(3000))
                    engine.flush()
                    await logs.empty_large("s", ("engine",), above=10_000)
                engine.write("end\n")
            texts = [(await first).text]
            while texts[-1] != "end":
                texts.append((await anext(stream)).text)
            whole = texts[1:-1]
            assert all(len(text) == 10 for text in whole)
            assert whole == sorted(whole)
            assert 500 < len(whole) < 18_000

    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_follower_that_does_not_read_holds_up_no_writer(tmp_path: Path) -> None:
    """Engines have stood still because somebody's terminal did."""
    logs = book(tmp_path, engine="")

    async def story() -> float:
        async with aclosing(following(logs)) as stream:
            first = asyncio.ensure_future(anext(stream))
            writer = await written(logs.path("s", "engine"), 20_000, 0)
            out, _ = await asyncio.wait_for(writer.communicate(), 30)
            await first  # and nothing is read any more
            return float(out)

    assert asyncio.run(story()) < 1


@pytest.mark.parametrize("length", [MAX_LINE - 1, MAX_LINE])
def test_a_line_of_one_mebibyte_comes_whole_and_a_longer_one_cut_and_the_next_is_the_next(
    tmp_path: Path, length: int
) -> None:
    logs = book(tmp_path, engine="")
    path = logs.path("s", "engine")

    async def story() -> list[LogLine]:
        async with aclosing(following(logs)) as stream:
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            path.write_text("a" * length + "\n" + "b" * (3 * MAX_LINE) + "\nnext\n")
            return [await first, await anext(stream), await anext(stream)]

    texts = [line.text for line in asyncio.run(asyncio.wait_for(story(), 20))]
    assert texts == ["a" * length, "b" * MAX_LINE, "next"]


@pytest.mark.parametrize("sign", [b"\x1b", b"\xff", b'"', "語".encode()])
def test_the_longest_line_of_any_signs_fits_into_a_message(tmp_path: Path, sign: bytes) -> None:
    logs = book(tmp_path, engine="")
    logs.path("s", "engine").write_bytes((sign * MAX_LINE)[:MAX_LINE] + b"\n")
    [line] = logs.tail("s", ("engine",), 1)
    assert len(rpc.encode_item(1, json.loads(json.dumps({"text": line.text})))) <= MAX_SENT + 1024


def test_what_the_agent_adds_comes_after_what_was_written_before_it(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="")

    async def story() -> list[tuple[str, str]]:
        async with aclosing(following(logs)) as stream:
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            with logs.path("s", "engine").open("a") as engine:
                engine.write("boom\n")
            logs.note("s", "engine exited by itself with code 1")
            found = [await first, await anext(stream)]
            return [(line.process, line.text) for line in found]

    assert asyncio.run(asyncio.wait_for(story(), 20)) == [
        ("", "boom"),
        (AGENT, "engine exited by itself with code 1"),
    ]


def test_a_full_disk_gets_its_space_back_at_the_price_of_the_past(tmp_path: Path) -> None:
    """On a small disk of its own, in a mount namespace that ends with it."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    code = """
import asyncio, errno, sys
from pathlib import Path
from llmgw.agent.shards import emptying
path = Path(sys.argv[1]) / "engine.log"
path.with_name("engine.log.1").write_bytes(b"older")
with path.open("ab", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 65536)
    except OSError as full:
        assert full.errno == errno.ENOSPC, full
    done = asyncio.run(emptying.empty(path, keep=10**9))
    assert done is not None and done.begin == done.removed > 0, done
    file.write(b"y" * 65536)
assert [one.name for one in path.parent.iterdir()] == ["engine.log"]
print("ok")
"""
    disk = tmp_path / "disk"
    disk.mkdir()

    async def story() -> tuple[int | None, bytes]:
        mounted = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
        words = ("unshare", "-m", "sh", "-c", mounted, "sh", str(disk), sys.executable, code)
        child = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await asyncio.wait_for(child.communicate(), 30)
        return child.returncode, out

    code_, out = asyncio.run(story())
    if b"ermitted" in out or b"ermission" in out:
        pytest.skip("no mounts here")
    assert code_ == 0, out
    assert b"ok" in out
