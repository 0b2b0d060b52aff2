"""What a doctor looks at beyond facts and report: files, users, clock, journal. Reads only, and what can't be read is told
as it is, never raised."""

import ctypes
import grp
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmgw.agent.settings import FOLDERS, SHARED_MODE, Layout
from llmgw.agent.shards.orders import read_order
from llmgw.model.report import JournalEntry
from llmgw.model.struct import Struct
from llmgw.wire import codec
from llmgw.wire.setup import SETTINGS

WORK_MODE = 0o711
SECRET_MODE = 0o600
GPU_GROUPS = ("video", "render")
TIME_ERROR = 5
"""adjtimex(2): the clock is not kept by anything."""
TIMEX_SIZE = 512
"""Bytes of its answer, with room: 208 on 64-bit Linux."""
MAX_GAPS = 20
MAX_ORDER = 16 * 1024 * 1024
MAX_JOURNAL = 16 * 1024 * 1024


class Entry(Struct):
    """A file or directory of the agent's. ``mode`` None: it is not there; ``error``: it can't be looked at."""

    path: str
    wanted: int
    mode: int | None = None
    owner: int | None = None
    error: str = ""


class User(Struct):
    """Whom engines run as. ``uid`` None: there is no such user. ``lacking``: groups of this machine that open GPUs."""

    name: str
    uid: int | None
    lacking: tuple[str, ...] = ()


class Looks(Struct):
    """``unreadable``: files of orders; ``gaps`` are the numbers that the journal lacks, from and to; ``kept_ports`` those that the kernel never hands out by
    itself; ``clock_kept`` None: it can't be told."""

    socket: Entry
    entries: tuple[Entry, ...]
    user: User
    own_user: int
    unreadable: tuple[str, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    journal_error: str = ""
    kept_ports: tuple[tuple[int, int], ...] = ()
    clock_kept: bool | None = None


def look(places: Layout, *, engine_user: str | None) -> Looks:
    work = places.work
    wanted: Mapping[Path, int] = {
        work: WORK_MODE,
        **{work / name: mode for name, mode in FOLDERS.items()},
        places.weights: SHARED_MODE,
        places.engines: SHARED_MODE,
        work / SETTINGS: SECRET_MODE,
    }
    gaps, journal_error = _gaps(places.journal)
    return Looks(
        socket=_entry(places.socket, SECRET_MODE),
        entries=tuple(_entry(path, mode) for path, mode in wanted.items()),
        user=_user(engine_user),
        own_user=os.geteuid(),
        unreadable=(*_unreadable(work / "shards"), *_paths(work / "shards" / "unreadable")),
        gaps=gaps,
        journal_error=journal_error,
        kept_ports=_ranges(_text(Path("/proc/sys/net/ipv4/ip_local_reserved_ports"))),
        clock_kept=_clock_kept(),
    )


def _entry(path: Path, wanted: int) -> Entry:
    try:
        about = path.stat()
    except FileNotFoundError:
        return Entry(path=str(path), wanted=wanted)
    except OSError as wrong:
        return Entry(path=str(path), wanted=wanted, error=wrong.strerror or str(wrong))
    return Entry(path=str(path), wanted=wanted, mode=stat.S_IMODE(about.st_mode), owner=about.st_uid)


def _user(name: str | None) -> User:
    if name is None:
        return User(name=_own_name(), uid=os.geteuid())
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return User(name=name, uid=None)
    member_of = set(os.getgrouplist(name, entry.pw_gid))
    groups = {group: number for group in GPU_GROUPS if (number := _group(group)) is not None}
    lacking = tuple(group for group, number in groups.items() if number not in member_of)
    return User(name=name, uid=entry.pw_uid, lacking=lacking)


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _unreadable(folder: Path) -> tuple[str, ...]:
    """Orders that the next agent will move aside."""
    return tuple(path for path in _paths(folder) if path.endswith(".json") and not _is_order(Path(path)))


def _is_order(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            read_order(path.name.removesuffix(".json"), file.read(MAX_ORDER))
    except FileNotFoundError:  # forgotten meanwhile
        return True
    except (OSError, codec.CodecError):
        return False
    return True


def _paths(folder: Path) -> tuple[str, ...]:
    """What begins with a dot is being written."""
    try:
        return tuple(sorted(str(entry) for entry in folder.iterdir() if not entry.name.startswith(".")))
    except OSError:
        return ()


def _gaps(path: Path) -> tuple[tuple[tuple[int, int], ...], str]:
    """Reads beside the agent, which goes on writing: a last line that is not whole yet is left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_JOURNAL))
            data = file.read(MAX_JOURNAL)
    except FileNotFoundError:
        return (), ""
    except OSError as wrong:
        return (), f"reading {path}: {wrong.strerror}"
    return gaps(_numbers(data.split(b"\n")[:-1])), ""


def _numbers(lines: Iterable[bytes]) -> Iterable[int]:
    for line in lines:
        try:
            yield codec.loads(JournalEntry, line, strict=False).number
        except codec.CodecError:  # noqa: PERF203 - one broken line must not hide the others
            continue


def gaps(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Numbers that are missing between the first and the last."""
    found: list[tuple[int, int]] = []
    before: int | None = None
    for number in numbers:
        if before is not None and number > before + 1:
            found.append((before + 1, number - 1))
        before = number if before is None else max(before, number)
    return tuple(found[-MAX_GAPS:])


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    """``8080,9000-9010``"""
    found = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.append((int(first), int(last or first)))
    return tuple(found)


def _text(path: Path) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(64 * 1024)
    except OSError:
        return ""


def _clock_kept() -> bool | None:
    """Whether something like NTP keeps the clock, by the kernel's word."""
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_SIZE))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != TIME_ERROR
