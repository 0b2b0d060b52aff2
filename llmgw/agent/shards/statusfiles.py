"""What shims have written about the processes they started: ``status/<shard>.<process>.json``."""

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from llmgw.agent.seams import ProcessId, Running
from llmgw.model.report import Exit
from llmgw.model.struct import Struct

MAX_STATUS = 64 * 1024


class Status(Struct):
    """``exit`` is set when the process has ended, ``error`` when it was never executed."""

    boot_id: str
    started: datetime
    shim: ProcessId
    engine: ProcessId | None = None
    cgroup: str | None = None
    exit: Exit | None = None
    error: str = ""

    def running(self, shard: str, process: str, *, shim_lives: bool) -> Running:
        return Running(
            shard=shard,
            process=process,
            shim=self.shim if shim_lives else None,
            engine=self.engine,
            started=self.started,
        )


def read(path: Path) -> Status | None:
    """None: not there, or not a status; it is always written whole, so the latter is nobody's but a stranger's."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MAX_STATUS))
        return _status(data, process=path.name.rsplit(".", 2)[-2])
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def restore(path: Path, running: Running) -> None:
    """Writes anew what was lost of a process that lives, as its order knows it; its shim writes over it when it ends.
    Raises OSError."""
    engine, shim = running.engine, running.shim
    assert engine is not None, "it lives"
    data = {
        "bootId": engine.boot_id,
        "startedAt": running.started.timestamp(),
        "cgroup": None,
        "shim": {"pid": shim.pid if shim else 0, "start": shim.start if shim else 0},
        "engine": {"pid": engine.pid, "start": engine.start},
    }
    beside = path.with_name(f"{path.name}.restored")
    with open(beside, "w", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
        json.dump(data, file)
    beside.replace(path)


def _status(data: dict[str, Any], *, process: str) -> Status:
    boot = str(data["bootId"])
    engine = data.get("engine")
    ended = data.get("exit")
    return Status(
        boot_id=boot,
        started=_time(data["startedAt"]),
        shim=_process(boot, data["shim"]),
        engine=_process(boot, engine) if engine else None,
        cgroup=data.get("cgroup"),
        exit=_exit(ended, process) if ended else None,
        error=str(data.get("error", "")),
    )


def _exit(ended: dict[str, Any], process: str) -> Exit:
    return Exit(at=_time(ended["at"]), process=process, code=ended.get("code"), signal=ended.get("signal"))


def _process(boot: str, data: dict[str, Any]) -> ProcessId:
    return ProcessId(boot_id=boot, pid=int(data["pid"]), start=int(data["start"]))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
