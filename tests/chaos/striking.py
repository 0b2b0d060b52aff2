"""Carries faults out, and undoes those that can be undone."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from tests.chaos.applying import Applying
from tests.chaos.faults import Fault, Kind
from tests.chaos.line import WORK, orders
from tests.chaos.room import DISK, Room, state_files
from tests.chaos.seen import Eyes, Seen, networks
from tests.rig import namespaces
from tests.rig.host import Host

T = TypeVar("T")
LOOKS: Final = 20
"""At how full a disk is, until it is full."""
FROZEN: Final = 2.0
"""Seconds at most that an engine or a whole host stands still: much less than it takes to call an engine dead."""
UPGRADING: Final = 15.0
"""Seconds to wait for the moment of an upgrade that is to be interrupted; the controller may be busy with something else."""
Undo = Callable[[], None]


@dataclass(slots=True)
class Pending:
    """Undone when so many more faults have happened."""

    host: str
    what: str
    left: int
    undo: Undo


@dataclass(slots=True)
class Striker:
    """One fault at a time; what lasts overlaps with the next ones."""

    room: Room
    applying: Applying
    _pending: list[Pending] = field(default_factory=list)
    _eyes: Eyes = field(init=False)

    def __post_init__(self) -> None:
        self._eyes = Eyes(networks({host.name: host.namespace for host in self.room.rig.hosts}))

    def strike(self, fault: Fault) -> None:
        host = self.room.rig.hosts[fault.host]
        undo = self._carry_out(fault, host)
        time.sleep(fault.hold)
        for pending in self._pending:
            pending.left -= 1
        if undo is not None:
            self._pending.append(Pending(host.name, fault.kind.told, fault.lasts, undo))
        self._undo([pending for pending in self._pending if pending.left <= 0])
        time.sleep(fault.pause)

    def undo_all(self) -> None:
        """Quiet from now on."""
        self._undo(list(self._pending))

    def _undo(self, several: Sequence[Pending]) -> None:
        for pending in several:
            self._pending.remove(pending)
            self.room.story.tell(f"{pending.host}: over: {pending.what}")
            pending.undo()

    def _carry_out(self, fault: Fault, host: Host) -> Undo | None:
        ways: dict[Kind, Callable[[Fault, Host], Undo | None]] = {
            Kind.KILL_AGENT: self._kill_agent,
            Kind.KILL_SHIM: self._kill_shim,
            Kind.KILL_ENGINE: self._kill_engine,
            Kind.KILL_SIDECAR: self._kill_sidecar,
            Kind.KILL_CONTROLLER: self._kill_controller,
            Kind.POWER_CUT: self._cut_power,
            Kind.CUT_LINK: self._cut_link,
            Kind.FILL_DISK: self._fill_disk,
            Kind.FREEZE_AGENT: self._freeze_agent,
            Kind.FREEZE_ENGINE: self._freeze_engine,
            Kind.FREEZE_HOST: self._freeze_host,
            Kind.CORRUPT: self._corrupt,
            Kind.UPGRADE: self._upgrade,
        }
        return ways[fault.kind](fault, host)

    # ---- whom --------------------------------------------------------------------------------------

    def _on(self, host: Host) -> list[Seen]:
        return [one for one in self._eyes.look() if one.host == host.name]

    def _agents(self, host: Host) -> list[Seen]:
        return [one for one in self._on(host) if one.agent]

    def _engines(self, host: Host) -> list[Seen]:
        """Engines and sidecars themselves, not what they forked."""
        living = self.room.watcher.instances().values()
        return [one.first for one in living if one.first.host == host.name and one.first.pid in one.members]

    def _tell(self, fault: Fault, host: Host, more: str = "") -> None:
        self.room.story.tell(f"{host.name}: {fault.kind.told}{more}")

    # ---- processes -----------------------------------------------------------------------------------

    def _kill_agent(self, fault: Fault, host: Host) -> None:
        self._kill(fault, host, self._agents(host))

    def _kill_shim(self, fault: Fault, host: Host) -> None:
        self._kill(fault, host, [one for one in self._on(host) if one.shim])

    def _kill(self, fault: Fault, host: Host, found: Sequence[Seen]) -> None:
        one = picked(found, fault.pick)
        self._tell(fault, host, f", pid {one.pid}" if one else ": there is none")
        if one is not None:
            send(one.pid, signal.SIGKILL)

    def _kill_engine(self, fault: Fault, host: Host) -> None:
        self._kill_of_shard(fault, host, [one for one in self._engines(host) if not one.sidecar])

    def _kill_sidecar(self, fault: Fault, _: Host) -> None:
        host = self.room.side_host
        self._kill_of_shard(fault, host, [one for one in self._engines(host) if one.sidecar])

    def _kill_of_shard(self, fault: Fault, host: Host, found: Sequence[Seen]) -> None:
        one = picked(found, fault.pick)
        self._tell(fault, host, f" of {one.shard}, pid {one.pid}" if one else ": there is none")
        if one is not None:
            self.room.excuses.note(fault.kind.told, host=host.name, shard=one.shard)
            send(one.pid, signal.SIGKILL)

    def _kill_controller(self, fault: Fault, _: Host) -> None:
        self.room.story.tell(f"{fault.kind.told}: {'done' if self.applying.kill() else 'none is at work'}")

    def _freeze_agent(self, fault: Fault, host: Host) -> Undo | None:
        return self._freeze(fault, host, self._agents(host))

    def _freeze(self, fault: Fault, host: Host, found: Sequence[Seen]) -> Undo | None:
        one = picked(found, fault.pick)
        self._tell(fault, host, f", pid {one.pid}" if one else ": there is none")
        if one is None:
            return None
        send(one.pid, signal.SIGSTOP)
        return lambda: send(one.pid, signal.SIGCONT)

    def _freeze_engine(self, fault: Fault, host: Host) -> None:
        if (undo := self._freeze(fault, host, self._engines(host))) is not None:
            time.sleep(min(fault.hold, FROZEN))
            undo()

    def _freeze_host(self, fault: Fault, host: Host) -> None:
        self._tell(fault, host)
        host.freeze()
        time.sleep(min(fault.hold, FROZEN))
        host.thaw()

    # ---- machines ------------------------------------------------------------------------------------

    def _cut_power(self, fault: Fault, host: Host) -> None:
        shards = {one.shard for one in self.room.watcher.instances().values() if one.first.host == host.name}
        # A rank that still waits for the first has no process yet, and its agent does not start it again by itself.
        shards |= {file.stem for file in orders(Path(f"/proc/{host.init}/root"))}
        self.room.excuses.ranks_on(host.name, shards, fault.kind.told)
        self.room.excuses.note(fault.kind.told, host=host.name)
        self._tell(fault, host)
        host.power_off()
        # What is started between the note above and the end of all has no other excuse.
        self.room.excuses.note(fault.kind.told, host=host.name)
        time.sleep(fault.hold)
        host.power_on()
        self.room.story.tell(f"{host.name}: the power is back")

    def _cut_link(self, fault: Fault, host: Host) -> Undo:
        self._tell(fault, host)
        host.cut()
        return host.heal

    def _fill_disk(self, fault: Fault, host: Host) -> Undo:
        disk = host.folder / "disk"
        self._tell(fault, host)
        _leave_no_room(disk)

        def free() -> None:
            namespaces.run("mount", "-o", f"remount,size={DISK}", str(disk))

        return free

    def _corrupt(self, fault: Fault, host: Host) -> Undo | None:
        for one in self._agents(host):
            send(one.pid, signal.SIGKILL)
        file = picked([file for file in state_files(host) if not _last_of_two(file)], fault.pick)
        if file is None:
            self._tell(fault, host, ": there is none")
            return None
        data = file.read_bytes()
        broken = picked((data[: len(data) // 2], b"\0" * len(data), b"", b"[" * 100_000), fault.how) or b""
        self._tell(fault, host, f": {file.relative_to(file.parents[1])}, {len(data)} -> {broken[:2]!r}…")
        if file.parent.name == "shards" and not list(file.parents[1].glob(f"status/{file.stem}.*")):
            # Of what had no process yet nobody knows any more; the other ranks may be ended for it.
            self.room.excuses.note(fault.kind.told, host=host.name, shard=file.stem)
        with suppress(OSError):  # on a full disk it is just cut off
            file.write_bytes(broken)
        if file.name != "owner.json":
            return None
        # The agent does not start without it, and says that a person must remove it.
        return lambda: file_of(host, file).unlink(missing_ok=True)

    # ---- upgrades ------------------------------------------------------------------------------------

    def _upgrade(self, fault: Fault, host: Host) -> Undo | None:
        # A host that nobody can reach, or that takes nothing, is not upgraded, and the moment would never come.
        self._undo([pending for pending in self._pending if pending.host == host.name])
        moment = picked((unpacking, unpacked, switched), fault.pick)
        assert moment is not None
        before = moment(host)
        version = self.room.newer()
        self._tell(fault, host, f" to {version}; at {moment.__name__} there something happens")
        end = time.monotonic() + UPGRADING
        while moment(host) == before:
            if time.monotonic() > end:
                self.room.story.tell(f"{host.name}: {moment.__name__} did not come in time")
                return None
            time.sleep(0.005)
        what = picked(("nothing", "the agent dies", "the controller dies", "the cable"), fault.how)
        self.room.story.tell(f"{host.name}: {moment.__name__}: {what}")
        if what == "the agent dies":
            for one in self._agents(host):
                send(one.pid, signal.SIGKILL)
        elif what == "the controller dies":
            self.applying.kill()
        elif what == "the cable":
            host.cut()
            return host.heal
        return None


# ---- moments of an upgrade ---------------------------------------------------------------------------


def _leave_no_room(disk: Path) -> None:
    """What is written between the look and the mount makes that size too small, which the kernel refuses: once more then."""
    refused: Exception | None = None
    for _ in range(LOOKS):
        state = os.statvfs(disk)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        try:
            namespaces.run("mount", "-o", f"remount,size={used}", str(disk))
        except RuntimeError as wrong:
            refused = wrong
        else:
            return
    raise RuntimeError(f"filling {disk} in {LOOKS} tries") from refused


def unpacking(host: Host) -> object:
    return _listed(host, hidden=True)


def unpacked(host: Host) -> object:
    return _listed(host, hidden=False)


def switched(host: Host) -> object:
    with suppress(OSError):
        return Path(f"/proc/{host.init}/root{WORK}/current").readlink()
    return None


def _listed(host: Host, *, hidden: bool) -> object:
    with suppress(OSError):
        names = sorted(path.name for path in Path(f"/proc/{host.init}/root{WORK}/agents").iterdir())
        return [name for name in names if name.startswith(".") == hidden]
    return None


def _last_of_two(file: Path) -> bool:
    """What runs is known by its order and by its shim's word; when both are lost nobody can tell how it runs, and it is ended."""
    shard = file.name.removesuffix(".json")
    if file.parent.name == "status":
        shard = shard.removesuffix(".end").removesuffix(".json").rpartition(".")[0]
    elif file.parent.name != "shards":
        return False
    work = file.parents[1]
    words = [work / "shards" / f"{shard}.json", *(work / "status").glob(f"{shard}.*.json")]
    return any(not _is_json(other) for other in words)


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return True


def file_of(host: Host, file: Path) -> Path:
    """The same file after a power cut, when the host's process 1 is another."""
    return Path(f"/proc/{host.init}/root{WORK}", *file.parts[-2:])


def picked(found: Sequence[T], pick: float) -> T | None:
    return found[int(pick * len(found))] if found else None


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
