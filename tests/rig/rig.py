"""A small machine room on one machine: a controller and hosts on a network of their own, each host with its own processes,
users, file system and sshd.

Every host sees the machine's own root file system below its own disk, so that whatever is installed here is installed there; the
checkout, this Python and root's home are empty in it, so that nothing works there by accident. The controller has a network of
its own too: nothing of a rig touches the machine's network, and two rigs at once have the same addresses without knowing.

    with Rig(tmp_path, hosts=3) as rig:
        rig.controller.run(["ssh", …])          # a program in the controller's network
        rig.controller.inside(lambda: …)        # a function of this process in it, with the threads that it starts
        rig.hosts[1].cut()

Host cgroups are not there (their /sys/fs/cgroup is empty), and the clock is everybody's.
"""

import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import pytest

from llmgw.model.struct import Struct
from tests.rig import namespaces
from tests.rig.host import Host
from tests.rig.namespaces import run
from tests.rig.options import Options

T = TypeVar("T")
CONTROLLER: Final = "10.77.0.1"


class Controller(Struct, kw_only=False):
    """Where llmgw runs: a network with the hosts in it, and the machine's own files."""

    namespace: str
    address: str = CONTROLLER

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        cwd: Path | None = None,
        stdin: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        """A program to its end."""
        return subprocess.run(
            self.command(argv),
            env=None if env is None else dict(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=cwd,
        )

    def command(self, argv: Sequence[str]) -> list[str]:
        """For whoever starts it in a way of their own."""
        return ["/usr/sbin/ip", "netns", "exec", self.namespace, *argv]

    def inside(self, work: Callable[[], T]) -> T:
        """A function of this process, in a thread with this network."""
        return namespaces.inside(self.namespace, work)


class Rig:
    """``hosts`` is how many, or what each is like. ``on`` False: the hosts are off still."""

    def __init__(self, folder: Path, *, hosts: int | Sequence[Options] = 3, on: bool = True) -> None:
        self.run_id = namespaces.run_id()
        self.folder = folder / f"rig-{secrets.token_hex(3)}"
        self.identity = self.folder / "id"
        self.controller = Controller(namespaces.name(self.run_id, "ctl"))
        options = [Options()] * hosts if isinstance(hosts, int) else list(hosts)
        self.hosts = [self._host(number, one) for number, one in enumerate(options, 1)]
        self._on = on
        self._mounted: list[Path] = []

    def __enter__(self) -> Self:
        namespaces.remove_stale()
        self.folder.mkdir(parents=True)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        left = namespaces.leftovers(self.run_id, self.folder)
        assert not left, f"the rig leaves behind: {left}"

    def close(self) -> None:
        """Takes everything away. Idempotent."""
        for name in namespaces.ours(self.run_id):
            namespaces.remove(name)
        for host in self.hosts:
            host.forget()
        while self._mounted:
            run("umount", str(self._mounted[-1]))
            self._mounted.pop()

    def _build(self) -> None:
        controller = self.controller.namespace
        run("ip", "netns", "add", controller)
        run(*f"ip -n {controller} link set lo up".split())
        run(*f"ip -n {controller} link add br0 type bridge".split())
        run(*f"ip -n {controller} addr add {CONTROLLER}/24 dev br0".split())
        run(*f"ip -n {controller} link set br0 up".split())
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rig", "-f", str(self.identity))
        Path("/run/sshd").mkdir(exist_ok=True)
        self._make_disks()
        for host in self.hosts:
            host.build()
        if self._on:
            self.power_on()

    def power_on(self) -> None:
        """All that are off; the first time their users are made too."""
        off = [host for host in self.hosts if not host.running]
        for host in off:
            host.press_power()
        for host in off:
            host.wait_until_up()

    def _host(self, number: int, options: Options) -> Host:
        name = f"node{number}"
        return Host(
            name=name,
            address=f"10.77.0.{10 + number}",
            namespace=namespaces.name(self.run_id, str(number)),
            controller=self.controller.namespace,
            port=f"port{number}",
            folder=self.folder / "hosts" / name,
            identity=self.identity,
            options=options,
        )

    def _make_disks(self) -> None:
        """Upper layers can't lie on an overlay, which a container's root often is: then they lie in memory."""
        disks = self.folder / "hosts"
        disks.mkdir()
        trial = self.folder / "trial"
        for part in ("lower", "upper", "work", "view"):
            (trial / part).mkdir(parents=True)
        layers = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
        command = ["unshare", "-m", "mount", "-t", "overlay", "overlay", "-o", layers, str(trial / "view")]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            self._mount_memory(disks)
        for host in self.hosts:
            if host.options.disk:
                (host.folder / "disk").mkdir(parents=True)
                self._mount_memory(host.folder / "disk", "-o", f"size={host.options.disk}")

    def _mount_memory(self, folder: Path, *options: str) -> None:
        run("mount", "-t", "tmpfs", *options, "tmpfs", str(folder))
        self._mounted.append(folder)


def require_rig(not_proved: str) -> None:
    """Skips the test where no rig can be built, loudly: ``not_proved`` stands in the report."""
    if why := namespaces.missing():
        pytest.skip(f"{why}; not proved: {not_proved}")
