"""A bare machine for bootstrap's tests: this one's files under an overlay, with processes, users and boot entries of its own.
Everything ends with its first process, and nothing outside the test's directory is written."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from llmgw.clock import SystemClock
from llmgw.controller.nodes.bootstrap.bundle import Bundles
from llmgw.controller.nodes.bootstrap.install import Bootstrap
from llmgw.controller.nodes.bootstrap.shell import LocalShell
from llmgw.controller.nodes.bootstrap.wheels import Wheels
from llmgw.controller.nodes.link import StreamLink, open_link
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import Dirs, NodeSpec, PortRange, Ssh
from llmgw.model.problems import Where
from llmgw.model.struct import Struct

FLEET = "fleet-1"
WORK = "/var/lib/llmgw-agent"
INIT = r"""
set -e
mount --make-rprivate /
# In memory: what is written is synced often, and gone with the last process.
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir -p "$1/upper" "$1/work" "$1/view"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/view"
cd "$1/view"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do touch "dev/$device"; mount --bind "/dev/$device" "dev/$device"; done
ln -s /proc/self/fd dev/fd
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p .old
pivot_root . .old
cd /
umount -l /.old
hostname bare
if [ -n "$2" ]; then
  # A systemd of its own, with nothing to start but what it is given.
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  rm -rf /etc/systemd/system/*
  printf '[Unit]\nDescription=bare\nRequires=sysinit.target\nWants=multi-user.target\n' >/etc/systemd/system/bare.target
  : >/etc/machine-id
  : >/etc/fstab
  for unit in getty.target getty@tty1.service ssh.service postgresql.service dbus.service e2scrub_reap.service; do
    ln -s /dev/null "/etc/systemd/system/$unit"
  done
  touch /run/up
  export container=bare PATH=/usr/sbin:/usr/bin:/sbin:/bin
  exec /lib/systemd/systemd --system --unit=bare.target --log-target=null --show-status=no
fi
# Orphans are this process's to reap, as on a real machine.
exec /usr/bin/python3 -I -S -c '
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
open("/run/up", "w").close()
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.05)
'
"""


def why_not() -> str:
    """Why no such machine can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "needs root: not proved that a bare machine is set up"
    lacking = [name for name in ("unshare", "nsenter", "useradd") if shutil.which(name) is None]
    if lacking:
        return f"needs {', '.join(lacking)}: not proved that a bare machine is set up"
    tried = subprocess.run(["unshare", "-m", "-p", "-u", "-f", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no namespaces here: not proved that a bare machine is set up"


class BareHost(Struct):
    """``pid`` is its process 1, seen from here. ``root`` is where its files can be seen from here."""

    pid: int
    spaces: tuple[str, ...] = ()

    @property
    def shell(self) -> LocalShell:
        return LocalShell(prefix=self.prefix)

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self.pid), "-m", "-p", "-u", *self.spaces, "--")

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def run(self, *argv: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self.prefix, *argv], input=stdin, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def pids(self, *words: str) -> list[int]:
        """Its processes whose command lines hold all the words, by its own numbers."""
        return [
            int(line.split()[0])
            for line in self.run("ps", "-ww", "-eo", "pid=,args=").splitlines()
            if all(word in line for word in words) and "ps -ww" not in line
        ]


@contextmanager
def bare_host(folder: Path, *, group: Path | None = None) -> Iterator[BareHost]:
    """``group``: a control group of version 2 for it, which is then run by systemd."""
    folder.mkdir(parents=True, exist_ok=True)
    spaces = ["unshare", "-m", "-p", "-u", "-f", "--kill-child", "--propagation", "private"]
    join: list[str] = []
    if group is not None:
        group.mkdir()
        join = ["sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(group)]
        spaces.append("-C")
    outer = subprocess.Popen(
        [*join, *spaces, "sh", "-c", INIT, "sh", str(folder), "systemd" if group is not None else ""],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield BareHost(pid=_first(outer), spaces=("-C",) if group is not None else ())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(outer.pid, signal.SIGKILL)
        outer.wait()
        if outer.stderr is not None:
            outer.stderr.close()
        if group is not None:
            _remove_group(group)


def _remove_group(group: Path) -> None:
    """From the bottom up, once the kernel has let go of its last process."""
    deadline = time.monotonic() + 20
    while group.exists():
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
        assert time.monotonic() < deadline, f"{group} can't be removed"
        time.sleep(0.02)


def _first(outer: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError, IndexError):
            pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
            program = Path(f"/proc/{pid}/exe").readlink().name
            if Path(f"/proc/{pid}/root/run/up").exists() and program.startswith(("python", "systemd")):
                return pid
        assert outer.poll() is None, (outer.stderr and outer.stderr.read()) or "it ended"
        time.sleep(0.02)
    raise AssertionError("the bare machine is not up within 20 s")


def node(name: str = "gpu01", *, work: str = WORK, become: str = "none", **spec: Any) -> DesiredNode:
    given = {"ports": PortRange(from_port=1024, to_port=65535), "dirs": Dirs(work=work), **spec}
    ssh = Ssh(host="192.0.2.1", become=become)  # type: ignore[arg-type] # a test's word
    return DesiredNode(
        name=name,
        labels={},
        spec=NodeSpec(ssh=ssh, **given),
        address="192.0.2.1",
        where=Where(file="n.yaml"),
    )


def bundles(folder: Path, *, package: Path | None = None) -> Bundles:
    return Bundles(
        folder / "bundles",
        Wheels(cache=folder / "wheels", home=folder, environ=dict(os.environ)),
        package=package,
    )


def bootstrap(
    made: Bundles, *, told: Callable[[str], None] = lambda _: None, environ: Mapping[str, str] | None = None
) -> Bootstrap:
    return Bootstrap(bundles=made, environ=environ or {}, clock=SystemClock(), told=told)


async def link(host: BareHost, *, work: str = WORK, fleet: str = FLEET) -> StreamLink:
    """To its agent, through the socket's place in the machine's own files."""

    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(host.root / work.lstrip("/") / "agent.sock"))

    return await open_link(dial, node="gpu01", fleet=fleet)
