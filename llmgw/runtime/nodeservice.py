"""Starting and stopping the agent of a machine, now and at every boot: by systemd where it runs, else as a daemon with a
boot entry. One verb a call; each looks before it does, so that repeating it is harmless. Engines are never touched.

Runs by itself, standard library only: ``python -I -S -c LOADER SIZE SIZE VERB ARGUMENT…``, with this text and
then the verb's payload on standard input, and the sizes of both: a lost line ends either as if it had come whole. Prints one line ``service {JSON}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNITS = "/etc/systemd/system"
POLL = 0.05
STOP_WITHIN = 10.0
"""An agent ends within 2 s when told; more is a fault, and then it is killed. Its engines run on either way."""
LOG_LINES = 15
SAID = 4000
OOM_SCORE = -500


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """Not done; the text says why and what to try."""


def run(argv: list[str], text: str | None = None) -> tuple[int, str]:
    try:
        ended = subprocess.run(
            argv,
            input=(text or "").encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": PATH, "LC_ALL": "C"},
            timeout=90,
            check=False,
        )
    except FileNotFoundError:
        return 127, "%s: not found" % argv[0]
    except subprocess.TimeoutExpired:
        return 124, "%s: no end within 90 s" % argv[0]
    return ended.returncode, ended.stdout.decode("utf-8", "replace")[-256 * 1024 :]


def must(argv: list[str]) -> str:
    code, said = run(argv)
    if code:
        raise Refused("%s ended with %d: %s" % (shlex.join(argv), code, said.strip()[-SAID:]))
    return said.strip()


def read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def write_whole(path: str, text: str, mode: int) -> None:
    """What is as it should be stays: a full disk has no room for it a second time."""
    if read(path) == text and os.stat(path).st_mode & 0o7777 == mode:
        return
    beside = path + ".llmgw-new"
    try:
        with open(beside, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
    except OSError as wrong:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise OSError(wrong.errno, wrong.strerror, path) from wrong


# ---- At every boot --------------------------------------------------------------------------------------


def serve(work: str, name: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Makes the machine start the agent when it boots; the payload says by which ways it could, best first."""
    way = payload["way"]
    text = payload["text"]
    if way == "systemd":
        path = "%s/%s.service" % (UNITS, name)
        write_whole(path, text, 0o644)
        must(["systemctl", "daemon-reload"])
        must(["systemctl", "enable", "--quiet", name + ".service"])
    elif way == "crontab":
        change_crontab(work, text)
    elif way == "rc.local":
        change_rc_local(work, text)
    elif way == "local.d":
        write_whole("/etc/local.d/%s.start" % name, text, 0o755)
        run(["rc-update", "add", "local", "default"])
    elif way == "init.d":
        write_whole("/etc/init.d/%s" % name, text, 0o755)
        if shutil.which("update-rc.d", path=PATH):
            must(["update-rc.d", name, "defaults"])
        else:
            must(["chkconfig", "--add", name])
    return {"way": way}


def mark(work: str) -> str:
    return "# llmgw-agent %s" % work


def without(text: str, work: str) -> list[str]:
    return [line for line in text.splitlines() if not line.endswith(mark(work))]


def change_crontab(work: str, line: str | None) -> None:
    code, before = run(["crontab", "-l"])
    text = before if code == 0 else ""
    lines = without(text, work)
    wanted = "\n".join([*lines, "%s %s" % (line, mark(work))] if line else lines)
    if wanted.strip() != text.strip():
        code, said = run(["crontab", "-"], wanted + "\n" if wanted else "")
        if code and line:
            raise Refused("writing the crontab: %s" % said.strip()[-SAID:])


def change_rc_local(work: str, line: str | None) -> None:
    """Right after its first line: what follows may end by ``exit``."""
    path = "/etc/rc.local"
    text = read(path) or "#!/bin/sh -e\n"
    lines = without(text, work)
    if line:
        at = 1 if lines and lines[0].startswith("#!") else 0
        lines.insert(at, "%s %s" % (line, mark(work)))
    wanted = "\n".join(lines) + "\n"
    if wanted != text or (line and not os.access(path, os.X_OK)):
        write_whole(path, wanted, 0o755)


def unserve(work: str, name: str) -> dict[str, Any]:
    """Takes every way to start it at boot away."""
    unit = "%s/%s.service" % (UNITS, name)
    if os.path.exists(unit):
        run(["systemctl", "disable", "--quiet", name + ".service"])
        os.unlink(unit)
        run(["systemctl", "daemon-reload"])
    if shutil.which("crontab", path=PATH):
        change_crontab(work, None)
    if mark(work) in (read("/etc/rc.local") or ""):
        change_rc_local(work, None)
    with contextlib.suppress(OSError):
        os.unlink("/etc/local.d/%s.start" % name)
    if os.path.exists("/etc/init.d/%s" % name):
        with contextlib.suppress(OSError):
            os.unlink("/etc/init.d/%s" % name)
        run(
            ["update-rc.d", name, "remove"]
            if shutil.which("update-rc.d", path=PATH)
            else ["chkconfig", "--del", name]
        )
    return {}


# ---- Now ------------------------------------------------------------------------------------------------


def holder(work: str) -> dict[str, Any] | None:
    """The agent that has the lock; None: none runs. Pid 0: it has not said who it is yet."""
    try:
        descriptor = os.open(os.path.join(work, "agent.lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        try:
            kept = json.loads(os.pread(descriptor, 65536, 0))
            return {"pid": int(kept["pid"]), "start": int(kept["start"]), "settings": str(kept["settings"])}
        except (ValueError, KeyError, TypeError):
            return {"pid": 0, "start": 0, "settings": ""}
    finally:
        os.close(descriptor)
    return None


def is_process(found: dict[str, Any]) -> bool:
    """Whether the pid still is the process that wrote itself into the lock file."""
    try:
        with open("/proc/%d/stat" % found["pid"], "rb") as file:
            data = file.read(4096)
    except OSError:
        return False
    fields = data[data.rfind(b")") + 2 :].split()
    return len(fields) > 19 and int(fields[19]) == found["start"]


def end(work: str) -> None:
    """Ends whoever has the lock. Returns when it is free."""
    begun = time.monotonic()
    while True:
        found = holder(work)
        if found is None:
            return
        late = time.monotonic() - begun
        if late > 2 * STOP_WITHIN:
            raise Refused(
                "ending the agent of %s: pid %d does not end: end it by hand" % (work, found["pid"])
            )
        if is_process(found):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found["pid"], signal.SIGKILL if late > STOP_WITHIN else signal.SIGTERM)
        time.sleep(POLL)


def main_pid(name: str) -> int:
    code, said = run(["systemctl", "show", "--property=MainPID", name + ".service"])
    return int(said.strip().partition("=")[2] or 0) if code == 0 else 0


def start(work: str, name: str, way: str, settings: str, within: str, before: str) -> dict[str, Any]:
    """Starts the agent anew and waits until it listens, with the settings that it should have. ``before`` is the agent
    that is to go, as ``pid:start``: where another one has come since that is right, somebody else has done this."""
    found = holder(work)
    if (
        found is not None
        and "%d:%d" % (found["pid"], found["start"]) != before
        and is_right(work, name, way, settings)
    ):
        return {"pid": found["pid"]}
    if way == "systemd":
        if found is not None and found["pid"] != main_pid(name):
            end(work)
        must(["systemctl", "reset-failed", name + ".service"])
        # Not until it is up: why it does not come up is found out below.
        must(["systemctl", "restart", "--no-block", name + ".service"])
        return wait_up(work, settings, float(within), lambda: systemd_ended(name))
    end(work)
    process = spawn(work)
    return wait_up(work, settings, float(within), lambda: ended_by_itself(process))


def is_right(work: str, name: str, way: str, settings: str) -> bool:
    """Whether the agent that runs is of the current bundle, has the settings, and is the service's own."""
    found = holder(work)
    if found is None or found["settings"] != settings or not is_process(found) or not listens(work):
        return False
    main = os.path.join(work, os.readlink(os.path.join(work, "current")), "main.py")
    words = (read("/proc/%d/cmdline" % found["pid"]) or "").split("\0")
    return main in words and (way != "systemd" or found["pid"] == main_pid(name))


def spawn(work: str) -> subprocess.Popen[bytes]:
    """In a session of its own, all its output into its log; nothing of the caller's environment."""
    own = pwd.getpwuid(os.geteuid())
    for limit, value in (
        (resource.RLIMIT_NOFILE, 1048576),
        (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))
    with open(
        os.path.join(work, "agent.log"), "ab", opener=lambda path, flags: os.open(path, flags, 0o600)
    ) as log:
        process = subprocess.Popen(
            [os.path.join(work, "current", "bin", "llmgw-agent"), "daemon", "--work", work],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": PATH, "HOME": own.pw_dir, "USER": own.pw_name, "LANG": "C.UTF-8"},
            start_new_session=True,
        )
    with contextlib.suppress(OSError), open("/proc/%d/oom_score_adj" % process.pid, "w") as file:
        file.write(str(OOM_SCORE))
    return process


def ended_by_itself(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    return "" if code is None else "it ended with %d" % code


def systemd_ended(name: str) -> str:
    code, said = run(["systemctl", "show", "--property=NRestarts,ActiveState", name + ".service"])
    shown = dict(line.partition("=")[::2] for line in said.splitlines())
    if code == 0 and (shown.get("NRestarts", "0") not in ("", "0") or shown.get("ActiveState") == "failed"):
        _, log = run(
            ["journalctl", "--unit", name + ".service", "--lines", "15", "--no-pager", "--output", "cat"]
        )
        return "systemd had to restart it: %s" % log.strip()[-SAID:]
    return ""


def wait_up(work: str, settings: str, within: float, ended: Any) -> dict[str, Any]:
    begun = time.monotonic()
    while True:
        found = holder(work)
        if found is not None and found["settings"] == settings and listens(work):
            return {"pid": found["pid"]}
        why = ended()
        if not why and time.monotonic() - begun > within:
            why = "no answer within %g s" % within
        if why:
            raise Refused(
                "starting the agent in %s: %s; the end of its log:\n%s" % (work, why, log_tail(work))
            )
        time.sleep(POLL)


def listens(work: str) -> bool:
    """A Unix socket's address holds 108 bytes, and work directories may be longer: it is named through a descriptor."""
    try:
        folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5)
            connection.connect("/proc/self/fd/%d/agent.sock" % folder)
            return True
    except OSError:
        return False
    finally:
        os.close(folder)


def log_tail(work: str) -> str:
    try:
        with open(os.path.join(work, "agent.log"), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 16384))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as wrong:
        return "(its log can't be read: %s)" % wrong.strerror
    return "\n".join(lines[-LOG_LINES:]) or "(its log is empty)"


def stop(work: str, name: str) -> dict[str, Any]:
    """Ends the agent, however it was started."""
    if os.path.exists("%s/%s.service" % (UNITS, name)):
        run(["systemctl", "stop", name + ".service"])
    end(work)
    return {}


def do(verb: str, arguments: list[str], payload: bytes) -> dict[str, Any]:
    work, name, *more = arguments
    verbs: dict[str, Callable[[], dict[str, Any]]] = {
        "serve": lambda: serve(work, name, json.loads(payload)),
        "start": lambda: start(work, name, *more),
        "stop": lambda: stop(work, name),
        "unserve": lambda: unserve(work, name),
    }
    if verb not in verbs:
        raise Refused("no verb %r" % verb)
    with alone(work):
        return verbs[verb]()


@contextlib.contextmanager
def alone(work: str) -> Iterator[None]:
    """Two who set up one node at once take turns, verb by verb. The lock is nodesetup.py's."""
    if not os.path.isdir(work):
        yield
        return
    descriptor = os.open(os.path.join(work, ".setup.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> None:
    os.umask(0o022)
    answer: dict[str, Any]
    size, verb, *more = arguments
    payload = sys.stdin.buffer.read(int(size))
    if len(payload) != int(size):
        sys.exit("only %d of %s bytes came" % (len(payload), size))
    try:
        answer = {"done": do(verb, more, payload)}
    except Refused as wrong:
        answer = {"error": str(wrong)}
    except OSError as wrong:
        answer = {
            "error": "%s: %s: %s" % (verb, wrong.filename, wrong.strerror),
            "errno": wrong.errno,
        }
    sys.stdout.write("service " + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
