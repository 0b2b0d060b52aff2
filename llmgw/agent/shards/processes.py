"""The real Spawner: starts engines under shims, finds them again, sees their ends, and kills what is left, with proof."""

import asyncio
import contextlib
import grp
import hashlib
import os
import pwd
import sys
from pathlib import Path
from typing import Any

from llmgw.agent.seams import Order, ProcessId, Running
from llmgw.agent.shards import cgroups, listeners, proc, statusfiles
from llmgw.agent.shards.belongings import AGENT_MARK, Belongings
from llmgw.agent.shards.shims import Shim
from llmgw.clock import Clock
from llmgw.model.ids import ShardId, parse_shard_id
from llmgw.model.problems import StalledError
from llmgw.model.report import Exit
from llmgw.model.struct import replace

SETTLE_WITHIN = 10.0
"""Seconds for a living shim to put a dead engine's end on record; it takes milliseconds."""
SHIM_OOM_SCORE = -500
ACCELERATOR_GROUPS = ("video", "render")


class ShimSpawner:
    """``work`` is the agent's work directory; ``python`` runs the shims, the agent's own by default. Without
    ``control_groups`` the weaker proofs must do, as on machines that have none to write to."""

    def __init__(
        self,
        work: Path,
        *,
        clock: Clock,
        python: str = sys.executable,
        control_groups: bool = True,
    ) -> None:
        self._work = work
        self._clock = clock
        self._python = python
        self._tag = tag_of(work)
        self._boot = proc.boot_id()
        self._prepared: dict[tuple[str, str], Shim] = {}
        self._statuses = work / "status"
        self._belongings = Belongings(
            status_folder=self._statuses,
            log_folder=work / "logs",
            place=cgroups.own_place(self._tag) if control_groups else None,
            tag=self._tag,
            boot_id=self._boot,
        )

    @property
    def boot_id(self) -> str:
        return self._boot

    @property
    def control_group(self) -> Path | None:
        """Where its shards' groups are made; None: other proofs must do."""
        return self._belongings.place

    async def spawn(self, order: Order) -> Running:
        what = f"starting process {order.process} of shard {order.shard}"
        path = Path(order.status_file)
        before = statusfiles.read(path)
        if before is not None and (self._lives(before.shim) or self._lives(before.engine)):
            raise StalledError(f"{what}: it runs already as pid {_pid(before.engine)}: stop it first")
        _prepare(what, path, Path(order.log))
        try:
            why = await self._run_shim(order)
        except StalledError as wrong:
            raise StalledError(f"{what}: {wrong}") from wrong
        if why:
            raise StalledError(f"{what}: {why}")
        status = statusfiles.read(path)
        if status is None or status.engine is None:
            raise StalledError(f"{what}: the shim has started it, but {path} can't be read: see to that disk")
        return status.running(order.shard, order.process, shim_lives=True)

    async def find(
        self, shard: str, process: str, status_file: str, *, known: Running | None = None
    ) -> Running | Exit | None:
        path = Path(status_file)
        for pause in _pauses(SETTLE_WITHIN):
            status = statusfiles.read(path)
            if status is None:
                recorded = self._as_recorded(known, path)
                if recorded is not None or not self._belongings.starting(shard, process):
                    return recorded
            elif status.exit is not None:
                return status.exit
            elif status.error:
                return Exit(at=status.started, process=process, detail=status.error)
            elif self._lives(status.engine):
                return status.running(shard, process, shim_lives=self._lives(status.shim))
            elif not self._lives(status.shim):
                return self._unseen(process, statusfiles.read(path))
            else:
                proc.wake(status.shim)
            await asyncio.sleep(pause)
        return self._unseen(process, statusfiles.read(path))

    def _as_recorded(self, known: Running | None, path: Path) -> Running | None:
        """What is known of it is written down twice again, so that it can be lost once more."""
        if known is None or not self._lives(known.engine):
            return None
        found = replace(known, shim=known.shim if self._lives(known.shim) else None)
        with contextlib.suppress(OSError):
            statusfiles.restore(path, found)
        return found

    async def exited(self, running: Running, status_file: str) -> Exit:
        if running.engine is not None:
            await self._gone(running.engine)
        for pause in _pauses(SETTLE_WITHIN):
            shim_lives = self._lives(running.shim)
            status = statusfiles.read(Path(status_file))
            if status is not None and status.engine == running.engine and status.exit is not None:
                return status.exit
            if not shim_lives or running.shim is None:
                break
            proc.wake(running.shim)
            await asyncio.sleep(pause)
        return self._unseen(running.process, None)

    async def signal(self, running: Running, number: int) -> None:
        engine = running.engine
        if engine is not None and self._lives(engine):
            # The engine leads its own group. Between the look and the signal it can only have ended, and its number
            # stays taken while its group has members.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.pid, number)

    async def used(self, shard: str) -> bool:
        return self._belongings.used(shard)

    async def remaining(self, shard: str) -> tuple[int, ...]:
        left = self._belongings.of(shard) | set(self._belongings.shims(shard))
        if not left:
            self._belongings.tidy(shard)
        return tuple(sorted(left))

    async def kill_remaining(self, shard: str, *, shims: bool = False) -> None:
        self._belongings.kill(shard, shims=shims)

    async def cpu_seconds(self, shard: str) -> float:
        return sum(proc.cpu_seconds(pid) for pid in self._belongings.of(shard))

    async def describe(self, pids: tuple[int, ...]) -> str:
        return ", ".join(proc.describe(pid) for pid in pids)

    async def strays(self, known: frozenset[str]) -> tuple[str, ...]:
        return self._belongings.strays(known)

    async def listener(self, port: int) -> tuple[int, str | None] | None:
        sockets = listeners.sockets(port)
        if not sockets:
            return None
        for pid, shard in self._belongings.engines().items():  # mostly one of them, and there are few
            if listeners.holders(sockets, [pid]):
                return pid, shard
        found = listeners.holders(sockets, sorted(proc.living()))
        owned = [(pid, owner) for pid in found if (owner := self._belongings.owner(pid)) is not None]
        if owned:
            return owned[0]
        return (found[0], None) if found else (0, None)

    async def owner(self, pid: int) -> str | None:
        return self._belongings.owner(pid)

    # ---- The shim ---------------------------------------------------------------------------------------

    async def prepare(self, shard: str, process: str) -> None:
        if (shard, process) in self._prepared:
            return
        with contextlib.suppress(StalledError):  # its spawn tries again, and says why it can't be
            self._prepared[shard, process] = await self._begin(shard, process)

    async def dismiss(self, shard: str) -> None:
        waiting = [process for name, process in self._prepared if name == shard]
        for shim in [self._prepared.pop((shard, process)) for process in waiting]:
            await shim.dismiss()

    async def _begin(self, shard: str, process: str) -> Shim:
        return await Shim.begin(self._python, f"{self._tag}/{shard}/{process}")

    async def _run_shim(self, order: Order) -> str:
        """Empty when the engine is executed, else why not."""
        filled = self._shim_order(order)
        prepared = self._prepared.pop((order.shard, order.process), None)
        shim = prepared or await self._begin(order.shard, order.process)
        return await shim.order(filled)

    def _shim_order(self, order: Order) -> dict[str, Any]:
        group = self._belongings.cgroup(order.shard)
        return {
            "shard": order.shard,
            "process": order.process,
            "argv": list(order.argv),
            "env": {**order.env, AGENT_MARK: self._tag},
            "home": str(Path(order.directory).parent),
            "directory": order.directory,
            "files": dict(order.files),
            "log": order.log,
            "statusFile": order.status_file,
            "user": _identity(order.user),
            "group": self._group(order.shard),
            "cgroup": str(group) if group is not None else None,
            "bootId": self._boot,
            "shimOomScoreAdj": SHIM_OOM_SCORE,
        }

    def _group(self, shard: str) -> int | None:
        """What jobs bring belongs to no shard, and keeps the agent's group."""
        if os.geteuid() != 0 or parse_shard_id(ShardId(shard)) is None:
            return None
        return self._belongings.group(shard)

    # ---- Ends ---------------------------------------------------------------------------------------------

    def _lives(self, process: ProcessId | None) -> bool:
        return proc.alive(process, self._boot)

    def _unseen(self, process: str, status: statusfiles.Status | None) -> Exit:
        if status is not None and status.exit is not None:
            return status.exit
        return Exit(at=self._clock.now(), process=process, detail="its shim was killed before it could tell")

    async def _gone(self, process: ProcessId) -> None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return
        except OSError:  # before Linux 5.3
            await self._poll_gone(process)
            return
        try:
            if not self._lives(process):
                return
            ended = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().add_reader(descriptor, _resolve, ended)
            try:
                await ended
            finally:
                asyncio.get_running_loop().remove_reader(descriptor)
        finally:
            os.close(descriptor)

    async def _poll_gone(self, process: ProcessId) -> None:
        while self._lives(process):  # noqa: ASYNC110 - the kernel offers nothing to wait for
            await asyncio.sleep(0.2)


def tag_of(work: Path) -> str:
    """Names the agent of a work directory among several of one machine."""
    return hashlib.sha256(os.fsencode(work.resolve())).hexdigest()[:8]


def _prepare(what: str, status_file: Path, log: Path) -> None:
    """The folders; and no earlier end may be taken for this start's."""
    try:
        status_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        status_file.unlink(missing_ok=True)
    except OSError as wrong:
        raise StalledError(f"{what}: {wrong.strerror}: {wrong.filename}: see to the agent's disk") from wrong


def _resolve(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)


def _pauses(within: float) -> list[float]:
    """Growing pauses that sum up to about ``within`` seconds."""
    pauses, pause = [0.0], 0.002
    while sum(pauses) < within:
        pauses.append(pause)
        pause = min(pause * 1.5, 0.25)
    return pauses


def _pid(process: ProcessId | None) -> str:
    return str(process.pid) if process else "?"


def _identity(user: str | None) -> dict[str, Any] | None:
    """Numbers of a user, with the groups that open accelerators. None: the agent's own user."""
    if user is None:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError as wrong:
        raise StalledError(
            f"starting as user {user}: there is no such user: bootstrap the node again"
        ) from wrong
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise StalledError(f"starting as user {user}: only root may; the agent runs as uid {os.geteuid()}")
    groups = set(os.getgrouplist(user, entry.pw_gid))
    for name in ACCELERATOR_GROUPS:
        with contextlib.suppress(KeyError):
            groups.add(grp.getgrnam(name).gr_gid)
    return {"uid": entry.pw_uid, "gid": entry.pw_gid, "groups": sorted(groups)}
