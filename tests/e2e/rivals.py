"""Several controllers that serve one fleet, each on a host of its own with its own files and network, and a Git host that all
of them push to; what commands the nodes' agents let in is written down all along.
"""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from llmgw.model.struct import Struct
from tests.e2e.sshroad import LLMGW, STATE
from tests.rig import namespaces
from tests.rig.host import CHECKOUT, Host, wait_for
from tests.rig.options import Options

WITHIN: Final = 120.0
"""Seconds for what takes a few on a quiet machine."""
HUB: Final = "/srv/hub.git"
CLONE: Final = "/srv/clone"
KEY: Final = "/etc/llmgw/id"
SECRET: Final = "/etc/llmgw/secret"
WORK: Final = "/var/lib/llmgw-agent"
_PIDFD_GETFD: Final = 438
"""The system call's number, the same on every architecture since Linux 5.6."""
HOOK: Final = f"""\
#!/bin/sh
# Whoever pushes waits for this hook to end: with the file "hold" there, the next one who writes an intent does.
while read -r old new ref; do
  [ "$ref" = refs/heads/{STATE} ] || continue
  message=$(git log -1 --format=%B "$new")
  case $message in *Llmgw-Outcome:*) continue ;; *Llmgw-Plan:*) ;; *) continue ;; esac
  mv hold held 2>/dev/null || continue
  while [ -e held ]; do sleep 0.02; done
done
"""


def controller_options() -> Options:
    """Of a host that llmgw runs on: it sees the checkout and the Python that runs it, wherever they lie."""
    places = sorted({sys.base_prefix, sys.prefix, str(CHECKOUT)})
    hidden = [place for place in places if place.startswith(("/root/", "/tmp/", "/run/"))]
    shown = [place for place in hidden if not any(place.startswith(f"{other}/") for other in hidden)]
    return Options(shows_checkout=True, shares=tuple((Path(place), place) for place in shown))


# ---- the Git host ----------------------------------------------------------------------------------------------------


class Hub(Struct, kw_only=False):
    """A bare repository that is reached over ssh, and somebody's clone of it, on a host."""

    host: Host

    def make(self) -> None:
        for words in (
            f"git init --quiet --bare --initial-branch main {HUB}",
            f"git clone --quiet {HUB} {CLONE}",
            f"git -C {CLONE} symbolic-ref HEAD refs/heads/main",
            f"git -C {CLONE} config user.name ann",
            f"git -C {CLONE} config user.email ann@example.org",
        ):
            self.host.must(*words.split())
        self.host.write(f"{HUB}/hooks/post-receive", HOOK, mode=0o755)

    @property
    def url(self) -> str:
        return f"ssh://root@{self.host.address}{HUB}"

    def write(self, kind: str, name: str, spec: Any, **about: Any) -> None:
        document = {
            "apiVersion": "llmgw/v1",
            "kind": kind,
            "metadata": {"name": name, **about},
            "spec": spec,
        }
        self.host.write(
            f"{CLONE}/manifests/{kind.lower()}-{name}.yaml", json.dumps(document, indent=2) + "\n"
        )

    def push(self, message: str) -> str:
        """A commit of what was written; its id."""
        git = ("git", "-C", CLONE)
        self.host.must(*git, "add", "--all")
        self.host.must(*git, "commit", "--quiet", "--allow-empty", "--message", message)
        self.host.must(*git, "push", "--quiet", "origin", "main")
        return self.host.must(*git, "rev-parse", "HEAD").strip()

    def told(self) -> list[str]:
        """The subjects on the state branch, oldest first."""
        return self._git("log", "--reverse", "--format=%s", STATE).splitlines()

    def last_pass(self) -> dict[str, Any]:
        return self.pass_at(STATE)

    def pass_at(self, commit: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._git("show", f"{commit}:record.json"))["lastPass"]
        return found

    def state_commits(self) -> set[str]:
        return set(self._git("rev-list", STATE).split())

    def _git(self, *words: str) -> str:
        return self.host.must("git", "--git-dir", HUB, *words)

    # ---- the moment between intent and first command

    def hold_next_intent(self) -> None:
        """Whoever writes an intent next is kept from going on, the intent being on the branch, until ``let_go``."""
        self.host.must("touch", f"{HUB}/hold")

    def wait_until_held(self) -> None:
        wait_for("an intent on the state branch", lambda: self.host.exists(f"{HUB}/held"), within=WITHIN)

    def let_go(self) -> None:
        self.host.must("rm", "-f", f"{HUB}/hold", f"{HUB}/held")


# ---- the controllers -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Controller:
    """One that serves on its host. ``lease`` as in the settings; ``log`` is what it says, outside of the host."""

    host: Host
    hub: Hub
    holder: str
    log: Path
    lease: str
    _running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def make(self, identity: Path, secret: str) -> None:
        self.host.write(KEY, identity.read_bytes(), mode=0o600)
        self.host.write(SECRET, secret, mode=0o600)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LLMGW_REPO": self.hub.url,
            "LLMGW_BRANCH": "main",
            "LLMGW_STATE_DIR": "/var/lib/llmgw",
            "LLMGW_SECRET_FILE": SECRET,
            "LLMGW_SSH_IDENTITY": KEY,
            "LLMGW_HOST_KEYS": f'["{self.hub.host.host_key}"]',
            "LLMGW_HOLDER": self.holder,
            "LLMGW_LEASE": self.lease,
            "PYTHONWARNINGS": "error",
        }

    def start(self) -> None:
        often = ("--poll-interval", "2s", "--resync-interval", "10s")  # a look takes an SSH connection
        words = (LLMGW, "serve", "--listen", "none", *often)
        with self.log.open("ab") as log:
            command = self.host.command(words, env=self.environment)
            self._running.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
            )
        wait_for(f"{self.holder} to run", lambda: bool(self._pids()), within=WITHIN)

    def signal(self, number: int) -> None:
        """To llmgw alone, not to the gits that it runs. What brought it onto the host stops with it, and must go on with it."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if number != signal.SIGSTOP:
            for running in self._running:
                running.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        for running in self._running:
            running.wait(timeout=WITHIN)
        self._running.clear()

    def stop(self) -> int:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self._running.pop().wait(timeout=WITHIN)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def would_change(self) -> str:
        """What it would do now, or why that can't be said; empty: nothing."""
        done = self.host.exec(LLMGW, "plan", "--detailed-exitcode", env=self.environment, timeout=WITHIN)
        return done.out + done.err if done.code else ""

    def _pids(self) -> list[int]:
        """By this machine's numbers."""
        found = []
        for pid in namespaces.pids(self.host.namespace):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if LLMGW in words[:2] and "serve" in words:
                    found.append(pid)
        return found


# ---- what the agents let in ------------------------------------------------------------------------------------------


class Fence(Struct, kw_only=False, order=True):
    serial: int
    intent: str


class Fences:
    """Reads again and again which command each node's agent obeyed last; ``seen`` are the fences in the order in which they were
    seen, each once."""

    def __init__(self, nodes: Sequence[Host]) -> None:
        self._nodes = nodes
        self.seen: dict[str, list[Fence]] = {host.name: [] for host in nodes}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watching fences")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def last(self, host: Host) -> Fence | None:
        seen = self.seen[host.name]
        return seen[-1] if seen else None

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for host in self._nodes:
                fence = _fence_of(host)
                if fence is not None and fence != self.last(host):
                    self.seen[host.name].append(fence)


def _fence_of(host: Host) -> Fence | None:
    """None: nobody has commanded it yet."""
    try:
        kept = json.loads(Path(f"/proc/{host.init}/root{WORK}/state/owner.json").read_text())["fence"]
    except (FileNotFoundError, KeyError):
        return None
    return Fence(kept["serial"], kept["intent"]) if kept else None


def refused(host: Host) -> list[str]:
    """The stale commands that its agent told of in its journal."""
    lines = host.read(f"{WORK}/journal/journal.jsonl").splitlines()
    return [entry["text"] for entry in map(json.loads, lines) if entry["kind"] == "fence"]


# ---- a slow way from a controller to an agent -----------------------------------------------------------------------


class SlowBridges:
    """What stands between one controller's SSH connections and a node's agent holds back all that comes, until ``let_go``; sshd
    goes on answering."""

    def __init__(self, node: Host, controller: Host) -> None:
        self._pids = _bridges(node, controller)
        assert self._pids, f"{controller.name} has no bridge on {node.name}"
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)

    def held_back(self) -> int:
        """Bytes that were sent to one of them and that it has not read: the most."""
        return max(map(_unread, self._pids))

    def let_go(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _bridges(node: Host, controller: Host) -> list[int]:
    found = []
    for pid in namespaces.pids(node.namespace):
        with suppress(OSError):
            process = Path(f"/proc/{pid}")
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
            from_there = any(
                one.startswith(f"SSH_CONNECTION={controller.address} ".encode()) for one in variables
            )
            if b"bridge" in words and from_there:
                found.append(pid)
    return found


def _unread(pid: int) -> int:
    """Bytes that wait in its standard input. Of a socket only a copy of the descriptor itself can tell."""
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, 0, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), f"looking into the standard input of {pid}")
    finally:
        os.close(process)
    try:
        return int.from_bytes(fcntl.ioctl(copy, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(copy)
