"""Reading /proc: who processes are and whether they live. Nothing here is raised for a process that has gone
meanwhile."""

import contextlib
import os
import pwd
import signal
from pathlib import Path

from llmgw.agent.seams import ProcessId
from llmgw.model.struct import Struct

PROC = Path("/proc")
MAX_ENVIRON = 2 * 1024 * 1024
MAX_STATUS = 64 * 1024
CHUNK = 64 * 1024
KERNEL_THREAD = 0x00200000  # PF_KTHREAD
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
STATES = {
    "R": "running",
    "S": "asleep",
    "D": "D: in an uninterruptible wait",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}


class Stat(Struct):
    """Fields of /proc/PID/stat. ``start`` in clock ticks since boot: with the boot id it tells a process from a later
    one of the same number, and no clock step moves it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    threads: int
    start: int
    ticks: int = 0  # of CPU time
    kernel: bool = False

    @property
    def gone(self) -> bool:
        """A zombie is gone, unless threads live on behind a leader that has ended."""
        return self.state in "ZXx" and self.threads <= 1


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _read(pid: int, name: str, most: int = MAX_STATUS) -> bytes | None:
    """Without a Path and a buffer: a machine may have thousands of processes, and all are looked at to find what is left
    of a shard."""
    try:
        descriptor = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = part = os.read(descriptor, CHUNK)
        while part and len(data) < most:
            part = os.read(descriptor, CHUNK)
            data += part
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data[:most]


def stat(pid: int) -> Stat | None:
    data = _read(pid, "stat")
    return parse(pid, data) if data is not None else None


def parse(pid: int, data: bytes) -> Stat | None:
    """The text of /proc/PID/stat."""
    # The name may hold brackets and blanks: what counts comes after the last bracket.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
        start=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
        kernel=bool(int(fields[6]) & KERNEL_THREAD),
    )


def living() -> dict[int, Stat]:
    """Every process that is not gone. Not the kernel's own threads, of which big machines have thousands: they belong to
    nobody, and have nothing to look at."""
    names = os.listdir(PROC)  # noqa: PTH208 - see _read
    found = (stat(int(name)) for name in names if name.isdigit())
    return {one.pid: one for one in found if one is not None and not one.gone and not one.kernel}


def alive(process: ProcessId | None, boot: str) -> bool:
    """Whether exactly this process lives, not a later one of its number."""
    if process is None or process.boot_id != boot:
        return False
    found = stat(process.pid)
    return found is not None and found.start == process.start and not found.gone


def wake(process: ProcessId) -> None:
    """One of ours that somebody has stopped goes on."""
    found = stat(process.pid)
    if found is not None and found.start == process.start and found.state == "T":
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGCONT)


def environment(pid: int) -> list[bytes] | None:
    """``NAME=value`` entries as the process was executed with, or has made of them. None: not ours to read."""
    data = _read(pid, "environ", MAX_ENVIRON)
    if data is None:
        return None
    return [entry for entry in data.split(b"\0") if entry]


def has_all(pid: int, entries: tuple[bytes, ...]) -> bool:
    """Whether all these ``NAME=value`` stand in its environment."""
    data = _read(pid, "environ", MAX_ENVIRON)
    if not data:
        return False
    framed = b"\0%b\0" % data
    return all(b"\0%b\0" % entry in framed for entry in entries)


def real_group(pid: int) -> int | None:
    """The group id that a process was given: programs that are setgid change only their effective one."""
    found = (_read(pid, "status") or b"").partition(b"\nGid:")[2].split(maxsplit=1)
    return int(found[0]) if found and found[0].isdigit() else None


def appends_to(pid: int, below: str) -> list[str]:
    """Files in the folder ``below`` that are a process's standard output or error, opened to append."""
    found = []
    for number in (1, 2):
        try:
            # Only the link is read: looking at the file itself may hang, as on a dead network disk.
            path = os.readlink(f"{PROC}/{pid}/fd/{number}")  # noqa: PTH115 - perhaps no path
        except OSError:
            continue
        if not path.startswith(f"{below}/"):
            continue
        lines = (_read(pid, f"fdinfo/{number}") or b"").splitlines()
        flags = next((int(line[6:], 8) for line in lines if line.startswith(b"flags:")), 0)
        if flags & os.O_APPEND and flags & os.O_ACCMODE != os.O_RDONLY:
            found.append(path)
    return found


def cpu_seconds(pid: int) -> float:
    """Used so far, its threads' included; 0 for one that has gone."""
    one = stat(pid)
    return one.ticks / TICKS_A_SECOND if one is not None else 0


def describe(pid: int) -> str:
    """For people: its name, whose it is, what it is at, and where the kernel holds it."""
    one = stat(pid)
    if one is None:
        return f"pid {pid} (gone)"
    place = _text(pid, "wchan") if one.state == "D" else ""
    inside = f" in {place}" if place not in ("", "0") else ""
    state = STATES.get(one.state, one.state)
    return f"pid {pid} ({_text(pid, 'comm') or '?'}, user {_user(pid)}, {state}{inside})"


def _user(pid: int) -> str:
    try:
        uid = (PROC / str(pid)).stat().st_uid
        return pwd.getpwuid(uid).pw_name
    except OSError:
        return "?"
    except KeyError:
        return str(uid)


def _text(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(errors="replace").strip()
    except OSError:
        return ""


def control_group(pid: int) -> str | None:
    """Path of a process in the unified hierarchy."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    return next((line[3:] for line in lines if line.startswith("0::")), None)


def descendants(roots: set[int], processes: dict[int, Stat]) -> set[int]:
    """Everything below ``roots``, without them."""
    below: dict[int, list[int]] = {}
    for one in processes.values():
        below.setdefault(one.parent, []).append(one.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        fresh = [pid for pid in below.get(todo.pop(), []) if pid not in found and pid not in roots]
        found.update(fresh)
        todo += fresh
    return found
