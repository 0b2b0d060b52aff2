"""Exact command lines, environments and probes. After a change that is meant:

    UPDATE_GOLDEN=1 python -m pytest tests/engines/test_launch_golden.py

and read the diff before committing it.
"""

import os
from pathlib import Path

import pytest

from tests.engines.cases import cases
from tests.engines.golden import text_of
from tests.engines.matrix import matrix

FOLDER = Path(__file__).parents[1] / "golden" / "launch"
MATRIX = FOLDER / "matrix"
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("name", sorted(cases()))
def test_a_launch_is_what_its_golden_file_says(name: str) -> None:
    compare(text_of(cases()[name]), FOLDER / f"{name}.txt")


@pytest.mark.parametrize("name", sorted(matrix()))
def test_a_launch_on_real_shapes_of_machines_is_what_its_golden_file_says(name: str) -> None:
    compare(text_of(matrix()[name]), MATRIX / f"{name}.txt")


def compare(text: str, path: Path) -> None:
    if UPDATE:
        path.write_text(text)
    assert path.read_text() == text


def test_launching_twice_gives_the_same_bytes() -> None:
    assert {name: text_of(case) for name, case in cases().items()} == {
        name: text_of(case) for name, case in cases().items()
    }


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(cases())
    assert {path.stem for path in MATRIX.glob("*.txt")} == set(matrix())
