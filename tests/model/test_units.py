"""Durations and sizes as people write them, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.model import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (90.0, "1m30s"), (5400.0, "1h30m"), (90000.0, "1d1h"), (0.5, "500ms"), (1.5, "1500ms"), (0.0005, "0.0005s")],
)  # fmt: skip
def test_a_duration_is_written_in_the_largest_units_that_are_whole(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (7, "7B"), (1024**3, "1GiB"), (1536 * 1024**2, "1536MiB"), (500 * 10**6, "500MB"), (2 * 10**12, "2TB")],
)  # fmt: skip
def test_a_size_is_written_in_the_largest_unit_that_is_whole(count: int, text: str) -> None:
    assert units.size_text(count) == text


@given(
    st.floats(min_value=0, max_value=1e12)
    | st.integers(0, 10**12).map(float)
    | st.integers(0, 10**9).map(lambda thousandths: thousandths / 1000)
)
def test_a_written_duration_reads_as_the_same_number(seconds: float) -> None:
    assert units.duration(units.duration_text(seconds)) == seconds


@given(st.integers(0, 10**18) | st.integers(0, 10**6).map(lambda count: count * 1024**2))
def test_a_written_size_reads_as_the_same_number(count: int) -> None:
    assert units.size(units.size_text(count)) == count
