"""What is shipped: the built wheel holds everything that an installed llmgw needs, and nothing is found in the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built and unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*build, "--wheel-dir", str(folder), str(ROOT)], check=True, capture_output=True, timeout=100
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "unpacked")
    return folder / "unpacked"


def llmgw(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, run from the wheel's files away from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "HOME": str(installed.parent)}
    command = [sys.executable, "-W", "error", "-m", "llmgw.cli.main", *words]
    return subprocess.run(
        command,
        cwd=installed.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_schema_is_in_the_wheel(installed: Path) -> None:
    shipped = {path.name for path in (installed / "llmgw" / "schemas").iterdir()}
    assert shipped == {path.name for path in (ROOT / "schemas").iterdir()}
    assert "model.schema.json" in shipped


def test_runtime_programs_and_type_marker_are_in_the_wheel(installed: Path) -> None:
    assert (installed / "llmgw" / "py.typed").exists()
    for program in ("shim", "factprobe", "simengine", "llamaserver"):
        assert (installed / "llmgw" / "runtime" / f"{program}.py").exists()


def test_the_wheel_finds_its_schemas_without_a_checkout(installed: Path) -> None:
    shown = llmgw(installed, "schema", "Model")
    assert shown.returncode == 0, shown.stderr
    assert '"maxSurge"' in shown.stdout


def test_both_programs_are_installed(installed: Path) -> None:
    entry_points = next(installed.glob("*.dist-info")) / "entry_points.txt"
    assert {"llmgw", "llmgw-agent"} <= {
        line.partition(" ")[0] for line in entry_points.read_text().splitlines()
    }
