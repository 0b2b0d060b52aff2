"""An engine's program as a real process on loopback: started by path, asked over HTTP, ended by the test."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from openai import OpenAI

RUNTIME = Path(__file__).parents[2] / "llmgw" / "runtime"
KEY = "test-key-Zx81"
DEADLINE = 120.0
T = TypeVar("T")


def until(what: str, condition: Callable[[], T | None], deadline: float = DEADLINE) -> T:
    """Waits until the condition is true, and fails saying what never came true."""
    end = time.monotonic() + deadline
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {what}")
        time.sleep(0.02)


class EngineProcess:
    """Everything it prints goes to one file, as on a node. ``with`` ends it, however the test goes."""

    def __init__(
        self,
        program: str,
        *flags: str,
        folder: Path,
        python: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.log = folder / f"{program}-{len(list(folder.glob('*.log')))}.log"
        isolated = ["-I", "-S"] if python is None else ["-I"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(python or sys.executable), *isolated, str(RUNTIME / f"{program}.py"), *flags],
                env={"HOME": str(folder), "PATH": "/usr/bin:/bin", **(env or {})},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.text())
            assert match or self.process.poll() is None, f"exited before {pattern!r}:\n{self.text()}"
            return match

        return until(f"{pattern!r} in the log", found)

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE)

    def client(self, port: int, key: str | None = KEY) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=DEADLINE)


def openai_client(port: int, key: str = KEY) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=DEADLINE)


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith(f"{name} ")]
    return float(value)


def chat(text: str) -> Any:
    return [{"role": "user", "content": text}]
