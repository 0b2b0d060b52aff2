import asyncio
from contextlib import aclosing
from pathlib import Path

from llmgw.agent.shards.logs import MAX_LINE, LogBook


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


def test_a_large_log_is_emptied_in_place_and_one_previous_kept(tmp_path: Path) -> None:
    logs = book(tmp_path, engine="old\n" * 1000)
    path = logs.path("s", "engine")
    with path.open("a") as engine:
        asyncio.run(logs.empty_large("s", ("engine", "none"), above=100))
        assert path.stat().st_size == 0
        engine.write("new\n")
    assert path.read_text() == "new\n"
    previous = path.with_name("engine.log.1")
    assert previous.read_text() == "old\n" * 1000
    assert oct(previous.stat().st_mode & 0o777) == "0o600"
    asyncio.run(logs.empty_large("s", ("engine",), above=100))
    assert path.read_text() == "new\n"
