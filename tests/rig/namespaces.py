"""Network namespaces by name: made, entered, counted and removed. Names say which run they belong to."""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
NAMED: Final = Path("/run/netns")
PREFIX: Final = "llmgw-rig"
CLONE_NEWNET: Final = 0x40000000
NEEDED: Final = {
    "ip": "iproute2",
    "nft": "nftables",
    "/usr/sbin/sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "sudo": "sudo",
    "bash": "bash",
}


def missing() -> str:
    """Why no rig can be built here; empty when one can."""
    if os.geteuid() != 0:
        return "hosts in network namespaces need root"
    lacking = sorted({package for program, package in NEEDED.items() if shutil.which(program) is None})
    if lacking:
        return f"hosts in network namespaces need: apt-get install {' '.join(lacking)}"
    trial = subprocess.run(
        ["unshare", "-m", "-n", "-u", "-i", "-p", "-f", "true"], capture_output=True, text=True, check=False
    )
    return f"no namespaces can be made here: {trial.stderr.strip()}" if trial.returncode else ""


def run(*argv: str, stdin: str | None = None, timeout: float = 30) -> str:
    """Standard output; an exit code other than 0 fails with what was said."""
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False, cwd="/"
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(argv)} -> {done.returncode}: {done.stderr.strip()}{done.stdout.strip()}"
        )
    return done.stdout


def run_id() -> str:
    """Of this process, so that what a killed run has left can be told from what a living one needs."""
    return f"{os.getpid()}x{secrets.token_hex(3)}"


def name(run: str, of: str) -> str:
    return f"{PREFIX}-{run}-{of}"


def ours(run: str) -> tuple[str, ...]:
    """The namespaces of one run that exist."""
    if not NAMED.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in NAMED.iterdir() if entry.name.startswith(f"{PREFIX}-{run}-")))


def pids(namespace: str) -> tuple[int, ...]:
    """Processes in it, of every pid namespace, by their numbers out here."""
    try:
        network = _identity(NAMED / namespace)
    except FileNotFoundError:
        return ()
    return tuple(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _lives_in(network, pid))  # noqa: PTH208 - tests ask for it again and again


def _lives_in(network: tuple[int, int], pid: int) -> bool:
    with suppress(OSError):  # it ends meanwhile
        return _identity(f"/proc/{pid}/ns/net") == network
    return False


def _identity(file: str | Path) -> tuple[int, int]:
    found = os.stat(file)  # noqa: PTH116 - same
    return found.st_dev, found.st_ino


def remove(namespace: str) -> None:
    """Ends what runs in it, then the namespace."""
    kill(namespace)
    with suppress(RuntimeError):
        run("ip", "netns", "del", namespace)


def kill(namespace: str, *, within: float = 10) -> None:
    deadline = time.monotonic() + within
    while found := pids(namespace):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of {namespace} do not end: {found}")
        time.sleep(0.01)


def remove_stale() -> None:
    """What runs that were killed have left behind."""
    for entry in sorted(NAMED.iterdir()) if NAMED.is_dir() else ():
        words = entry.name.removeprefix(f"{PREFIX}-").split("-")
        pid = words[0].partition("x")[0]
        if entry.name.startswith(f"{PREFIX}-") and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            remove(entry.name)


def inside(namespace: str, work: Callable[[], T]) -> T:
    """Runs ``work`` in a thread whose network is the namespace's; threads that it starts have it too."""
    results: list[T] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            enter(namespace)
            results.append(work())
        except BaseException as wrong:  # noqa: BLE001 - raised again where it is waited for
            failures.append(wrong)

    thread = threading.Thread(target=body, name=f"in {namespace}", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def enter(namespace: str) -> None:
    """The thread that calls it, and what that starts from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMED / namespace).open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"entering {namespace}")


def leftovers(run: str, folder: Path) -> tuple[str, ...]:
    """What a run has not taken away: namespaces, mounts, processes. Empty when all is well."""
    found = [f"namespace {name}" for name in ours(run)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if str(folder) in line.split()[4]]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{PREFIX}-{run}-" in command or f"{folder}/" in command:
                found.append(f"process {entry.name}: {command.strip()}")
    return tuple(found)
