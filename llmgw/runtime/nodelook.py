"""What bootstrap must know of a machine, read only: prints one line ``look {JSON}``.

Runs by itself, standard library only, as ``python -I -S - WORK USER SERVICE FOLDER… < nodelook.py``. Never prints what
``agent.json`` holds but whose it is: there are secrets in it.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import importlib.util
import json
import os
import platform
import pwd
import shutil
import subprocess
import sys
import sysconfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILE = 4 * 1024 * 1024
PROGRAMS = (
    "systemctl",
    "useradd",
    "adduser",
    "crontab",
    "update-rc.d",
    "chkconfig",
    "rc-update",
)
NEEDED = ("asyncio", "ctypes", "json", "socket", "ssl", "tarfile", "zlib")
CRON = ("cron", "crond", "fcron", "dcron")


def read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FILE)
    except OSError:
        return None


def digest_of(path: str) -> str | None:
    data = read(path)
    return hashlib.sha256(data).hexdigest() if data is not None else None


def python() -> dict[str, Any]:
    return {
        "version": list(sys.version_info[:2]),
        "executable": sys.executable,
        "soabi": sysconfig.get_config_var("SOABI") or "",
        "freeThreaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "open": open_to_all(os.path.realpath(sys.executable)) and open_to_all(os.path.dirname(os.__file__)),
        "lacks": [name for name in NEEDED if importlib.util.find_spec(name) is None],
        "makesEnvironments": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
    }


def open_to_all(path: str) -> bool:
    """Whether a user without rights gets there."""
    while path != "/":
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return False
        if not mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def libc() -> str:
    """``glibc-2.36``, ``musl-1.2`` or ``musl``, of this Python."""
    name, version = platform.libc_ver()
    if name:
        return "%s-%s" % (name, version)
    return "musl" if "musl" in (sysconfig.get_config_var("SOABI") or "") or has_musl() else "unknown"


def has_musl() -> bool:
    return os.path.exists("/lib/ld-musl-%s.so.1" % platform.machine())


def nearest(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def folder(path: str) -> dict[str, Any]:
    there = nearest(path)
    about = os.statvfs(there)
    return {
        "path": path,
        "nearest": there,
        "isFolder": os.path.isdir(there),
        "free": about.f_bavail * about.f_frsize,
        "writable": os.access(there, os.W_OK | os.X_OK),
        "readOnly": bool(about.f_flag & os.ST_RDONLY),
        "noExec": bool(about.f_flag & os.ST_NOEXEC),
    }


def owner(work: str) -> dict[str, Any] | None:
    """Whose agent this is, by its settings. None: nobody's."""
    data = read(os.path.join(work, "agent.json"))
    if data is None:
        return None
    digest = hashlib.sha256(data).hexdigest()
    try:
        kept = json.loads(data)
        return {"node": str(kept["node"]), "fleet": kept.get("fleet"), "digest": digest}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"node": "", "fleet": None, "digest": digest}


def bundles(work: str) -> dict[str, Any]:
    try:
        names = sorted(os.listdir(os.path.join(work, "agents")))
    except OSError:
        names = []
    try:
        current = os.path.basename(os.readlink(os.path.join(work, "current")))
    except OSError:
        current = None
    return {
        "agents": [name for name in names if not name.startswith(".")],
        "current": current,
        "launcher": digest_of(os.path.join(work, "current", "bin", "llmgw-agent")),
        "version": version(work),
    }


def version(work: str) -> str:
    """Of the bundle that is current, whether its agent runs or not."""
    try:
        return str(json.loads(read(os.path.join(work, "current", "bundle.json")) or b"")["version"])
    except (ValueError, KeyError, TypeError):
        return ""


def holder(work: str) -> dict[str, Any] | None:
    """The agent that has the lock, as it wrote itself there, and the bundle that it was started from."""
    try:
        descriptor = os.open(os.path.join(work, "agent.lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            try:
                kept = json.loads(os.pread(descriptor, 65536, 0))
                found = {name: kept[name] for name in ("pid", "start", "version", "settings")}
            except (ValueError, KeyError, TypeError):
                return {"pid": 0, "start": 0, "version": "", "settings": "", "bundle": None}
            return dict(found, bundle=bundle_of(found["pid"], work))
        return None
    finally:
        os.close(descriptor)


def bundle_of(pid: int, work: str) -> str | None:
    begins = os.path.join(work, "agents") + "/"
    for part in (read("/proc/%d/cmdline" % pid) or b"").decode("utf-8", "replace").split("\0"):
        if part.startswith(begins):
            return part[len(begins) :].split("/")[0]
    return None


def others(work: str) -> list[str]:
    """Work directories of further agents on this machine."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            parts = (read("/proc/%s/cmdline" % name) or b"").decode("utf-8", "replace").split("\0")
            if "daemon" in parts and "--work" in parts[:-1] and any("llmgw" in part for part in parts[:5]):
                found.add(parts[parts.index("--work") + 1])
    return sorted(found - {work, ""})


def comm(pid: str) -> str:
    return (read("/proc/%s/comm" % pid) or b"").decode("utf-8", "replace").strip()


def ask(argv: list[str]) -> str:
    try:
        ended = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.decode("utf-8", "replace")


def main_pid(service: str) -> int:
    """Of systemd's service; 0: it does not run."""
    shown = ask(["systemctl", "show", "--property=MainPID", service + ".service"]).strip().partition("=")[2]
    return int(shown) if shown.isdigit() else 0


def boot_entries(work: str, service: str) -> list[str]:
    """The ways, other than systemd's, by which the agent is started at boot already."""
    mark = ("# llmgw-agent %s\n" % work).encode()
    found = [
        way
        for way in ("init.d", "local.d")
        if os.path.exists("/etc/%s/%s%s" % (way, service, ".start" if way == "local.d" else ""))
    ]
    if mark in (read("/etc/rc.local") or b""):
        found.append("rc.local")
    if shutil.which("crontab") and mark in ask(["crontab", "-l"]).encode():
        found.append("crontab")
    return found


def cron_runs() -> bool:
    return any(comm(name) in CRON for name in os.listdir("/proc") if name.isdigit())


def user(name: str) -> dict[str, Any] | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return {"uid": entry.pw_uid, "home": entry.pw_dir}


def groups() -> list[str]:
    found = []
    for name in ("video", "render"):
        try:
            grp.getgrnam(name)
        except KeyError:
            continue
        found.append(name)
    return found


def look(work: str, engine_user: str, service: str, folders: list[str]) -> dict[str, Any]:
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # noqa: TID251 - it runs by itself
    return {
        "python": python(),
        "arch": platform.machine(),
        "libc": libc(),
        "folders": [folder(path) for path in [work, *folders]],
        "owner": owner(work),
        "pretended": digest_of(os.path.join(work, "pretended.json")),
        "bundles": bundles(work),
        "holder": holder(work),
        "others": others(work),
        "systemd": comm("1") == "systemd" and os.path.isdir("/run/systemd/system"),
        "first": comm("1"),
        "unit": digest_of("/etc/systemd/system/%s.service" % service),
        "mainPid": main_pid(service) if os.path.isdir("/run/systemd/system") else 0,
        "bootEntries": boot_entries(work, service),
        "cronRuns": cron_runs(),
        "rcLocal": os.path.isfile("/etc/rc.local"),
        "localD": os.path.isdir("/etc/local.d"),
        "initD": os.path.isdir("/etc/init.d"),
        "programs": [name for name in PROGRAMS if shutil.which(name)],
        "user": user(engine_user),
        "groups": groups(),
    }


if __name__ == "__main__":
    sys.stdout.write("look " + json.dumps(look(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])) + "\n")
