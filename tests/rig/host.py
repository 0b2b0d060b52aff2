"""One host of a rig: a machine with its own network, processes, users, file system and sshd, and the ways to hurt it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmgw.model.struct import Struct
from tests.rig import namespaces
from tests.rig.namespaces import run
from tests.rig.options import Options, User

INIT: Final = Path(__file__).with_name("node-init.sh")
CHECKOUT: Final = Path(__file__).parents[2]
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UP_WITHIN: Final = 20.0
PAUSE: Final = 0.05
NFT_TABLE: Final = "rig"


class Done(Struct):
    """How a command on a host ended."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Host:
    """``folder`` holds its disk, which outlives power cuts. ``controller`` is the namespace with the bridge."""

    name: str
    address: str
    namespace: str
    controller: str
    port: str  # the bridge's end of its cable
    folder: Path
    identity: Path
    options: Options
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    _init: int = field(default=0, repr=False)
    _set_up: bool = field(default=False, repr=False)

    # ---- what it is ------------------------------------------------------------------------------

    @property
    def host_keys(self) -> tuple[str, ...]:
        """As manifests pin them."""
        return tuple(
            " ".join((self.folder / "etc" / f"key_{kind}.pub").read_text().split()[:2])
            for kind in self.options.key_types
        )

    @property
    def host_key(self) -> str:
        return self.host_keys[0]

    @property
    def running(self) -> bool:
        return self._init != 0

    @property
    def init(self) -> int:
        """Its process 1, by this machine's number."""
        assert self.running, f"{self.name} is off"
        return self._init

    # ---- making it -------------------------------------------------------------------------------

    def build(self) -> None:
        """Its namespace, its cable, its keys and its sshd's settings; it is off still."""
        run("ip", "netns", "add", self.namespace)
        run(
            *f"ip -n {self.controller} link add {self.port} type veth peer name eth0 netns {self.namespace}".split()
        )
        run(*f"ip -n {self.controller} link set {self.port} master br0 up".split())
        run(*f"ip -n {self.namespace} link set lo up".split())
        run(*f"ip -n {self.namespace} addr add {self.address}/24 dev eth0".split())
        run(*f"ip -n {self.namespace} link set eth0 up".split())
        etc = self.folder / "etc"
        etc.mkdir(parents=True)
        self.new_host_keys()
        (etc / "authorized_keys").write_text(self.identity.with_suffix(".pub").read_text())
        (etc / "authorized_keys").chmod(0o644)  # read as the user who logs in
        own = sorted(path.name for path in Path("/etc/rc2.d").glob("S*"))
        (etc / "own-scripts").write_text(" ".join(own))
        (etc / "shares").write_text("".join(f"{here}\t{there}\n" for here, there in self.options.shares))
        (etc / "sshd_config").write_text(_sshd_config(self.options))

    def new_host_keys(self) -> None:
        """As after a new installation; counts from the next power_on."""
        for kind in self.options.key_types:
            file = self.folder / "etc" / f"key_{kind}"
            file.unlink(missing_ok=True)
            run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", self.name, "-f", str(file))

    def _set_up_users(self) -> None:
        self.write("/root/.bashrc", self.options.bashrc)
        for user in self.options.users:
            self._add(user)

    def _add(self, user: User) -> None:
        self.must("useradd", "--create-home", "--shell", "/bin/bash", user.name)
        self.must("usermod", "--password", "*", user.name)  # without PAM a locked account refuses keys too
        self.write(f"/home/{user.name}/.bashrc", user.bashrc)
        rule = {"nopasswd": "ALL=(ALL:ALL) NOPASSWD: ALL", "password": "ALL=(ALL:ALL) ALL", "none": ""}[
            user.sudo
        ]
        if rule:
            self.write(f"/etc/sudoers.d/{user.name}", f"{user.name} {rule}\n", mode=0o440)

    # ---- power -----------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Returns when its sshd answers. The same disk as before; /run, /tmp and the boot id are new."""
        self.press_power()
        self.wait_until_up()

    def press_power(self) -> None:
        """Only from the main thread: the host lives no longer than the thread that started it."""
        assert not self.running, f"{self.name} is on already"
        alone = f"ip netns exec {self.namespace} unshare -m -u -i -p -f --kill-child --mount-proc"
        command = [*alone.split(), "bash", str(INIT), str(self.folder), self.name, *self._hidden()]
        with (self.folder / "boot.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        run(*f"ip -n {self.controller} link set {self.port} up".split())

    def wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + UP_WITHIN
        while not (init := self._find_init()) or not self._answers():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not come up (exit code {code}): {self._boot_log()}")
            time.sleep(0.02)
        self._init = init
        if not self._set_up:
            self._set_up_users()
            self._set_up = True

    def forget(self) -> None:
        """Its namespace is gone, and with it all that ran there."""
        if self._process is not None:
            self._process.wait(timeout=10)
        self._process, self._init = None, 0

    def power_off(self) -> None:
        """As if the cable were pulled: nobody hears of it, and nothing gets to say goodbye."""
        run(*f"ip -n {self.controller} link set {self.port} down".split())
        namespaces.kill(self.namespace)
        self.forget()

    def power_cycle(self) -> None:
        self.power_off()
        self.power_on()

    # ---- the network -----------------------------------------------------------------------------

    def cut(self) -> None:
        """Its cable is out; what runs there runs on."""
        run(*f"ip -n {self.controller} link set {self.port} down".split())

    def heal(self) -> None:
        run(*f"ip -n {self.controller} link set {self.port} up".split())

    @contextmanager
    def refusing(self, source: str, *, how: str = "drop", port: int | None = None) -> Iterator[None]:
        """A firewall against one address: ``drop`` leaves it waiting, ``reject with tcp reset`` refuses."""
        match = f"tcp dport {port} " if port else "meta l4proto tcp "
        hook = "type filter hook input priority 0"
        rule = (
            f"table inet {NFT_TABLE} {{\n chain i {{\n {hook};\n ip saddr {source} {match}{how};\n }}\n}}\n"
        )
        run("ip", "netns", "exec", self.namespace, "nft", "-f", "-", stdin=rule)
        try:
            yield
        finally:
            run("ip", "netns", "exec", self.namespace, "nft", "delete", "table", "inet", NFT_TABLE)

    # ---- its processes ---------------------------------------------------------------------------

    def freeze(self) -> None:
        """The kernel answers, nothing else does."""
        stopped: set[int] = set()
        while new := set(namespaces.pids(self.namespace)) - stopped:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= new

    def thaw(self) -> None:
        for pid in namespaces.pids(self.namespace):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def exec(
        self,
        *argv: str,
        stdin: str | bytes = b"",
        timeout: float = 30,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """A command on the host as root, without SSH."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            self.command(argv, env=env),
            input=data,
            capture_output=True,
            timeout=timeout,
            check=False,
            cwd="/",
        )
        return Done(
            code=done.returncode,
            out=done.stdout.decode(errors="replace"),
            err=done.stderr.decode(errors="replace"),
        )

    def command(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> list[str]:
        """For whoever starts it in a way of their own."""
        given = [f"{name}={value}" for name, value in (env or {}).items()]
        usual = ("env", "-i", f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8")
        return [*self._enter(), *usual, *given, *argv]

    def must(self, *argv: str, stdin: str | bytes = b"", timeout: float = 30) -> str:
        """Its output; an exit code other than 0 fails."""
        done = self.exec(*argv, stdin=stdin, timeout=timeout)
        assert done.code == 0, f"{self.name}: {' '.join(argv)} -> {done.code}: {done.err}{done.out}"
        return done.out

    def processes(self) -> dict[int, str]:
        """Command lines by the host's own pids; the host's sshd and this look are not counted."""
        lines = self.must("ps", "-eo", "pid=,args=", "ww").splitlines()
        found = {int(pid): args for pid, args in (line.strip().split(None, 1) for line in lines)}
        return {
            pid: args for pid, args in found.items() if "sshd" not in args and not args.startswith("ps -eo")
        }

    # ---- its disk --------------------------------------------------------------------------------

    def write(self, path: str, text: str | bytes, *, mode: int = 0o644) -> None:
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        self.must("sh", "-c", script, "write", path, f"{mode:04o}", stdin=text)

    def read(self, path: str) -> str:
        return self.must("cat", path)

    def exists(self, path: str) -> bool:
        return self.exec("test", "-e", path).code == 0

    def hide(self, *programs: str) -> None:
        """As if they had never been installed: ``sudo``, ``python3*``. Lasts."""
        for folder in PATH.split(":"):
            for program in programs:
                self.must("sh", "-c", f"rm -f {folder}/{program}")

    def fake(self, program: str, script: str) -> None:
        """A program of that name, found first on the PATH. Lasts."""
        self.write(f"/usr/local/sbin/{program}", script, mode=0o755)

    def small_disk(self, folder: str, size: str) -> None:
        """A file system of its own that is soon full, until the power goes."""
        self.must(
            "sh", "-c", 'mkdir -p "$1" && mount -t tmpfs -o "size=$2" tmpfs "$1"', "mount", folder, size
        )

    # ---- inside ----------------------------------------------------------------------------------

    def _hidden(self) -> Sequence[str]:
        """A node must get by without this checkout and its Python; a test that needs them says so."""
        always = () if self.options.shows_checkout else (str(CHECKOUT), *_python_homes())
        return (*always, *self.options.hide)

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p"]

    def _find_init(self) -> int:
        """Process 1 of its pid namespace, by its number out here."""
        for pid in namespaces.pids(self.namespace):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                numbers = next(line for line in lines if line.startswith("NSpid")).split()[1:]
                if len(numbers) >= 2 and numbers[-1] == "1":
                    return pid
        return 0

    def _answers(self) -> bool:
        return namespaces.inside(self.controller, lambda: _says_ssh(self.address))

    def _boot_log(self) -> str:
        texts = [self.folder / "boot.log", self.folder / "disk" / "upper" / "var" / "log" / "sshd.log"]
        return "\n".join(text.read_text(errors="replace")[-2000:] for text in texts if text.exists())


def _says_ssh(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), 1) as trial:
            trial.settimeout(1)
            return trial.recv(4) == b"SSH-"
    except OSError:
        return False


def _python_homes() -> tuple[str, ...]:
    """Where the tests' own Python lives, unless that is the system's."""
    return tuple(sorted({one for one in (sys.base_prefix, sys.prefix) if not one.startswith("/usr")}))


def _sshd_config(options: Options) -> str:
    lines = [
        "Port 22",
        *(f"HostKey /etc/llnode/key_{kind}" for kind in options.key_types),
        "PidFile none",
        "AuthorizedKeysFile /etc/llnode/authorized_keys",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "UsePAM no",
        "StrictModes no",
        "UseDNS no",
        "PrintMotd no",
        "Subsystem sftp internal-sftp",
        *([f"MaxSessions {options.max_sessions}"] if options.max_sessions is not None else []),
        *([f"MaxStartups {options.max_startups}"] if options.max_startups is not None else []),
        *options.sshd,
    ]
    return "\n".join(lines) + "\n"


def wait_for(what: str, true: Callable[[], bool], *, within: float = 20) -> None:
    """Fails with ``what`` when it does not come about in time. At most half of the time is spent on looking: others work meanwhile,
    and what is waited for does too."""
    deadline = time.monotonic() + within
    while True:
        began = time.monotonic()
        if true():
            return
        now = time.monotonic()
        assert now < deadline, f"waited {within:g} s in vain for: {what}"
        time.sleep(max(PAUSE, now - began))
