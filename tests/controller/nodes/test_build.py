"""The name of a build: of all files that agents are made of, the same wherever it is worked out."""

import shutil
from pathlib import Path

import llmgw
from llmgw.controller.nodes.bootstrap.build import PACKAGES, build_of, files_of
from llmgw.controller.nodes.bootstrap.closure import agent_files
from llmgw.controller.nodes.bootstrap.packages import ROOTS

PACKAGE = Path(llmgw.__file__).parent


def test_every_file_and_package_that_goes_to_nodes_counts() -> None:
    assert set(agent_files(PACKAGE)) <= set(files_of(PACKAGE))
    assert tuple(root.partition(">=")[0] for root in ROOTS) == PACKAGES


def test_another_file_is_another_build_and_the_same_files_elsewhere_are_not(tmp_path: Path) -> None:
    for name in ("one", "two"):
        for file in files_of(PACKAGE):
            copy = tmp_path / name / file.relative_to(PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    with (tmp_path / "two" / "agent" / "daemon.py").open("a") as changed:
        changed.write("# changed\n")
    assert build_of(tmp_path / "one") == build_of(PACKAGE)
    assert build_of(tmp_path / "two") != build_of(PACKAGE)
