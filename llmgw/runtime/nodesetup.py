"""What bootstrap changes on a machine before an agent runs there: user, directories, bundle, settings, and taking them
away again. One verb a call; each looks before it does, so that repeating it is harmless.

Runs by itself, standard library only: ``python -I -S -c LOADER SIZE SIZE VERB ARGUMENT…``, with this text and
then the verb's payload on standard input, and the sizes of both: a lost line ends either as if it had come whole. Prints one line ``setup {JSON}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MAX_BUNDLE = 512 * 1024 * 1024
SAID = 2000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOTE = "llmgw engines"
"""In the user's comment: what we made is what we may remove."""
RUNTIME_FILES = ("agent.json", "pretended.json", "agent.sock", "agent.lock", "agent.log", "current")
JOB_FOLDERS = ("jobs", "jobsecrets", "jobruns")
STATE_FOLDERS = (
    "agents",
    "state",
    "shards",
    "secrets",
    *JOB_FOLDERS,
    "status",
    "logs",
    "journal",
    "help",
    "home",
)
JOBS_END_WITHIN = 8.0
"""Seconds for what a job has started: its shim kills all of it as soon as the job's worker is gone."""
ENGINES_AND_WEIGHTS = ("engines", "weights")


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """Not done; the text says why and what to try."""


def run(argv: list[str]) -> tuple[int, str]:
    try:
        ended = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": PATH, "LC_ALL": "C"},
            timeout=120,
            check=False,
        )
    except FileNotFoundError:
        return 127, "%s: not found" % argv[0]
    except subprocess.TimeoutExpired:
        return 124, "%s: no end within 120 s" % argv[0]
    return ended.returncode, ended.stdout.decode("utf-8", "replace").strip()[-SAID:]


# ---- The engine user ------------------------------------------------------------------------------------


def make_user(name: str, home: str, *groups: str) -> dict[str, Any]:
    """A system user that owns nothing but its home. Says so where the machine can't or may not make one."""
    made = False
    said = ""
    if not exists(name):
        for argv in user_commands(name, home):
            said = run(argv)[1]
            made = exists(name)
            if made:
                break
        if not made:
            return {"user": None, "why": said or "neither useradd nor adduser is there"}
    for group in groups:
        if name not in members(group):
            join_group(name, group)
    return {"user": name, "made": made}


def user_commands(name: str, home: str) -> list[list[str]]:
    shell = next(
        (path for path in ("/usr/sbin/nologin", "/sbin/nologin") if os.path.exists(path)), "/bin/false"
    )
    commands = []
    if shutil.which("useradd", path=PATH):
        about = ["--home-dir", home, "--shell", shell, "--comment", NOTE, name]
        commands.append(["useradd", "--system", "--user-group", "--no-create-home", *about])
    if shutil.which("adduser", path=PATH) and os.path.islink(shutil.which("adduser", path=PATH) or ""):
        commands.append(["adduser", "-S", "-D", "-H", "-h", home, "-s", shell, "-g", NOTE, name])  # BusyBox
    return commands


def join_group(name: str, group: str) -> None:
    """Only for people who look: the agent gives these groups to engines by itself when it starts them."""
    if shutil.which("usermod", path=PATH):
        run(["usermod", "--append", "--groups", group, name])
    elif shutil.which("addgroup", path=PATH):
        run(["addgroup", name, group])


def members(group: str) -> list[str]:
    import grp  # noqa: PLC0415 - asked for once

    try:
        return grp.getgrnam(group).gr_mem
    except KeyError:
        return []


def exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


# ---- Directories, bundle, settings ----------------------------------------------------------------------


def lay_out(work: str, user: str, *shared: str) -> dict[str, Any]:
    """The work directory and what is in it, with their modes. The agent sets its own folders' modes again."""
    make_folder(work, 0o711)
    for folder in (os.path.join(work, "agents"), *shared):
        make_folder(folder, 0o755)
    make_folder(os.path.join(work, "home"), 0o711)
    if user:
        entry = pwd.getpwnam(user)
        home = os.path.join(work, "home", user)
        make_folder(home, 0o700)
        if os.stat(home, follow_symlinks=False).st_uid != entry.pw_uid:
            os.chown(home, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    return {}


def make_folder(path: str, mode: int) -> None:
    try:
        os.makedirs(path, exist_ok=True)
        if os.stat(path).st_mode & 0o7777 != mode:
            os.chmod(path, mode)
    except OSError as wrong:
        raise Refused("making the directory %s: %s" % (wrong.filename or path, wrong.strerror)) from wrong


def unpack(work: str, digest: str, payload: bytes) -> dict[str, Any]:
    """The bundle, beside and renamed: what has its final name is whole."""
    agents = os.path.join(work, "agents")
    final = os.path.join(agents, digest)
    if os.path.isdir(final):
        return {"unpacked": False}
    data = whole_bundle(payload, digest)
    beside = os.path.join(agents, ".new-%s" % digest)
    shutil.rmtree(beside, ignore_errors=True)
    os.mkdir(beside, 0o755)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                lay_member(archive, member, beside)
        os.chmod(beside, 0o755)  # noqa: S103 - others may read it: it is public code
        sync_tree(beside)
        os.rename(beside, final)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)  # on a full disk a part is in the way
        raise
    sync(agents)
    return {"unpacked": True}


def whole_bundle(payload: bytes, digest: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
            data = file.read(MAX_BUNDLE + 1)
    except (OSError, EOFError) as wrong:
        raise Refused("reading the bundle: %s: it came through damaged: try again" % wrong) from wrong
    if len(data) > MAX_BUNDLE or hashlib.sha256(data).hexdigest() != digest:
        raise Refused(
            "reading the bundle: its content is not %s: it came through damaged: try again" % digest
        )
    return data


def lay_member(archive: tarfile.TarFile, member: tarfile.TarInfo, into: str) -> None:
    """Plain files and folders only, all of them below."""
    path = os.path.normpath(os.path.join(into, member.name))
    if not path.startswith(into + "/") or not (member.isfile() or member.isdir()):
        raise Refused("unpacking the bundle: %r is no file of a bundle" % member.name)
    if member.isdir():
        os.makedirs(path, 0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None
    try:
        with open(path, "xb") as file:
            shutil.copyfileobj(source, file)
    except OSError as wrong:
        raise OSError(wrong.errno, wrong.strerror, path) from wrong
    os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)


def sync_tree(top: str) -> None:
    for folder, _, files in os.walk(top):
        for name in files:
            sync(os.path.join(folder, name))
        sync(folder)


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as wrong:
        raise OSError(wrong.errno, wrong.strerror, path) from wrong
    finally:
        os.close(descriptor)


def keep_settings(work: str, payload: bytes) -> dict[str, Any]:
    """``{file name: text or null}``; null: the file goes."""
    for name, text in sorted(json.loads(payload).items()):
        path = os.path.join(work, os.path.basename(name))
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        else:
            write_whole(path, text.encode(), 0o600)
    return {}


def write_whole(path: str, data: bytes, mode: int) -> None:
    """What is as it should be stays: a full disk has no room for it a second time."""
    if holds(path, data, mode):
        return
    beside = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(beside, flags, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
    except OSError as wrong:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise OSError(wrong.errno, wrong.strerror, path) from wrong
    sync(os.path.dirname(path))


def holds(path: str, data: bytes, mode: int) -> bool:
    try:
        with open(path, "rb") as file:
            there = os.fstat(file.fileno())
            same = there.st_size == len(data) and there.st_mode & 0o7777 == mode
            return same and not os.path.islink(path) and file.read(len(data)) == data
    except OSError:
        return False


def switch(work: str, digest: str, payload: bytes) -> dict[str, Any]:
    """From now on ``current`` means this bundle; the payload is its launcher. One earlier bundle is kept."""
    bundle = os.path.join(work, "agents", digest)
    if not os.path.isdir(bundle):
        raise Refused("switching to bundle %s: it is not there: bootstrap again" % digest)
    make_folder(os.path.join(bundle, "bin"), 0o755)
    write_whole(os.path.join(bundle, "bin", "llmgw-agent"), payload, 0o755)
    link = os.path.join(work, "current")
    wanted = os.path.join("agents", digest)
    before = os.readlink(link) if os.path.islink(link) else None
    if before != wanted:
        beside = link + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        os.symlink(wanted, beside)
        os.rename(beside, link)
        sync(work)
    return {"before": os.path.basename(before) if before else None}


def name_command(work: str, path: str) -> dict[str, Any]:
    """The agent's command where people's shells find it. What somebody else has put there stays."""
    target = os.path.join(work, "current", "bin", "llmgw-agent")
    if not os.path.isdir(os.path.dirname(path)):
        return {"named": False}
    if os.path.lexists(path):
        return {"named": os.path.islink(path) and os.readlink(path) == target}
    os.symlink(target, path)
    return {"named": True}


def prune(work: str, *kept: str) -> dict[str, Any]:
    """Bundles that neither run nor are the one before."""
    gone = []
    agents = os.path.join(work, "agents")
    for name in sorted(os.listdir(agents)):
        if name not in kept:
            shutil.rmtree(os.path.join(agents, name), ignore_errors=True)
            gone.append(name)
    return {"gone": gone}


# ---- Away with it ---------------------------------------------------------------------------------------


def remove(work: str, user: str, everything: str, command: str) -> dict[str, Any]:
    """Bundles, settings and the link ``command``; with ``everything`` also what was installed, fetched and logged. Orders of shards are kept
    otherwise: the next agent here adopts what still runs. Jobs end, for they run out of the bundle."""
    orders = list_of(os.path.join(work, "shards"))
    end_jobs(os.path.join(work, "jobruns", "status"))
    names = [*RUNTIME_FILES, "agents"]
    if everything == "everything":
        if any(name.endswith(".json") for name in orders):
            raise Refused(
                "removing everything below %s: %d shards have orders there: stop them first"
                % (work, len([name for name in orders if name.endswith(".json")]))
            )
        names += [*STATE_FOLDERS, *ENGINES_AND_WEIGHTS]
    if os.path.islink(command) and os.readlink(command).startswith(os.path.join(work, "")):
        take_away(command)
    for name in names:
        take_away(os.path.join(work, name))
    if everything == "everything" and user and ours(user):
        run(["userdel", user] if shutil.which("userdel", path=PATH) else ["deluser", user])
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(work, ".setup.lock"))
        os.rmdir(work)  # only when nothing is left
    return {"left": list_of(work)}


def end_jobs(statuses: str) -> None:
    """Installs and downloads that go on without their agent; each status names a worker and its shim."""
    left = []
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    for name in list_of(statuses):
        if name.endswith(".json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                with open(os.path.join(statuses, name), "rb") as told:
                    status = json.loads(told.read(65536))
                if status["bootId"] == boot and lives(status["engine"]):
                    os.kill(status["engine"]["pid"], signal.SIGKILL)
                    left.append(status["shim"])
    end = time.monotonic() + JOBS_END_WITHIN
    while any(map(lives, left)) and time.monotonic() < end:
        time.sleep(0.05)


def lives(process: dict[str, int]) -> bool:
    """Exactly this process, by its start in clock ticks since boot, and no later one of its number."""
    try:
        with open("/proc/%d/stat" % process["pid"], "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return False
    return int(fields[19]) == process["start"] and fields[0] not in (b"Z", b"X")


def take_away(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as wrong:
        raise Refused("removing %s: %s" % (wrong.filename or path, wrong.strerror)) from wrong


def ours(user: str) -> bool:
    try:
        return pwd.getpwnam(user).pw_gecos.split(",")[0] == NOTE
    except KeyError:
        return False


def list_of(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


# ---- Calling --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(work: str) -> Iterator[None]:
    """Two who set up one node at once take turns, verb by verb."""
    if not os.path.isdir(work):
        yield
        return
    descriptor = os.open(os.path.join(work, ".setup.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def do(verb: str, arguments: list[str], payload: bytes) -> dict[str, Any]:
    if verb == "user":
        return make_user(*arguments)
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "lay-out": lay_out,
        "unpack": lambda work, digest: unpack(work, digest, payload),
        "settings": lambda work: keep_settings(work, payload),
        "switch": lambda work, digest: switch(work, digest, payload),
        "prune": prune,
        "name": name_command,
        "remove": remove,
    }
    if verb not in verbs:
        raise Refused("no verb %r" % verb)
    with alone(arguments[0]):
        return verbs[verb](*arguments)


def main(arguments: list[str]) -> None:
    os.umask(0o022)
    size, verb, *more = arguments
    payload = sys.stdin.buffer.read(int(size))
    if len(payload) != int(size):
        sys.exit("only %d of %s bytes came" % (len(payload), size))
    answer: dict[str, Any]
    try:
        answer = {"done": do(verb, more, payload)}
    except Refused as wrong:
        answer = {"error": str(wrong)}
    except OSError as wrong:
        answer = {
            "error": "%s: %s: %s" % (verb, wrong.filename, wrong.strerror),
            "errno": wrong.errno,
        }
    sys.stdout.write("setup " + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
