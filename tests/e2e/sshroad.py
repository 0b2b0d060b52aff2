"""A fleet of the rig's hosts as its user has it: a Git repository and the command line on the controller, bare machines beyond it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.rig.host import Host
from tests.rig.rig import Rig

LLMGW = str(Path(sys.executable).with_name("llmgw"))
PROFILE = """\
apiVersion: llmgw/v1
kind: Profile
metadata: {name: pretend}
spec:
  engine: {name: sim}
  gpus: {perNode: 0}
  memory: 64MiB
"""


class SshRoad:
    """``ssh`` are further words of each node's ``ssh``, by host name."""

    def __init__(self, rig: Rig, base: Path, *, ssh: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.rig = rig
        self.base = base
        self.fleet = base / "fleet"
        self.manifests = self.fleet / "manifests"
        self.manifests.mkdir(parents=True)
        (self.manifests / "profile.yaml").write_text(PROFILE)
        for host in rig.hosts:
            self.write_node(host, (ssh or {}).get(host.name, {}))
        self._git("init", "--quiet", "--initial-branch", "main")

    def write_node(self, host: Host, ssh: Mapping[str, Any]) -> None:
        way = {
            "host": host.address,
            "hostKeys": list(host.host_keys),
            "identity": {"fromFile": str(host.identity)},
        }
        spec = {"ssh": {**way, **ssh}}
        self._write(f"node-{host.name}", {"kind": "Node", "metadata": {"name": host.name}, "spec": spec})

    def write_model(self, name: str, **spec: Any) -> None:
        full = {"source": {"path": "/var/empty"}, "profile": "pretend", **spec}
        self._write(f"model-{name}", {"kind": "Model", "metadata": {"name": name}, "spec": full})

    def _write(self, file: str, document: Mapping[str, Any]) -> None:
        text = json.dumps({"apiVersion": "llmgw/v1", **document}, indent=2)
        (self.manifests / f"{file}.yaml").write_text(text + "\n")

    def commit(self, message: str) -> None:
        self._git("add", "--all")
        self._git("-c", "user.name=ann", "-c", "user.email=ann@localhost", "commit", "--quiet", "-m", message)

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.fleet), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def state(self) -> list[str]:
        """The subjects on the state branch, oldest first."""
        return self._git("log", "--reverse", "--format=%s", "llmgw/state").splitlines()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.base),
            "LLMGW_STATE_DIR": str(self.base / "state"),
            "LLMGW_SECRET_FILE": str(self.base / "secret"),
            "PYTHONWARNINGS": "error",
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.rig.controller.command([LLMGW, *words]),
            cwd=self.fleet,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def llmgw(self, *words: str, expect: int = 0, within: float = 120) -> str:
        """What the command printed, both streams; another exit code than ``expect`` fails."""
        return finished(self.start(*words), words, expect=expect, within=within)

    def endpoints(self) -> list[dict[str, Any]]:
        running = self.start("endpoints", "--json")
        out, err = running.communicate(timeout=30)
        assert running.returncode == 0, err
        found: list[dict[str, Any]] = json.loads(out)["endpoints"]
        return found

    def ask(self, endpoint: Mapping[str, Any], path: str = "/models") -> str:
        """From the controller's network, as a gateway there would."""
        done = self._get(endpoint, path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answer(self, endpoint: Mapping[str, Any], path: str = "/models") -> str:
        """The same; nothing while nobody answers."""
        return self._get(endpoint, path).stdout

    def _get(self, endpoint: Mapping[str, Any], path: str) -> "subprocess.CompletedProcess[str]":
        script = (
            "import sys, urllib.request as u\n"
            "r = u.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + sys.stdin.read()})\n"
            "print(u.urlopen(r, timeout=20).read().decode())"
        )
        url = f"{endpoint['url']}{path}"
        return self.rig.controller.run([sys.executable, "-c", script, url], stdin=str(endpoint["key"]))


def finished(
    running: "subprocess.Popen[str]", words: tuple[str, ...], *, expect: int = 0, within: float = 120
) -> str:
    try:
        out, err = running.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        running.kill()
        out, err = running.communicate()
        raise AssertionError(f"llmgw {' '.join(words)} took over {within:.0f} s:\n{out}\n{err}") from None
    assert running.returncode == expect, f"llmgw {' '.join(words)} -> {running.returncode}\n{out}\n{err}"
    return out + err
