"""Every story gets a stage of its own, cleared of every process when it ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories.stage import Stage, stage_in


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as ready:
        yield ready
