"""Units of tests, as workers of a run of their own take them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOLD = """\
import os
from pathlib import Path
import pytest

def tell(what):
    with (Path(__file__).parent / "told").open("a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {what}\\n")
"""
QUICK = "@pytest.mark.parametrize('number', range(20))\ndef test_quick(number): tell('quick')\n"
SHARING = """\
@pytest.fixture(scope="module")
def rig(): tell("built")

@pytest.mark.parametrize("number", range(20))
def test_on_a_rig(rig, number): tell("shared")

@pytest.mark.timeout(300)
def test_that_may_take_long_on_a_rig(rig): tell("shared")
"""
LONG = "@pytest.mark.timeout(600)\ndef test_long(): tell('long')\n\n"
SLOW = "@pytest.mark.slow\ndef test_slow(): tell('slow')\n"


def test_what_is_shared_is_built_once_and_what_takes_long_begins_first(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    for name, body in (("a", QUICK), ("b", SHARING), ("c", f"{SLOW}\n\n{LONG}"), ("d", LONG)):
        (tmp_path / f"test_{name}.py").write_text(f"{TOLD}\n{body}")
    plugins = ["-p", "no:cacheprovider", "-p", "xdist", "-p", "pytest_timeout"]
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", *plugins, *settings, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert [what for _, what in told].count("built") == 1
    assert len({worker for worker, what in told if what == "shared"}) == 1
    begun = {worker: [what for one, what in told if one == worker] for worker, _ in told}
    assert {what[0] for what in begun.values()} == {"long"}
    assert all(
        what == sorted(what, key=["long", "built", "shared", "slow", "quick"].index)
        for what in begun.values()
    )
