"""A stage for stories: a real Git repository, real local agents with the sim engine, and the real command line.

What a story says is compared with a golden file, in which everything that differs by run is replaced by a word.
``UPDATE_GOLDEN=1`` writes the files anew; read the difference before committing it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

import psutil

from llmgw.model.facts import Facts, Gpu
from llmgw.model.manifest import GIB
from llmgw.model.struct import Struct
from llmgw.wire.codec import dumps_readable
from tests import forked
from tests.ports import row_of_ports

GOLDEN = Path(__file__).parents[1] / "golden" / "stories"
LLMGW = (sys.executable, "-m", "llmgw.cli.main")
COMMAND_TIMEOUT = 90
PORTS = 12

_WORDS: tuple[tuple[str, str], ...] = (
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "<time>"),
    (r"\b\d\d:\d\d:\d\d UTC", "<time>"),
    (r"\b[0-9a-f]{64}\b", "<hex64>"),
    (r"\b[0-9a-f]{40}\b", "<commit>"),
    (r"\bfleet-[0-9a-f]{16}\b", "<fleet>"),
    (r"\b([a-z]+)-[0-9a-f]{8}-(\d+\.\d+)", r"\1-<digest>-\2"),
    (r"\b(install|fetch)-[0-9a-f]{8}\b", r"\1-<digest>"),
    (r"\b(commit|for|what|Applied|to|applying|applied|of) [0-9a-f]{10}(?:[0-9a-f]{2})?\b", r"\1 <commit>"),
    (r"\([0-9a-f]{10}\)", "(<commit>)"),
    (r"  [0-9a-f]{10}  ", "  <commit>  "),
    (r"\bintent [0-9a-f]{8}\b", "intent <commit>"),
    (r"\bgood spec [0-9a-f]{8}\b", "good spec <digest>"),
    (r"\bpid \d+", "pid <pid>"),
    (r"\b\d+ s after its start", "<n> s after its start"),
    (r"\btook \d+s\b", "took <n>s"),
    (r"\b[\d.]+ [GM]iB of memory free", "<n> GiB of memory free"),
    (r"\brecord at [0-9a-f]{12}\b", "record at <commit>"),
)


_DISK = re.compile(r"^disk-low +\w+ +node/.*\n(?:    .*\n)*", re.MULTILINE)
_NO_ALERT = re.compile(r"\nALERT +SEVERITY.*\n(?=\[exit|\Z)")
"""How full the disk of this machine is is no part of any story."""

_PROGRESS = re.compile(r"^[a-z0-9-]+/\d+\.\d+ on ")


class Ran(Struct):
    """One command: what it said and how it ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def errors(self) -> str:
        """What is told as an error; how the work went on is told in whatever order it happened."""
        told = [line for line in self.err.splitlines(keepends=True) if not _PROGRESS.match(line)]
        return "".join(told)


@dataclass(slots=True)
class Stage:
    folder: Path
    first_port: int
    script: list[str] = field(default_factory=list)

    @property
    def fleet(self) -> Path:
        return self.folder / "fleet"

    @property
    def work(self) -> Path:
        return self.folder / "agent"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "LLMGW_STATE_DIR": str(self.folder / "state"),
            "LLMGW_SECRET_FILE": str(self.folder / "secret"),
            "LLMGW_HOLDER": "ann@desk",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TERM": "dumb",
        }

    # ---- what people do --------------------------------------------------------------------------------------

    def git(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=cwd or self.fleet,
            env={**self.environment, **_AUTHOR},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, f"git {' '.join(words)}: {done.stderr}"
        return done.stdout

    def commit(self, message: str, **files: str | None) -> None:
        """Write manifests (by name, without the ending; None removes one) and commit them."""
        folder = self.fleet / "manifests"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / f"{name}.yaml"
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def llmgw(self, *words: str, golden: bool = True, **environment: str) -> Ran:
        env = {**self.environment, **environment}
        done = forked.llmgw(*words, cwd=self.fleet, env=env, timeout=COMMAND_TIMEOUT)
        ran = Ran(words=words, code=done.returncode, out=done.stdout, err=done.stderr)
        if golden:
            self.script.append(f"$ llmgw {' '.join(words)}\n{ran.out}{ran.errors}[exit {ran.code}]\n")
        return ran

    def begin(
        self, *words: str, program: tuple[str, ...] = LLMGW, **environment: str
    ) -> subprocess.Popen[str]:
        """Without waiting for its end."""
        return subprocess.Popen(
            [*program, *words],
            cwd=self.fleet,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def say(self, text: str) -> None:
        """Tell the reader of the golden file what happens between commands."""
        self.script.append(f"# {text}\n")

    # ---- what is seen ----------------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Everything that runs for this stage: agents, shims, engines."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                mine = str(self.folder) in " ".join(process.cmdline())
                if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def engines(self) -> list[psutil.Process]:
        return [it for it in self.processes() if _is_engine(it)]

    def agents(self) -> list[psutil.Process]:
        return [it for it in self.processes() if "daemon" in _words_of(it)]

    def trailers(self) -> list[dict[str, str]]:
        """Of every commit of the state branch, newest first, as plain git tells them."""
        text = self.git("log", "--format=%s%x00%(trailers:only,unfold)%x01", "llmgw/state")
        told: list[dict[str, str]] = []
        for entry in text.split("\x01"):
            subject, _, lines = entry.strip().partition("\x00")
            if subject:
                pairs = (line.partition(": ") for line in lines.splitlines() if line)
                told.append({"subject": subject, **{name: value for name, _, value in pairs}})
        return told

    def golden(self, name: str) -> None:
        """The whole script is what it was."""
        text = self.plain("\n".join(self.script))
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        kept = path.read_text()
        differences = unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=1)
        assert text == kept, "\n".join([f"{path.name} (UPDATE_GOLDEN=1 writes it anew)", *differences])

    def plain(self, text: str) -> str:
        text = text.replace(str(self.folder), "<folder>").replace(socket.gethostname(), "<host>")
        for number in range(PORTS):
            text = re.sub(rf"\b{self.first_port + number}\b", f"<port {number}>", text)
        for pattern, word in _WORDS:
            text = re.sub(pattern, word, text)
        text = _NO_ALERT.sub("", _DISK.sub("", text))
        return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


_AUTHOR = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_engine(process: psutil.Process) -> bool:
    words = _words_of(process)
    return any("sim-engine" in word for word in words) and not any("shim" in word for word in words)


def until(condition: Callable[[], Any], what: str, *, within: float = 30) -> Any:
    """Wait for a condition, with a deadline that fails."""
    give_up = time.monotonic() + within
    while True:
        if found := condition():
            return found
        assert time.monotonic() < give_up, f"waited {within:g} s in vain: {what}"
        time.sleep(0.02)


@contextmanager
def stage_in(folder: Path) -> Iterator[Stage]:
    with row_of_ports() as (first, _):
        stage = Stage(folder=folder, first_port=first)
        stage.fleet.mkdir()
        stage.git("init", "--quiet", "--initial-branch", "main")
        try:
            yield stage
        finally:
            _clear(stage)


def _clear(stage: Stage) -> None:
    """Only what this stage started, by its folder; agents first, so that they restart nothing."""
    for found in (stage.agents, stage.processes):
        for process in found():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        until(_gone(found), "the stage's processes to end")


def _gone(found: Callable[[], list[psutil.Process]]) -> Callable[[], bool]:
    return lambda: not found()


# ---- manifests ---------------------------------------------------------------------------------------------------


def node(stage: Stage, *, name: str = "here", facts: str | None = None) -> str:
    pretended = f", facts: {facts}" if facts else ""
    return f"""apiVersion: llmgw/v1
kind: Node
metadata: {{name: {name}}}
spec:
  transport: local
  local: {{workDir: {stage.work if name == "here" else stage.folder / name}{pretended}}}
  ports: {{from: {stage.first_port}, to: {stage.first_port + PORTS - 1}}}
"""


def gpu_node(stage: Stage, gpus: int) -> str:
    """A node that pretends to have so many GPUs."""
    facts = Facts(
        gpus=tuple(
            Gpu(
                uuid=f"GPU-0000000{index}",
                index=index,
                name="NVIDIA L40S",
                gpu_class="l40s-45g",
                memory_total=45 * GIB,
                memory_free=45 * GIB,
            )
            for index in range(gpus)
        ),
        gpu_source="pretended",
    )
    folder = stage.fleet / "manifests"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "here.json").write_bytes(dumps_readable(facts))
    return node(stage, facts="here.json")


def model(
    name: str = "chat", *, args: str = "", replicas: int = 1, gpus: int = 0, profile: str = "", spec: str = ""
) -> str:
    """``profile`` and ``spec`` are lines to add, indented by two."""
    return f"""apiVersion: llmgw/v1
kind: Profile
metadata: {{name: sim-{name}}}
spec:
  engine: {{name: sim, version: "1"}}
  gpus: {{perNode: {gpus}}}
  memory: 64MiB
  args: [{args}]
  timeouts: {{stop: 5s}}
{profile}---
apiVersion: llmgw/v1
kind: Model
metadata: {{name: {name}}}
spec:
  profile: sim-{name}
  source: {{path: /dev/null}}
  replicas: {replicas}
  rollout: {{drainTimeout: 5s}}
{spec}"""
