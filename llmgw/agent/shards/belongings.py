"""What provably belongs to a shard, whatever it did to hide. The ladder, strongest first: membership of the shard's
control group; descent from its shim or engine, whose identity is verified; the session its engine made; its own group
id; the marker in the environment; its log as output. Everything else is foreign and never touched."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmgw.agent.seams import ProcessId
from llmgw.agent.shards import cgroups, proc, statusfiles, traces
from llmgw.agent.shards.proc import Stat
from llmgw.agent.shards.statusfiles import Status
from llmgw.model.ids import ShardId, parse_shard_id
from llmgw.model.struct import Struct

SHARD_MARK = "LLMGW_SHARD"
AGENT_MARK = "LLMGW_AGENT"
SHIM_MARK = "LLMGW_SHIM"


class _Borne(Struct):
    """What each process of one shard bears: reckoned once, for it is looked for in all processes of the machine."""

    group: int | None
    marks: tuple[bytes, ...]
    logs: Path


class Belongings:
    """``tag`` names this agent among several on one machine: two fleets may well use the same shard id."""

    def __init__(
        self, *, status_folder: Path, log_folder: Path, place: Path | None, tag: str, boot_id: str
    ) -> None:
        self._folder = status_folder
        self._logs = log_folder.resolve()
        self.place = place
        self._tag = tag
        self._boot = boot_id

    def marks(self, shard: str) -> Mapping[str, str]:
        return {SHARD_MARK: shard, AGENT_MARK: self._tag}

    def cgroup(self, shard: str) -> Path | None:
        return None if self.place is None else self.place / shard

    def group(self, shard: str) -> int | None:
        """The group id that only this shard's processes are given; None: another's here would be the same."""
        own = traces.group_of(self._tag, shard)
        others = (traces.group_of(self._tag, name) for name in self._names() if name != shard)
        return None if own in others else own

    def statuses(self, shard: str) -> dict[str, Status]:
        """By process."""
        return {process: status for _, process, status in self._all(shard)}

    def used(self, shard: str) -> bool:
        """By its log's folder, which is made before a first process is and goes when the shard is forgotten; by a status or a
        group, should somebody have taken that away."""
        group = self.cgroup(shard)
        return (
            (self._logs / shard).exists()
            or (group is not None and group.exists())
            or any(owner == shard for _, owner, _ in self._status_files())
        )

    def engines(self) -> dict[int, str]:
        """The shards of those that live."""
        return {
            status.engine.pid: shard
            for shard, _, status in self._all()
            if status.engine is not None and proc.alive(status.engine, self._boot)
        }

    def of(self, shard: str) -> set[int]:
        """Pids that live, without the shims."""
        statuses = list(self.statuses(shard).values())
        members = self._members(shard, statuses)
        if members:
            return members  # enough to go on killing; only an empty group calls for the long look
        return self._search(shard, statuses)

    def shims(self, shard: str) -> dict[int, Status]:
        """Shims that live."""
        return {
            status.shim.pid: status
            for status in self.statuses(shard).values()
            if proc.alive(status.shim, self._boot)
        }

    def kill(self, shard: str, *, shims: bool = False) -> None:
        """SIGKILL. A shim goes this way when it has put its engine's end on record; with ``shims`` in any case."""
        groups = {Path(s.cgroup) for s in self.statuses(shard).values() if s.cgroup}
        for group in groups:
            cgroups.kill(group)
        for pid in self.of(shard):
            _kill(pid)
        for pid, status in self.shims(shard).items():
            if shims or status.exit is not None or status.error:
                _kill(pid)

    def tidy(self, shard: str) -> None:
        """After the last process."""
        for status in self.statuses(shard).values():
            if status.cgroup:
                cgroups.remove_empty(Path(status.cgroup))
        if os.geteuid() == 0 and (group := self.group(shard)) is not None:
            traces.clean(group)

    def owner(self, pid: int) -> str | None:
        """The shard a process belongs to."""
        one = proc.stat(pid)
        if one is None or one.gone:
            return None
        group = proc.control_group(pid) or ""
        head, mark, tail = group.partition(f"/llmgw-{self._tag}/")
        if mark and self.place is not None and (head == "" or str(self.place.parent).endswith(head)):
            return tail.split("/", 1)[0]
        line = set(self._ancestors(one))
        for shard, _, status in self._all():
            if any(p is not None and p.pid in line and proc.alive(p, self._boot) for p in _both(status)):
                return shard
        for shard, _, status in self._all():
            if self._in_session(one, status):
                return shard
        # Also of those whose status can't be read: what a process bears is proof without it.
        return next((shard for shard in self._names() if self._bears(pid, self._borne(shard))), None)

    def strays(self, known: frozenset[str]) -> tuple[str, ...]:
        """Shards, not among ``known``, of which processes live."""
        named = {shard for shard, _, _ in self._all()} | self._marks_seen()
        for folder in (self.place, self._logs):
            named |= _folders(folder) if folder is not None else set()
        # Only a shard's id: jobs have processes too.
        asked = sorted(name for name in named - known if parse_shard_id(ShardId(name)) is not None)
        return tuple(shard for shard in asked if self.of(shard))

    def _marks_seen(self) -> set[str]:
        own, mark = f"{AGENT_MARK}={self._tag}".encode(), f"{SHARD_MARK}=".encode()
        all_entries = (entries for pid in proc.living() if (entries := proc.environment(pid)))
        ours = (entry for entries in all_entries if own in entries for entry in entries)
        return {entry[len(mark) :].decode(errors="replace") for entry in ours if entry.startswith(mark)}

    def starting(self, shard: str, process: str) -> bool:
        """Whether a shim lives that may not have written anything yet."""
        mark = f"{SHIM_MARK}={self._tag}/{shard}/{process}".encode()
        return any(mark in entries for entries in map(proc.environment, proc.living()) if entries)

    # ---- Proofs ---------------------------------------------------------------------------------------

    def _all(self, only: str | None = None) -> Iterator[tuple[str, str, Status]]:
        """Of all shards, or of one."""
        for name, shard, process in self._status_files():
            if only in (None, shard):
                status = statusfiles.read(self._folder / name)
                if status is not None and status.boot_id == self._boot:
                    yield shard, process, status

    def _status_files(self) -> Iterator[tuple[str, str, str]]:
        """Each with its shard and process."""
        for name in sorted(_folders(self._folder)):
            shard, _, process = name.removesuffix(".json").rpartition(".")
            if name.endswith(".json") and shard:
                yield name, shard, process

    def _names(self) -> list[str]:
        """Shards that have had a process here; one is started only when its log has a folder."""
        return sorted(_folders(self._logs))

    def _members(self, shard: str, statuses: list[Status]) -> set[int]:
        groups = {Path(status.cgroup) for status in statuses if status.cgroup}
        if (own := self.cgroup(shard)) is not None:
            groups.add(own)
        pids = {pid for group in groups for pid in cgroups.members(group)}
        return {pid for pid in pids if (one := proc.stat(pid)) is not None and not one.gone}

    def _search(self, shard: str, statuses: list[Status]) -> set[int]:
        processes = proc.living()
        shims = {status.shim.pid for status in statuses}
        roots = {p.pid for s in statuses for p in _both(s) if p is not None and proc.alive(p, self._boot)}
        found = proc.descendants(roots, processes) | (roots - shims)
        borne = self._borne(shard)
        for pid, one in processes.items():
            if pid in found or pid in shims:
                continue
            if any(self._in_session(one, status) for status in statuses) or self._bears(pid, borne):
                found.add(pid)
        return found

    def _in_session(self, one: Stat, status: Status) -> bool:
        engine = status.engine
        if engine is None or one.session != engine.pid or one.start < engine.start:
            return False
        leader = proc.stat(engine.pid)
        if leader is not None:
            return leader.start == engine.start
        # Without its leader a session could, in theory, be a stranger's that got the same number: only what hides
        # its environment, or shows our marker, counts then. A stranger's process shows an environment without it.
        entries = proc.environment(one.pid)
        return entries is not None and (not entries or f"{AGENT_MARK}={self._tag}".encode() in entries)

    def _borne(self, shard: str) -> "_Borne":
        marks = tuple(f"{name}={value}".encode() for name, value in self.marks(shard).items())
        return _Borne(group=self.group(shard), marks=marks, logs=self._logs / shard)

    def _bears(self, pid: int, borne: "_Borne") -> bool:
        return (
            (borne.group is not None and proc.real_group(pid) == borne.group)
            or proc.has_all(pid, borne.marks)
            or traces.writes_log(pid, borne.logs)
        )

    def _ancestors(self, one: Stat) -> Iterator[int]:
        seen: Stat | None = one
        while seen is not None and seen.pid > 1:
            yield seen.pid
            seen = proc.stat(seen.parent)


def _both(status: Status) -> tuple[ProcessId | None, ProcessId | None]:
    return status.shim, status.engine


def _folders(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in folder.iterdir()}
    except OSError:
        return set()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except OSError:
        return
