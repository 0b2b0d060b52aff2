"""A fleet of the rig's hosts as its team has it: bare machines, a bare Git repository that everybody pushes to, and the command
line on the controller."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmgw.model.struct import Struct
from tests import forked
from tests.rig import namespaces
from tests.rig.host import Host, wait_for
from tests.rig.rig import Rig

LLMGW = str(Path(sys.executable).with_name("llmgw"))
STATE = "llmgw/state"
AUTHOR = ("-c", "user.name=ann", "-c", "user.email=ann@localhost")
ENGINES = ("sim-engine", "llama-server")
HOOK = f"""\
#!/bin/sh
# Whoever pushes waits for this hook to end: with the file "hold" there, the next one who writes the record does.
while read -r old new ref; do
  [ "$ref" = refs/heads/{STATE} ] || continue
  mv hold held 2>/dev/null || continue
  while [ -e held ]; do sleep 0.02; done
done
"""


class Ran(Struct):
    """One command: what it said and how it ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class SshRoad:
    """``ssh`` are further words of each node's ``ssh``, ``env`` what nodes' jobs get, ``variables`` what the controller's
    environment holds besides. ``hosts``: those of the rig that are nodes, all by default. ``said`` is all that commands ever printed."""

    def __init__(
        self,
        rig: Rig,
        base: Path,
        *,
        hosts: Sequence[Host] | None = None,
        ssh: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.rig = rig
        self.base = base
        self.fleet = base / "fleet"
        self.hub = base / "hub.git"
        self.manifests = self.fleet / "manifests"
        self.hosts = tuple(rig.hosts if hosts is None else hosts)
        self.env = env or {}
        self.variables = variables or {}
        self.said: list[Ran] = []
        self._started: list[subprocess.Popen[str]] = []
        self.manifests.mkdir(parents=True)
        for host in self.hosts:
            self.write_node(host, **(ssh or {}).get(host.name, {}))
        self.write_profile()
        self._git("init", "--quiet", "--initial-branch", "main")
        self._git("init", "--quiet", "--bare", "--initial-branch", "main", str(self.hub))
        self._git("remote", "add", "origin", str(self.hub))
        hook = self.hub / "hooks" / "post-receive"
        hook.write_text(HOOK)
        hook.chmod(0o755)

    # ---- what people write -----------------------------------------------------------------------

    def write_node(self, host: Host, *, name: str = "", renamed_from: str = "", **ssh: Any) -> None:
        """``name``: where it is not the host's own."""
        notes = {"llmgw/renamed-from": renamed_from} if renamed_from else None
        way = {
            "host": host.address,
            "hostKeys": list(host.host_keys),
            "identity": {"fromFile": str(host.identity)},
        }
        spec: dict[str, Any] = {"ssh": {**way, **ssh}}
        if self.env:
            spec["env"] = self.env
        self.write("Node", name or host.name, spec, annotations=notes)

    def write_profile(self, name: str = "pretend", **spec: Any) -> None:
        """Of the stand-in engine, unless ``engine`` says otherwise."""
        usual = {
            "engine": {"name": "sim"},
            "gpus": {"perNode": 0},
            "memory": "64MiB",
            "timeouts": {"stop": "5s"},
        }
        self.write("Profile", name, {**usual, **spec})

    def write_model(self, name: str, *, renamed_from: str = "", **spec: Any) -> None:
        usual = {"source": {"path": "/var/empty"}, "profile": "pretend", "rollout": {"drainTimeout": "5s"}}
        notes = {"llmgw/renamed-from": renamed_from} if renamed_from else None
        self.write("Model", name, {**usual, **spec}, annotations=notes)

    def write(
        self, kind: str, name: str, spec: Mapping[str, Any], *, annotations: Mapping[str, str] | None = None
    ) -> None:
        about = {"name": name, **({"annotations": annotations} if annotations else {})}
        document = {"apiVersion": "llmgw/v1", "kind": kind, "metadata": about, "spec": spec}
        (self.manifests / f"{kind.lower()}-{name}.yaml").write_text(json.dumps(document, indent=2) + "\n")

    def remove(self, kind: str, name: str) -> None:
        (self.manifests / f"{kind.lower()}-{name}.yaml").unlink()

    def remove_models(self) -> None:
        for file in self.manifests.glob("model-*.yaml"):
            file.unlink()

    def commit(self, message: str, *, author: str = "ann <ann@localhost>") -> str:
        """Committed and pushed: others read it from there."""
        self._git("add", "--all")
        self._git(*AUTHOR, "commit", "--quiet", "--allow-empty", "--author", author, "-m", message)
        self._git("push", "--quiet", "origin", "main")
        return self._git("rev-parse", "HEAD").strip()

    # ---- what the record says --------------------------------------------------------------------

    def state(self) -> list[str]:
        """The subjects on the state branch, oldest first, read with plain git."""
        return self._on_hub("log", "--reverse", "--format=%s", STATE).splitlines()

    def last_pass(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._on_hub("show", f"{STATE}:record.json"))["lastPass"]
        return found

    def _on_hub(self, *words: str) -> str:
        command = ["git", "--git-dir", str(self.hub), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.fleet), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"git {' '.join(words)}: {done.stderr}"
        return done.stdout

    # ---- the moment between intent and first command ---------------------------------------------

    def hold_next_intent(self) -> None:
        """Whoever writes the record next is kept from going on, the intent being on the branch, until ``let_go``."""
        (self.hub / "hold").touch()

    def wait_until_held(self) -> None:
        wait_for("an intent on the state branch", (self.hub / "held").exists, within=60)

    def let_go(self) -> None:
        for name in ("hold", "held"):
            (self.hub / name).unlink(missing_ok=True)

    # ---- the command line ------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.base),
            "LLMGW_REPO": str(self.hub),
            "LLMGW_STATE_DIR": str(self.base / "state"),
            "LLMGW_SECRET_FILE": str(self.base / "secret"),
            "LLMGW_HOLDER": "ann@desk",
            "PYTHONWARNINGS": "error",
            **self.variables,
        }

    def start(self, *words: str, variables: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        running = subprocess.Popen(
            self.rig.controller.command([LLMGW, *words]),
            cwd=self.fleet,
            env={**self.environment, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(running)
        return running

    def close(self) -> None:
        """Nothing that a test has started outlives it, whatever became of the test."""
        self.let_go()
        for running in self._started:
            with running:  # closes what it printed to and waits
                running.kill()
        self._started.clear()

    def end(
        self,
        running: "subprocess.Popen[str]",
        *words: str,
        expect: int | Collection[int] = 0,
        within: float = 120,
    ) -> Ran:
        """What it printed; another exit code than ``expect``, or than all of these, fails."""
        try:
            out, err = running.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            running.kill()
            out, err = running.communicate()
            raise AssertionError(f"llmgw {' '.join(words)} took over {within:.0f} s:\n{out}\n{err}") from None
        return self._said(Ran(words=words, code=running.returncode, out=out, err=err), expect)

    def _said(self, ran: Ran, expect: int | Collection[int]) -> Ran:
        self.said.append(ran)
        expected = (expect,) if isinstance(expect, int) else expect
        assert ran.code in expected, f"llmgw {' '.join(ran.words)} -> {ran.code}\n{ran.out}\n{ran.err}"
        return ran

    def run(
        self,
        *words: str,
        expect: int = 0,
        within: float = 120,
        variables: Mapping[str, str] | None = None,
    ) -> Ran:
        env = {**self.environment, **(variables or {})}
        if "PYTHONPATH" in env:  # another llmgw than this
            return self.end(self.start(*words, variables=variables), *words, expect=expect, within=within)
        network = self.rig.controller.namespace
        done = forked.llmgw(*words, cwd=self.fleet, env=env, timeout=within, network=network)
        return self._said(Ran(words=words, code=done.returncode, out=done.stdout, err=done.stderr), expect)

    def llmgw(
        self,
        *words: str,
        expect: int = 0,
        within: float = 120,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """What the command printed, both streams; another exit code than ``expect`` fails. ``variables`` are added to its
        environment."""
        return self.run(*words, expect=expect, within=within, variables=variables).text

    def status(self) -> list[dict[str, Any]]:
        """Every replica, as its agents say."""
        found: list[dict[str, Any]] = json.loads(self.run("status", "--json").out)["replicas"]
        return found

    # ---- the models ------------------------------------------------------------------------------

    def endpoints(self) -> list[dict[str, Any]]:
        """With their keys, so it is not part of what was ``said``."""
        running = self.start("endpoints", "--json")
        out, err = running.communicate(timeout=60)
        assert running.returncode == 0, err
        found: list[dict[str, Any]] = json.loads(out)["endpoints"]
        return found

    def ask(
        self, endpoint: Mapping[str, Any], path: str = "/models", *, body: Mapping[str, Any] | None = None
    ) -> str:
        """From the controller's network, as a gateway there would."""
        done = self._get(endpoint, path, body)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answer(self, endpoint: Mapping[str, Any], path: str = "/models") -> str:
        """The same; nothing while nobody answers."""
        return self._get(endpoint, path, None).stdout

    def _get(
        self, endpoint: Mapping[str, Any], path: str, body: Mapping[str, Any] | None
    ) -> "subprocess.CompletedProcess[str]":
        script = (
            "import sys, json, urllib.request as u\n"
            "key, body = json.load(sys.stdin)\n"
            "h = {'Authorization': 'Bearer ' + key, 'Content-Type': 'application/json'}\n"
            "r = u.Request(sys.argv[1], headers=h, data=json.dumps(body).encode() if body else None)\n"
            "print(u.urlopen(r, timeout=60).read().decode())"
        )
        url = f"{endpoint['url']}{path}"
        stdin = json.dumps([endpoint["key"], body])
        return self.rig.controller.run([sys.executable, "-I", "-S", "-c", script, url], stdin=stdin)


# ---- what runs on hosts, seen from outside -------------------------------------------------------


def processes(host: Host) -> dict[int, tuple[str, ...]]:
    """Command lines by this machine's pids."""
    found = {}
    for pid in namespaces.pids(host.namespace):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            found[pid] = tuple(word for word in words if word)
    return found


def engines(host: Host, model: str = "") -> dict[int, tuple[str, ...]]:
    """Engines themselves and not their shims; of one model, or all."""
    return {
        pid: words
        for pid, words in processes(host).items()
        if any(word.endswith(f"/bin/{name}") for name in ENGINES for word in words[:2])
        and (not model or model in words)
    }


def agents(host: Host) -> tuple[int, ...]:
    return tuple(pid for pid, words in processes(host).items() if "daemon" in words and "--work" in words)


def kill_agent(host: Host) -> None:
    for pid in agents(host):
        os.kill(pid, signal.SIGKILL)
    wait_for(f"the end of {host.name}'s agent", lambda: not agents(host))
