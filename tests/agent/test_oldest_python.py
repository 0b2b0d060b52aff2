"""The part that runs on nodes is read by the oldest Python they have. Type checkers and vermin miss some of its syntax
errors (an asynchronous comprehension within another), so that Python itself is asked where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "llmgw"
PART = ("model", "wire", "agent", "runtime")
CHECK = (
    "import sys\nfor path in sys.argv[1:]:\n    compile(open(path, encoding='utf-8').read(), path, 'exec')\n"
)


def oldest_python() -> str | None:
    found = shutil.which("python3.10")
    candidates = [found] if found else []
    candidates += [str(path) for path in Path.home().glob(".pyenv/versions/3.10.*/bin/python")]
    for candidate in candidates:
        told = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if told.stdout.strip() == "(3, 10)":
            return candidate
    return None


def test_python_3_10_reads_every_module_of_the_nodes_part() -> None:
    python = oldest_python()
    if python is None:
        pytest.skip("no Python 3.10 on this machine")
    modules = [str(path) for part in PART for path in sorted((ROOT / part).rglob("*.py"))]
    modules += [
        str(ROOT / "clock.py"),
        str(ROOT / "notify.py"),
        str(ROOT / "redaction.py"),
        *(str(path) for path in (ROOT / "core").glob("life*.py")),
        str(ROOT / "core" / "symptoms.py"),
    ]
    ended = subprocess.run([python, "-c", CHECK, *modules], capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert len(modules) > 50
