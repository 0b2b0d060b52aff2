"""Looks for secrets where none may be: in command lines, all along; and afterwards in what was printed, in Git, and on disks."""

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

EVERY: Final = 0.1
"""Seconds between two looks: a command line that is there for a moment only is seen in most runs, and the usual ones live longer."""


@dataclass(slots=True)
class Canary:
    """``secrets`` by what they are called in a failure; more may be learned while it watches."""

    secrets: dict[str, str]
    found: set[str] = field(default_factory=set)
    kept: set[Path] = field(default_factory=set)  # files that hold secrets as they should
    looks: int = 0
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def learn(self, name: str, secret: str) -> None:
        assert len(secret) >= 16, f"{name} is too short to be told from other text"
        self.secrets = {**self.secrets, name: secret}

    @contextmanager
    def watching(self) -> Iterator["Canary"]:
        """Every command line of this machine, those of the rig's hosts among them."""
        thread = threading.Thread(target=self._watch, name="canary")
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            self.look()

    def look(self) -> None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    self._search((entry / "cmdline").read_bytes(), "a command line")
        self.looks += 1

    def text(self, where: str, text: str) -> None:
        """What was printed or logged."""
        self._search(text.encode(), where)

    def repository(self, git_dir: Path) -> None:
        """Every object of it, reachable or not."""
        command = ["git", "--git-dir", str(git_dir), "cat-file", "--batch-all-objects", "--batch"]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert done.stdout, f"{git_dir} holds nothing"
        self._search(done.stdout, f"an object of {git_dir.name}")

    def files(self, folder: Path, *, private: Sequence[str]) -> None:
        """Secrets may only lie in files that are called so, or that lie in a folder called so (``secrets/``), and that nobody but
        their owner can read."""
        names = "\n".join(secret for secret in self.secrets.values() if "\n" not in secret)
        command = ["grep", "-rlaF", "-D", "skip", "-f", "-", str(folder)]
        done = subprocess.run(command, input=names, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 1), done.stderr
        for line in done.stdout.splitlines():
            path = Path(line)
            inside = str(path.relative_to(folder))
            *parents, name = inside.split("/")
            expected = name in private or any(f"{part}/" in private for part in parents)
            if not expected:
                self.found.add(f"{self._named(path)} in file {path}")
            elif not path.stat().st_mode & 0o077:
                self.kept.add(path)
            else:
                self.found.add(f"{self._named(path)} in file {path}, which others can read")

    def _named(self, path: Path) -> str:
        data = path.read_bytes()
        return ", ".join(name for name, secret in self.secrets.items() if secret.encode() in data)

    def _search(self, data: bytes, where: str) -> None:
        for name, secret in self.secrets.items():
            if secret.encode() in data:
                self.found.add(f"{name} in {where}: {_around(data, secret.encode())}")


def _around(data: bytes, secret: bytes) -> str:
    """Enough of the place to find it again, and not the secret."""
    at = data.index(secret)
    return data[max(0, at - 80) : at].replace(b"\0", b" ").decode(errors="replace")


def lines_of(key: Path) -> Mapping[str, str]:
    """Of an OpenSSH private key: the lines that hold the private part. The first ones are the same for all keys, or public."""
    lines = key.read_text().splitlines()[3:-1]
    return {
        f"line {number} of the key {key.name}": line for number, line in enumerate(lines, 4) if len(line) > 30
    }
