"""Reading /proc: who processes are and whether they live. Reads only; nothing here is raised for a process that has
gone meanwhile."""

from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.seams import ProcessId

PROC = Path("/proc")
MAX_ENVIRON = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """Fields of /proc/PID/stat. ``start`` in clock ticks since boot: with the boot id it tells a process from a later
    one of the same number, and no clock step moves it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    threads: int
    start: int

    @property
    def gone(self) -> bool:
        """A zombie is gone, unless threads live on behind a leader that has ended."""
        return self.state in "ZXx" and self.threads <= 1


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat(pid: int) -> Stat | None:
    try:
        data = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
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
    )


def living() -> dict[int, Stat]:
    """Every process that is not gone."""
    found = (stat(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return {one.pid: one for one in found if one is not None and not one.gone}


def alive(process: ProcessId | None, boot: str) -> bool:
    """Whether exactly this process lives, not a later one of its number."""
    if process is None or process.boot_id != boot:
        return False
    found = stat(process.pid)
    return found is not None and found.start == process.start and not found.gone


def environment(pid: int) -> list[bytes] | None:
    """``NAME=value`` entries as the process was executed with, or has made of them. None: not ours to read."""
    try:
        with (PROC / str(pid) / "environ").open("rb") as file:
            data = file.read(MAX_ENVIRON)
    except OSError:
        return None
    return [entry for entry in data.split(b"\0") if entry]


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
