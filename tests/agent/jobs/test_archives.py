"""Engines out of archives: proved, found wherever they lie inside, and nothing that an archive says leads out of its directory."""

import asyncio
import hashlib
import io
import stat
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.jobs import archives
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import NoSpaceError
from llmgw.agent.jobs.targets import DiskTargets
from llmgw.model.launch import InstallSpec
from llmgw.model.problems import RetryError, StalledError
from tests.agent.agents import install_spec
from tests.agent.jobs.test_fetch import serving
from tests.agent.jobs.test_install import installer

PROGRAM = b"#!/bin/sh\necho $0 $1\n"
FILES = {"llama-b1/llama-server": PROGRAM, "llama-b1/libggml.so": b"lib", "llama-b1/LICENSE": b"MIT"}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, timeout=60))


def tar(files: Mapping[str, bytes], *, links: Mapping[str, str] | None = None, mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload] # text, as tarfile takes it
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o4755 if data.startswith(b"#!") else 0o666
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return out.getvalue()


def zipped(files: Mapping[str, bytes], *, links: Mapping[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        for name, target in (links or {}).items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    return out.getvalue()


def spec(url: str, data: bytes, **changes: Any) -> InstallSpec:
    given = {"url": url, "sha256": hashlib.sha256(data).hexdigest(), "finds": ("llama-server",), **changes}
    return install_spec(engine="llamacpp", version="b1", **given)


def unpacked(folder: Path, data: bytes, *, reserve: int = 0) -> Path:
    """Without a server."""
    archive, into = folder / "archive", folder / "into"
    archive.write_bytes(data)
    into.mkdir()
    archives.unpack(archive, into, name="a.tgz", reserve=reserve, stop=threading.Event(), progress=Progress())
    return into


@pytest.mark.parametrize("make", [tar, zipped], ids=["tar", "zip"])
@pytest.mark.parametrize(
    "place",
    [
        "llama-server",
        "bin/llama-server",
        "llama-b1/llama-server",
        "build/bin/llama-server",
        "a/b/c/llama-server",
    ],
)
def test_the_program_is_found_and_runs_from_bin(
    tmp_path: Path, make: Callable[[Mapping[str, bytes]], bytes], place: str
) -> None:
    data = make({place: PROGRAM, "README": b"read"})
    doer = installer(tmp_path)
    with serving("honest", data) as (url, _):
        run(doer.run(spec(url, data), Progress()))
        assert doer.complete(spec(url, data))
    targets = DiskTargets(engines_folder=tmp_path / "engines", weights_folder=tmp_path)
    (engine,) = targets.engines()
    program = Path(engine.path) / "bin" / "llama-server"
    told = subprocess.run([program, "x"], capture_output=True, text=True, check=True)
    assert told.stdout == f"{program} x\n"
    assert [entry.name for entry in (tmp_path / "engines").iterdir()] == ["llamacpp-b1-abababab"]


def test_modes_are_ours_and_not_the_archives(tmp_path: Path) -> None:
    into = unpacked(tmp_path, tar(FILES))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in into.rglob("*") if path.is_file()}
    assert modes == {"llama-server": 0o755, "libggml.so": 0o644, "LICENSE": 0o644}


def test_a_broken_download_goes_on_and_is_unpacked_once(tmp_path: Path) -> None:
    data = tar({**FILES, "llama-b1/big": bytes(range(256)) * 8000}, mode="w")
    doer = installer(tmp_path)
    with serving("short", data) as (url, handler):
        with pytest.raises(RetryError):
            run(doer.run(spec(url, data), Progress()))
        handler.mode = "honest"
        run(doer.run(spec(url, data), Progress()))
        assert handler.ranges[1].startswith("bytes=")
        assert doer.complete(spec(url, data))


def test_another_archive_than_was_meant_is_never_unpacked(tmp_path: Path) -> None:
    data = tar(FILES)
    doer = installer(tmp_path)
    with serving("honest", data) as (url, _), pytest.raises(StalledError, match="its SHA-256 is"):
        run(doer.run(spec(url, data, sha256="0" * 64), Progress()))
    assert not list((tmp_path / "engines").glob("llamacpp-*"))


def test_an_archive_without_the_program_says_what_it_holds(tmp_path: Path) -> None:
    data = tar({"other/thing": b"x"})
    doer = installer(tmp_path)
    with serving("honest", data) as (url, _):
        with pytest.raises(StalledError, match=r"llama-server .* not within 3 directories, which hold other"):
            run(doer.run(spec(url, data), Progress()))
        assert not doer.complete(spec(url, data))


@pytest.mark.parametrize(
    "data",
    [
        tar({"../out": b"x"}),
        tar({"/abs/out": b"x"}),
        tar({"a/../../out": b"x"}),
        zipped({"../out": b"x"}),
        zipped({"/abs/out": b"x"}),
        tar({}, links={"l": "../out"}),
        tar({}, links={"l": "/etc/passwd"}),
        zipped({}, links={"l": "../../etc"}),
        tar({}, links={"here": ".", "l": "here/../.."}),
        tar({}, links={"a": "a"}),
    ],
    ids=range(10),
)
def test_nothing_leads_out_of_the_directory(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(StalledError, match="leads out of the directory"):
        unpacked(tmp_path, data)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["archive", "into"]


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("d")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        inside = tarfile.TarInfo("d/evil")
        inside.size = 1
        archive.addfile(link)
        archive.addfile(inside, io.BytesIO(b"x"))
    with pytest.raises(StalledError, match="leads out"):
        unpacked(tmp_path, out.getvalue())
    assert not (tmp_path / "evil").exists()


def test_links_inside_are_kept_as_libraries_need_them(tmp_path: Path) -> None:
    into = unpacked(tmp_path, tar({"lib/a.so.1": b"lib"}, links={"lib/a.so": "a.so.1", "b.so": "lib/a.so"}))
    assert (into / "b.so").read_bytes() == b"lib"


def test_a_device_or_a_pipe_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        pipe = tarfile.TarInfo("pipe")
        pipe.type = tarfile.FIFOTYPE
        archive.addfile(pipe)
    with pytest.raises(StalledError, match="neither file, directory nor link"):
        unpacked(tmp_path, out.getvalue())


@pytest.mark.parametrize("data", [b"", b"nothing", tar(FILES)[:60], zipped(FILES)[:-30]], ids=range(4))
def test_what_is_no_archive_is_told(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(StalledError, match="unpacking"):
        unpacked(tmp_path, data)


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 1000)
    with pytest.raises(StalledError, match="more than"):
        unpacked(tmp_path, zipped({"a": b"0" * 600, "b": b"0" * 600}))


def test_a_disk_without_room_is_told_before_a_member_is_written(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match="unpacking"):
        unpacked(tmp_path, tar(FILES), reserve=2**60)


def test_a_member_that_is_longer_than_it_says_is_cut_off(tmp_path: Path) -> None:
    data = zipped({"a": b"0" * 100_000})
    said = (100_000).to_bytes(4, "little")
    lying = data.replace(said, (10).to_bytes(4, "little"))
    with pytest.raises(StalledError, match="unpacking"):
        unpacked(tmp_path, lying)
    assert not (tmp_path / "into" / "a").exists() or (tmp_path / "into" / "a").stat().st_size <= 10
