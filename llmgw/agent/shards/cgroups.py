"""Control groups as proof of what belongs to a shard: membership survives setsid, double forks and a wiped
environment. Version 2 only, wherever it is mounted; no controller is ever enabled; nothing here is required."""

import contextlib
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


def mount(mountinfo: str) -> Path | None:
    """Where the unified hierarchy is mounted, from the text of /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            # Blanks in paths are written as \040.
            return Path(before.split(" ")[4].replace("\\040", " "))
    return None


def own_place(tag: str) -> Path | None:
    """A group that this agent may make children in: at the top for root, so that it outlives the agent's service,
    else below the agent's own. None: there is no such place, and other proofs must do."""
    try:
        top = mount(Path("/proc/self/mountinfo").read_text())
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    if top is None:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    base = top if os.geteuid() == 0 else top / own.lstrip("/")
    place = base / f"llmgw-{tag}"
    try:
        # Only tried out: a shard's first process makes it, its last one's end removes it.
        place.mkdir(exist_ok=True)
    except OSError as wrong:
        log.info("control groups can't be used as proof of ownership: %s: %s", place, wrong.strerror)
        return None
    with contextlib.suppress(OSError):
        place.rmdir()
    return place


def members(group: Path) -> set[int]:
    """Pids in a group and the groups below it. None there, or gone: empty."""
    return {pid for folder, _, _ in os.walk(group) for pid in _procs(Path(folder))}


def _procs(group: Path) -> list[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def kill(group: Path) -> bool:
    """All at once, with nobody escaping by forking. False: this kernel can't; kill one by one."""
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:
        return False
    return True


def remove_empty(group: Path) -> None:
    """From the bottom up, and the agent's own place with the last of them; a group with members stays."""
    folders = [Path(folder) for folder, _, _ in os.walk(group, topdown=False)]
    for folder in (*folders, group.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()
