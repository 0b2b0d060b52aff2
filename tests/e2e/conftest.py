"""What end-to-end tests share."""

from collections.abc import Iterator

import pytest

from tests.ports import row_of_ports


@pytest.fixture
def free_ports() -> Iterator[tuple[int, int]]:
    """First and last of a row of ports that is the test's own until it ends."""
    with row_of_ports() as row:
        yield row
