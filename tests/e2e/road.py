"""A fleet as its user has it: a Git repository, the command line, real agents and engines, all below one folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LLMGW = str(Path(sys.executable).with_name("llmgw"))


class Road:
    """One fleet on one machine. ``manifests`` starts as the shipped default fleet."""

    def __init__(self, base: Path, *, wheels: Path, ports: tuple[int, int]) -> None:
        self.base = base
        self.fleet = base / "fleet"
        self.agent = base / "agent"
        self.manifests = self.fleet / "manifests"
        shutil.copytree(ROOT / "manifests", self.manifests)
        self.edit("node", r"workDir: .*", f"workDir: {self.agent}")
        self.edit("node", r"from: \d+\n    to: \d+", f"from: {ports[0]}\n    to: {ports[1]}")
        self.edit("fleet", r"(?m)^spec:\n", f"spec:\n  pip: {{wheelDir: {wheels}}}\n")
        self._git("init", "--quiet", "--initial-branch", "main")
        self.commit("Serve SmolLM2 on this machine")

    def edit(self, file: str, pattern: str, text: str) -> None:
        path = self.manifests / f"{file}.yaml"
        before = path.read_text()
        after = re.sub(pattern, text, before)
        assert after != before, f"{pattern!r} is not in {path}"
        path.write_text(after)

    def commit(self, message: str) -> str:
        self._git("add", "--all")
        self._git("-c", "user.name=ann", "-c", "user.email=ann@localhost", "commit", "--quiet", "-m", message)
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.fleet), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def state(self) -> list[str]:
        """The subjects on the state branch, oldest first, read with plain git."""
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

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [LLMGW, *words],
            cwd=self.fleet,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def llmgw(self, *words: str, expect: int = 0, within: float = 100) -> str:
        """What the command printed, both streams; another exit code than ``expect`` fails."""
        running = self.start(*words)
        try:
            out, err = running.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            running.kill()
            out, err = running.communicate()
            raise AssertionError(f"llmgw {' '.join(words)} took over {within:.0f} s:\n{out}\n{err}") from None
        assert running.returncode == expect, f"llmgw {' '.join(words)} -> {running.returncode}\n{out}\n{err}"
        return out + err

    def endpoints(self) -> list[dict[str, Any]]:
        running = self.start("endpoints", "--json")
        out, err = running.communicate(timeout=30)
        assert running.returncode == 0, err
        found: list[dict[str, Any]] = json.loads(out)["endpoints"]
        return found

    def agent_pid(self) -> int:
        pid: int = json.loads((self.agent / "agent.lock").read_text())["pid"]
        return pid

    def engine_pids(self) -> dict[str, int]:
        """Pid of each live shard's engine, as its agent says."""
        running = subprocess.run(
            [str(Path(LLMGW).with_name("llmgw-agent")), "status", "--work", str(self.agent), "--json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        shards = json.loads(running.stdout)["shards"]
        return {shard["shard"]: shard["pid"] for shard in shards if shard["pid"]}

    def close(self) -> None:
        """End every process that lives below the folder: engines first, then the agent. By pid, ours only."""
        for _ in range(100):
            ours = _processes_of(self.base)
            for pid in ours:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not ours:
                return
            time.sleep(0.05)
        raise AssertionError(f"processes of {self.base} do not end: {_processes_of(self.base)}")


def _processes_of(folder: Path) -> list[int]:
    """Processes whose command line or environment names the folder; nobody else's do."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in told and state != "Z":
            found.append(int(entry.name))
    return found
