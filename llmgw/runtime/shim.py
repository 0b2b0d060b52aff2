"""The shim: parent of one engine process, so that the agent may come and go and the engine's end is still known.

Run as ``python -I -S -c LOADER shim.py``, so that it is compiled once and not for every engine; imports nothing of llmgw,
and of Python only what starts fast (json alone costs as much as Python's own start). Its order comes on standard input as
marshal writes it, because argv and environment of a process can be read by others and the order holds secrets::

    {"shard", "process", "argv": [..], "env": {..}, "home": dir, "directory": dir, "files": {path: text},
     "log": file, "statusFile": file, "user": {"uid", "gid", "groups": [..]} | null, "group": gid | null,
     "cgroup": dir | null, "bootId", "shimOomScoreAdj": int}

``group`` is the shard's own group id: no process of it can shed it, and the files that it leaves bear it.

It answers on standard output, ``ok`` or why not, once the engine has been executed or has not, and then lives until the
engine has ended.

The status file (JSON, 0600, always written whole) is the engine's record for every later agent: ``{bootId, startedAt, cgroup,
shim: {pid, start}, engine: {pid, start}, exit: {code | signal, at}}``, or ``{error}`` when it could not be executed. The
engine is not executed before its pid stands there. A lock beside it makes a second start of the same process impossible.
It says something only of the boot that it names, so no disk is waited for: what the kernel has taken outlives every process,
and after a power failure nobody believes it.

The shim ignores TERM, INT and HUP and is the subreaper: whatever the engine leaves behind, however it tried to hide,
becomes the shim's child and is killed when the engine has ended.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost each engine's shim memory and start-up
    from collections.abc import Callable
    from typing import Any, NoReturn

MAX_ORDER = 16 * 1024 * 1024
KILL_WITHIN = (
    5.0  # seconds for SIGKILL to work; what is stuck in the kernel longer is left to the agent to report
)

# By the C library: Python's module signal takes as long to import as Python takes to start.
SIGHUP, SIGINT, SIGKILL, SIGTERM = 1, 2, 9, 15
SIGNALS = range(1, 65)
SIG_DFL, SIG_IGN = None, ctypes.c_void_p(1)
SIG_SETMASK = 2
SIGSET = 128  # bytes
PR_SET_CHILD_SUBREAPER = 36
RLIMIT_CORE = 4
CLOCK_TICK = 0.02

CLOCK_REALTIME = 0
OK = "ok"
RESERVED = 2048
"""Bytes laid down beside the status file at launch, so that an engine's end can be written on a full disk too."""

SIGCHLD = 17
SYS_CLONE3 = 435
"""Of all architectures."""
CLONE_INTO_CGROUP = 0x200000000

libc = ctypes.CDLL(None, use_errno=True)
held = ctypes.PyDLL(None)
"""Keeps Python's lock over a call: who forks must have it still."""


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """The engine was not executed; the text says why."""


class Limit(ctypes.Structure):
    _fields_ = [("soft", ctypes.c_ulong), ("hard", ctypes.c_ulong)]


class CloneArguments(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("between", ctypes.c_uint64 * 3),
        ("exit_signal", ctypes.c_uint64),
        ("behind", ctypes.c_uint64 * 5),
        ("cgroup", ctypes.c_uint64),
    ]


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def main() -> None:
    order = read_order()
    detach()
    for number in (SIGTERM, SIGINT, SIGHUP):
        libc.signal(number, SIG_IGN)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    status = {
        "bootId": order["bootId"],
        "startedAt": clock(),
        "cgroup": None,
        "shim": {"pid": os.getpid(), "start": start_ticks(os.getpid())},
    }
    try:
        lock(order["statusFile"] + ".lock")
    except OSError as wrong:
        answer(f"another shim already runs this process (its lock is held): {wrong.strerror}")
        os._exit(1)
    try:
        write_oom_score(order.get("shimOomScoreAdj", 0))
        write_status(order["statusFile"], status)
        reserve(order["statusFile"])
        engine = launch(order, status)
    except (Refused, OSError) as wrong:
        refuse(order, status, wrong)
    answer(OK)
    os.chdir("/")
    path = order["statusFile"]
    order.clear()  # nothing secret is kept while waiting
    finish(path, wait(engine), status)


def read_order() -> dict[str, Any]:
    data = sys.stdin.buffer.read(MAX_ORDER + 1)
    try:
        # From the agent, which may do all that the shim may.
        order = marshal.loads(data) if len(data) <= MAX_ORDER else None  # noqa: S302
    except (EOFError, ValueError, TypeError):
        order = None
    if not isinstance(order, dict):
        # Cut off: whoever ordered has died. Nothing has happened yet, and nothing will.
        answer(f"the shim's order is not a whole one of at most {MAX_ORDER} bytes")
        os._exit(2)
    return order


def detach() -> None:
    """Away from the agent: it must neither have to reap the shim nor be able to take it along."""
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 2)
    os.close(null)


def answer(text: str) -> None:
    """To the agent, if it is still there."""
    try:
        os.write(1, text.encode(errors="backslashreplace"))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.close(null)
    except OSError:
        pass


def refuse(order: dict[str, Any], status: dict[str, Any], wrong: Refused | OSError) -> NoReturn:
    text = f"{wrong.strerror}: {wrong.filename}" if isinstance(wrong, OSError) else str(wrong)
    attempt(write_status, order["statusFile"], {**status, "error": text})
    attempt(os.unlink, order["statusFile"] + ".end")
    remove_cgroup(status)
    answer(text or "it was refused without a reason")
    os._exit(1)


# ---- The engine ---------------------------------------------------------------------------------------


def launch(order: dict[str, Any], status: dict[str, Any]) -> int:
    """Forks, puts the child on record, then lets it execute. Returns its pid once it has."""
    go_read, go_write = os.pipe()
    told_read, told_write = os.pipe()
    group, pid = fork_into(order.get("cgroup"))
    if pid == 0:
        os.close(go_write)
        os.close(told_read)
        become_engine(order, go_read, told_write)
    os.close(go_read)
    os.close(told_write)
    try:
        status["engine"] = {"pid": pid, "start": start_ticks(pid)}
        status["cgroup"] = group or join_cgroup(order.get("cgroup"), pid)
        write_status(order["statusFile"], status)
        os.write(go_write, b"g")
    except OSError:
        os.kill(pid, SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(go_write)
    told = read_to_end(told_read)
    if told:
        os.waitpid(pid, 0)
        raise Refused(told.decode(errors="replace"))
    return pid


def become_engine(order: dict[str, Any], go: int, told: int) -> NoReturn:
    """In the child; never returns. ``told`` closes by exec, or brings the reason."""
    doing = "starting"
    try:
        if os.read(go, 1) != b"g":
            os._exit(1)  # the shim could not put it on record
        os.setsid()
        for number in SIGNALS:  # of some it is not allowed, and they are as they should be
            libc.signal(number, SIG_DFL)
        libc.sigprocmask(SIG_SETMASK, bytes(SIGSET), None)
        write_oom_score(0)
        os.umask(0o077)
        libc.setrlimit(RLIMIT_CORE, ctypes.byref(Limit(0, 0)))
        doing = f"opening the log {order['log']}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        log = os.open(order["log"], flags, 0o600)
        os.fchmod(log, 0o600)
        doing = f"making the home {order['home']}"
        make_home(order["home"], order.get("user"))
        user = order.get("user")
        doing = f"becoming user {user['uid']}" if user else "taking the shard's group"
        become_user(user, order.get("group"))
        doing = f"entering {order['directory']}"
        os.makedirs(order["directory"], 0o700, exist_ok=True)
        os.chdir(order["directory"])
        for path, text in order["files"].items():
            doing = f"laying the file {path}"
            lay_file(path, text)
        doing = f"executing {order['argv'][0]}"
        os.dup2(log, 1)
        os.dup2(log, 2)
        keep_nothing_open()
        env = {**order["env"], "SPT_NOENV": "1", "LLMGW_SHARD": order["shard"]}
        execute(order["argv"], env)
    except BaseException as wrong:  # noqa: BLE001 - whatever it is, the parent must hear of it
        reason = getattr(wrong, "strerror", None) or f"{type(wrong).__name__}: {wrong}"
        os.write(told, f"{doing}: {reason}".encode(errors="backslashreplace")[:4000])
    finally:
        os._exit(127)


def become_user(user: dict[str, Any] | None, group: int | None) -> None:
    """The user's own group stays among its others, so that it may read what it could before. A user namespace may not
    have the shard's number, or may not change groups at all: that proof is lost then, nothing else."""
    if user is None:
        if group is not None and attempt(os.setgroups, sorted({os.getgid(), *os.getgroups()})):
            attempt(os.setresgid, group, group, group)
        return
    os.setgroups(sorted({user["gid"], *user["groups"]}))
    if group is None or not attempt(os.setresgid, group, group, group):
        os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """By the PATH of the engine's own environment. Not os.execvpe: it imports modules, and the engine's user may not
    be allowed to read them."""
    name = argv[0]
    wrong: OSError = FileNotFoundError(2, "No such file or directory")
    for folder in [""] if "/" in name else env.get("PATH", "/usr/bin:/bin").split(":"):
        try:
            os.execve(os.path.join(folder, name), argv, env)  # noqa: S606 - no shell is the point
        except (FileNotFoundError, NotADirectoryError):  # noqa: PERF203 - a handful of folders
            continue
        except OSError as refused:
            wrong = refused  # it is there and can't be executed: that says more than its absence elsewhere
    raise wrong


def make_home(home: str, user: dict[str, Any] | None) -> None:
    """``home/<user>`` is the user's and nobody else's; the folder around it is the agent's, so nobody can have put
    something else in its place."""
    around = os.path.dirname(home)
    if not os.path.isdir(around):
        os.makedirs(around)
        os.chmod(around, 0o711)  # noqa: S103 - users may pass through, not look
    if not os.path.isdir(home):
        os.mkdir(home, 0o700)
    if user and os.stat(home).st_uid != user["uid"]:
        os.chown(home, user["uid"], user["gid"], follow_symlinks=False)


def lay_file(path: str, text: str) -> None:
    """Below the current directory, as the engine's user; a file of an earlier start is replaced."""
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, 0o700, exist_ok=True)
    temporary = f"{path}.new"
    attempt(os.unlink, temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    write_all(descriptor, text.encode())
    os.close(descriptor)
    os.rename(temporary, path)


def keep_nothing_open() -> None:
    """Past exec only 0, 1 and 2 stay."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            attempt(os.set_inheritable, int(name), False)  # the listing's own descriptor is gone already


def wait(engine: int) -> int:
    """Reaps whatever comes, until it is the engine. Returns its exit code, or minus its signal."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == engine:
            return os.waitstatus_to_exitcode(status)


def finish(path: str, code: int, status: dict[str, Any]) -> NoReturn:
    """The end goes on record first: clearing up may take long, and the shim itself may be killed meanwhile."""
    ended = {"at": clock(), **({"signal": -code} if code < 0 else {"code": code})}
    last = {**status, "exit": ended}
    if not attempt(write_status, path, last):
        attempt(write_into_reserve, path, last)
    attempt(os.unlink, f"{path}.end")
    kill_descendants()
    remove_cgroup(status)
    os._exit(0)


def kill_descendants() -> None:
    """SIGKILL to everything below the shim, again and again: orphans come up as their parents die."""
    waited = 0.0
    while waited < KILL_WITHIN:
        for pid in descendants(os.getpid()):
            attempt(os.kill, pid, SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], CLOCK_TICK)
        waited += CLOCK_TICK


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


# ---- Files and numbers ----------------------------------------------------------------------------------


def stat_fields(pid: int) -> list[bytes]:
    """/proc/PID/stat from the state on. The name before it may hold anything, brackets too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read(4096)
    except OSError:
        return []
    return data[data.rindex(b")") + 2 :].split()


def start_ticks(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[19]) if fields else 0


def clock() -> float:
    """Seconds since 1970."""
    now = Timespec()
    libc.clock_gettime(CLOCK_REALTIME, ctypes.byref(now))
    return float(now.seconds + now.nanoseconds / 1e9)


def attempt(function: Callable[..., Any], *arguments: Any) -> bool:
    """True: done. False: the system refused, and there is nothing better to do."""
    try:
        function(*arguments)
    except OSError:
        return False
    return True


def lock(path: str) -> None:
    """Held until the shim ends; not passed on to the engine."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.lockf(descriptor, os.F_TLOCK, 0)


def write_status(path: str, status: dict[str, Any]) -> None:
    temporary = f"{path}.new"
    write_whole(temporary, as_json(status).encode(), os.O_CREAT | os.O_TRUNC)
    os.rename(temporary, path)


def as_json(value: Any) -> str:
    """Of what a status holds."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_json(name)}: {as_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, str):
        plain = (
            c if (" " <= c <= "~" and c not in '"\\') or c > "\uffff" else f"\\u{ord(c):04x}" for c in value
        )
        return '"' + "".join(plain) + '"'
    return repr(value)


def write_whole(path: str, data: bytes, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | flags, 0o600)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def reserve(path: str) -> None:
    write_whole(f"{path}.end", b" " * RESERVED, os.O_CREAT | os.O_TRUNC)


def write_into_reserve(path: str, status: dict[str, Any]) -> None:
    """In place, which needs no new block; what is left of the reserve is white space."""
    write_whole(f"{path}.end", as_json(status).encode().ljust(RESERVED), 0)
    os.rename(f"{path}.end", path)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def read_to_end(descriptor: int) -> bytes:
    data = b""
    while part := os.read(descriptor, 4096):
        data += part
    os.close(descriptor)
    return data


def write_oom_score(value: int) -> None:
    """Lowering needs a right that a user's agent lacks; it stays as it is then."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(value))
    except OSError:
        pass


def fork_into(path: str | None) -> tuple[str | None, int]:
    """The group and the pid of a child that was born in it; pid 0 in the child. A process that joins one later waits some
    10 ms for all cores of the machine. Without the group where the kernel is too old or forbids it: then it has to join."""
    if path and attempt(os.makedirs, path, 0o755, True):
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None, os.fork()
        born = CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=SIGCHLD, cgroup=folder)
        # One thread, and its child only prepares and executes: nothing of os.fork's other work is needed.
        pid = held.syscall(SYS_CLONE3, ctypes.byref(born), ctypes.sizeof(born))
        os.close(folder)
        if pid >= 0:
            return path, pid
    return None, os.fork()


def join_cgroup(path: str | None, pid: int) -> str | None:
    """Membership is proof of what belongs to the shard, nothing more: no controller is ever enabled."""
    if not path:
        return None
    for _ in range(3):  # the end of another shard may take the folder away in between
        if attempt(os.makedirs, path, 0o755, True) and attempt(enter_cgroup, path, pid):
            return path
    return None


def enter_cgroup(path: str, pid: int) -> None:
    with open(os.path.join(path, "cgroup.procs"), "w") as file:
        file.write(str(pid))


def remove_cgroup(status: dict[str, Any]) -> None:
    """Fails while another process of the shard is in it, as it should."""
    if status.get("cgroup") and attempt(os.rmdir, status["cgroup"]):
        attempt(os.rmdir, os.path.dirname(status["cgroup"]))
