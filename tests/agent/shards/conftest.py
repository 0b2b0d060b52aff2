from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.shards.realnode import RealNode, real_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    with real_node(tmp_path) as made:
        yield made
