import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent.disk import FileDisk
from llmgw.model.problems import StalledError


def test_files_are_written_whole_with_their_mode_and_read_back(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)

    async def story() -> None:
        await disk.write("shards/a.json", b"1")
        await disk.write("shards/a.json", b"2")
        await disk.write("shards/deep/b.json", b"3")
        assert await disk.read_all("shards") == {"a.json": b"2"}
        assert await disk.read_all("nothing") == {}
        assert await disk.read("shards/a.json") == b"2"
        assert await disk.read("shards/b.json") is None
        assert await disk.read("shards") == b"", "what can't be read is told by its reader"
        await disk.remove("shards/a.json")
        await disk.remove("shards/a.json")
        assert await disk.read_all("shards") == {}
        await disk.remove_folder("shards")
        await disk.remove_folder("shards")

    asyncio.run(story())
    assert not list(tmp_path.iterdir())


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        asyncio.run(FileDisk(tmp_path).write("shards/a.json", b"secret"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "shards/a.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shards").stat().st_mode) == 0o700


def test_what_a_crash_has_cut_off_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/.a.json.new").write_bytes(b"half")
    assert asyncio.run(FileDisk(tmp_path).read_all("shards")) == {}


def test_a_refusing_disk_names_the_file_and_the_old_one_stays(full: Path) -> None:
    disk = FileDisk(full)
    asyncio.run(disk.write("shards/a.json", b"old"))
    with pytest.raises(StalledError, match=r"writing .*/shards/a\.json: No space left on device: free space"):
        asyncio.run(disk.write("shards/a.json", b"x" * 4 * 1024 * 1024))
    assert asyncio.run(disk.read_all("shards")) == {"a.json": b"old"}
    assert [path.name for path in (full / "shards").iterdir()] == ["a.json"]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=1m none {folder} 2>/dev/null") != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        os.system(f"umount {folder}")


def test_several_files_are_all_there_or_the_old_ones_stay(full: Path) -> None:
    disk = FileDisk(full)
    asyncio.run(disk.write_all({"secrets/a.json": b"s", "shards/a.json": b"old"}))
    with pytest.raises(StalledError, match=r"writing .*/shards/a\.json: No space left on device: free space"):
        asyncio.run(disk.write_all({"secrets/a.json": b"t", "shards/a.json": b"x" * 4 * 1024 * 1024}))
    assert asyncio.run(disk.read_all("secrets")) == {"a.json": b"s"}
    assert asyncio.run(disk.read_all("shards")) == {"a.json": b"old"}
    assert [path.name for path in (full / "secrets").iterdir()] == ["a.json"]


def test_a_file_that_can_not_be_read_yet_holds_up_whoever_asks_for_it_and_nobody_else(tmp_path: Path) -> None:
    """The whole agent stood still: its probes, its watchers, its socket."""
    os.mkfifo(tmp_path / "slow")
    disk = FileDisk(tmp_path)

    async def story() -> None:
        first = asyncio.ensure_future(disk.read("slow"))
        second = asyncio.ensure_future(disk.write("after", b"1"))
        told_to_end = asyncio.ensure_future(disk.write("last", b"1"))
        await asyncio.sleep(0)
        told_to_end.cancel()
        await asyncio.sleep(0)  # the loop goes on
        assert not any(task.done() for task in (first, second, told_to_end))
        with await asyncio.to_thread((tmp_path / "slow").open, "wb") as writer:
            writer.write(b"at last")
        assert await first == b"at last"
        await second
        with pytest.raises(asyncio.CancelledError):
            await told_to_end

    asyncio.run(story())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "last", "slow"]


def test_links_are_removed_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    home = tmp_path / "work/home"
    home.mkdir(parents=True)
    (home / "link").symlink_to(outside)
    asyncio.run(FileDisk(tmp_path / "work").remove_folder("home"))
    assert (outside / "keep").exists()


def test_a_file_is_moved_aside_by_name_whatever_is_in_it(tmp_path: Path) -> None:
    """A copy would have needed room on a full disk, and rights to read."""
    disk = FileDisk(tmp_path)
    asyncio.run(disk.write("shards/a.json", b"{"))
    before = (tmp_path / "shards" / "a.json").stat().st_ino
    asyncio.run(disk.move("shards/a.json", "shards/unreadable/a.json"))
    assert (tmp_path / "shards" / "unreadable" / "a.json").stat().st_ino == before
    assert not (tmp_path / "shards" / "a.json").exists()
    with pytest.raises(StalledError, match="moving aside"):
        asyncio.run(disk.move("shards/a.json", "shards/unreadable/a.json"))
