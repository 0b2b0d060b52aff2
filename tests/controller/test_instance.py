"""The name of a state directory."""

import subprocess
import sys
from pathlib import Path

from llmgw.controller.instance import instance_of

FULL = """
import resource, sys
from pathlib import Path
from llmgw.controller.instance import instance_of
from llmgw.model.problems import StalledError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    instance_of(Path(sys.argv[1]))
except StalledError as wrong:
    print(wrong)
"""


def test_it_stays_the_same(tmp_path: Path) -> None:
    first = instance_of(tmp_path / "state")
    assert first
    assert instance_of(tmp_path / "state") == first
    assert first != instance_of(tmp_path / "other")


def test_a_full_disk_is_told_and_nothing_is_left_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert f"naming the state directory {tmp_path}" in done.stdout
    assert list(tmp_path.iterdir()) == []
